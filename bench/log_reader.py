"""Read the lines of a host's log at a path, and forget them: log_reader PATH.

Imports nothing that it does not need: it starts beside what is measured.
"""

import socket
import sys

LONGEST = 65536


def main() -> None:
    """Read until the process is ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(sys.argv[1])
        room = bytearray(LONGEST)
        while True:
            log.recv_into(room)


if __name__ == "__main__":
    main()
