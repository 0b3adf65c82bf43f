"""A worker: answers guests for a daemon that tells it who they are.

Run as ``python -m dfmeta.cmd.worker LISTENER PIPE RIGHTS``, descriptors all. It opens what its
backend needs, then becomes an unprivileged user, and serves. It knows of guests only what the
daemon tells it over the pipe, and ends when that closes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from dfmeta.cmd.patching import patch


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; gives its exit status."""
    listener, pipe, rights = map(int, sys.argv[1:] if argv is None else argv)
    # The daemon says when to end, also where all of a service's processes get the signal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    patch()
    from dfmeta.cmd.serving import Serving

    return Serving(listener, pipe, rights, parent=os.getppid()).run()


if __name__ == "__main__":
    sys.exit(main())
