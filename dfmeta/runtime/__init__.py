"""The process' own means: eventlet's greenthreads, OS threads, the clock, and state on disk."""

import atexit
import gc
import importlib
import os
import warnings


def patch() -> None:
    """Patch this process (eventlet, "Greening the world"), before any module uses sockets.

    Python collects no garbage from here to :func:`dfmeta.runtime.hub.resume_collection`: to look
    through all that is imported, and stays, costs a tenth of the start.

    The end of the process does not wait for OS threads that a disk or another host delays. All work
    that a client has got an answer for is complete.
    """
    gc.disable()
    # eventlet prints a deprecation notice of itself at import, which does not concern operators.
    warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
    # Imported before the patch, to use Python's own locks: each increment takes a lock, and
    # eventlet's lock costs more than the rest of it. No greenthread yields while it holds such a
    # lock, and an OS thread (OVSDB's) increments counters too.
    importlib.import_module("prometheus_client")
    # The C library resolves names, not eventlet's own resolver, which would not notice a new
    # nameserver.
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"
    import eventlet

    from dfmeta.runtime import names, threads

    names.install()
    eventlet.monkey_patch()
    atexit.unregister(threads.end_pool)
