"""Start Python as a child of tests/harness/template.py: ``forked_python.py SOCKET ARGUMENT...``.

Takes the place of an interpreter on the command line of xdist. The child has this process'
arguments, streams, directory and environment; signals are passed on, and its exit status is ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.harness.forking import order


def main() -> int:
    """Return the child's exit status, or 128 and the number of the signal that ended it."""
    place, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(place)
    message = {"arguments": arguments, "directory": os.getcwd(), "env": dict(os.environ)}
    passed = (signal.SIGINT, signal.SIGTERM)
    # The child may be told to end as soon as it runs, and its pid is known here only later.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    pid, ended = order(connection, message, (0, 1, 2))

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in passed:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    status = int(ended.recv(16))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
