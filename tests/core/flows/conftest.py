"""The hub is chosen before os-ken is imported by whichever test comes first."""

import os

os.environ["OSKEN_HUB_TYPE"] = "eventlet"
