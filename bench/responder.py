"""A minimal responder: it accepts, reads, sends a fixed answer and closes."""

from __future__ import annotations

import socket
import sys

ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 14\r\nConnection: close\r\n\r\n404 Not Found\n"


def main() -> None:
    """Serve indefinitely on the port that the command line names."""
    listener = socket.create_server(("", int(sys.argv[1])), backlog=1024)
    while True:
        connection, _address = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(ANSWER)


if __name__ == "__main__":
    main()
