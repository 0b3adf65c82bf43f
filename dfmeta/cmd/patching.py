"""Has eventlet take the place of what would block, before anything looks at sockets."""

from __future__ import annotations

import importlib
import os
import warnings


def patch() -> None:
    """Patch this process (eventlet, "Greening the world")."""
    # It announces its own retirement at import; that is no message for an operator's journal.
    warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
    # With the locks that Python has: each count takes one, and eventlet's cost more than all the
    # rest of it. Nothing gives way while it has one; and an OS thread counts too (OVSDB's).
    importlib.import_module("prometheus_client")
    # Names are resolved by the C library, in place of eventlet's own resolver, which would not
    # hear of a new nameserver.
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"
    import eventlet

    from dfmeta import names

    names.install()
    eventlet.monkey_patch()
