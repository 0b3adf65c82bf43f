"""A worker: answers guests for a daemon, which sends it the guests' identities.

Run as ``python -m dfmeta.cmd.worker LISTENER PIPE RIGHTS [LISTENER ...]``; all arguments are
descriptors. It opens the resources of its backend, becomes an unprivileged user, and serves. All
its data about guests comes from the daemon through the pipe. The worker ends when the pipe closes.
"""

import os
import signal
import sys
from collections.abc import Sequence

from dfmeta.runtime import patch


def main(argv: Sequence[str] | None = None) -> int:
    """Run a worker; return its exit status."""
    first, pipe, rights, *others = map(int, sys.argv[1:] if argv is None else argv)
    # The daemon ends its workers, also when a service manager signals all processes of the unit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    patch()
    from dfmeta.cmd.serving import Serving

    return Serving([first, *others], pipe, rights, parent=os.getppid()).run()


if __name__ == "__main__":
    sys.exit(main())
