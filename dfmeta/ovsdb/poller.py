"""``ovs.poller`` of the package ovs, without eventlet in a process that does not use it.

That module imports eventlet where it is installed, to learn whether it has patched Python. A
command would wait longer for the import than for OVSDB. Import this module before others of ovs.
"""

from __future__ import annotations

import sys

_MODULES: dict[str, object] = vars(sys)["modules"]
_IS_COMMAND = "eventlet" not in _MODULES
if _IS_COMMAND:
    _MODULES["eventlet"] = None  # an import of it raises ImportError
from ovs.poller import POLLIN, Poller  # noqa: E402

if _IS_COMMAND:
    del _MODULES["eventlet"]

__all__ = ["POLLIN", "Poller"]
