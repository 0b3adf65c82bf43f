"""``dfmeta-store``: sets the process up, then calls :mod:`dfmeta.cmd.central`.

eventlet must patch the process before any other module uses sockets. So this module imports nothing
else.
"""

import signal
import sys
from collections.abc import Sequence

from dfmeta.runtime import patch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service; return its exit status."""
    # Until a handler is set: code that imports a module may catch KeyboardInterrupt as its error.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    patch()
    from dfmeta.cmd.central import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
