"""Lets the warnings of two libraries pass that come with the first import of the daemon."""

import os
import warnings

os.environ["OSKEN_HUB_TYPE"] = "eventlet"

with warnings.catch_warnings():
    # eventlet announces its own retirement; WebOb 1.8 imports cgi. See tests/core/unit/conftest.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    import eventlet  # noqa: F401
    import webob  # noqa: F401
