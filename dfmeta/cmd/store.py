"""``dfmeta-store``: sets the process up, then hands over to :mod:`dfmeta.cmd.central`.

eventlet has to patch before anything else looks at sockets: so nothing else stands in this module.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from dfmeta.cmd.patching import patch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service; gives its exit status."""
    # Until there is a handler: what reads a module may take an interrupt for its own trouble.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    patch()
    from dfmeta.cmd.central import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
