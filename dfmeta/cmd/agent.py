"""``dfmeta-agent``: sets the process up, then calls :mod:`dfmeta.cmd.daemon`.

os-ken reads its hub from the environment at its first import, and eventlet must patch the process
before any other module uses sockets. So this module imports nothing else.
"""

import os
import signal
import sys
from collections.abc import Sequence

from dfmeta.runtime import patch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; return its exit status."""
    os.environ["OSKEN_HUB_TYPE"] = "eventlet"
    # Until a handler is set: code that imports a module may catch KeyboardInterrupt as its error.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    patch()
    from dfmeta.cmd.daemon import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
