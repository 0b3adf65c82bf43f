"""Floods of the admin listener that a local user without a token can send.

As a program: ``admin_flood.py KIND PORT``. It runs as user nobody until it is killed, and prints a
line when the flood has begun.
"""

import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from tests.harness.closing import Closing

NOBODY: Final = 65534
CONNECTIONS: Final = 4
"""Connections of a kind that keeps its connections busy."""
SILENT: Final = 1100
"""Silent connections: more than any server of dfmeta serves at a time."""
FAILED: Final = 4
_REFUSED: Final = 1.0
"""Seconds after which a connection has failed."""
MOST: Final = 32 << 20
"""Maximum number of bytes that are sent on one connection."""
POST: Final = (
    b"POST /device-metadata HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Flood(Closing):
    """A flood that lasts until the block is left.

    :param kind: one of :data:`KINDS`.
    :param peers: addresses of this host to send from.
    """

    def __init__(self, kind: str, port: int, *, peers: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.accepted: list[int] = []
        """Bytes that the server has accepted on each connection that has ended."""
        self.begun = threading.Event()
        """Set when all connections are open and have sent data."""
        self._kind = KINDS[kind]
        self._port = port
        self._peers = peers
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._kind(self)
        return self

    def close(self) -> None:
        """End the flood, and close its connections."""
        self._stop.set()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.wait()
        for sock in self._open:
            sock.close()

    def wait(self) -> None:
        """Wait until each connection has ended by itself."""
        for thread in self._threads:
            thread.join()

    def pipelined(self, path: str) -> None:
        """Send requests for *path* without end, and read the answers."""
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for _ in range(CONNECTIONS):
            self._run(lambda: self._again_and_again(request * 1000))

    def one_each(self, path: str) -> None:
        """Open connections without end, each for one request."""
        request = f"GET {path} HTTP/1.0\r\n\r\n".encode()
        for _ in range(CONNECTIONS):
            self._run(lambda: self._anew(request))

    def endless(self, head: bytes, piece: bytes) -> None:
        """Send one request that does not end, as far as the server accepts it."""
        self._run(lambda: self._on_and_on(head, piece * (65536 // len(piece))))

    def silent(self, beginning: bytes) -> None:
        """Open connections that send *beginning*, which may be empty, and nothing more."""
        failed = number = 0
        # After FAILED failures in a row, no other client gets a connection either.
        while number < SILENT and failed < FAILED:
            sock = self._connect(self._peers[number % len(self._peers)], timeout=_REFUSED)
            if _is_connected(sock):
                number, failed = number + 1, 0
                with suppress(OSError):
                    sock.sendall(beginning)
            else:
                failed += 1
        self.begun.set()

    def _run(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        self._threads.append(thread)

    def _connect(self, peer: str = "127.0.0.1", *, timeout: float = 60) -> socket.socket:
        sock = socket.socket()
        # With a small buffer, the sent bytes are little more than those that the server accepted.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        sock.bind((peer, 0))
        sock.settimeout(timeout)
        with suppress(OSError):
            sock.connect(("127.0.0.1", self._port))
        self._open.append(sock)
        return sock

    def _again_and_again(self, requests: bytes) -> None:
        while not self._stop.is_set():
            sock = self._connect()
            reader = threading.Thread(target=_read_all, args=(sock,))
            reader.start()
            with suppress(OSError):
                while not self._stop.is_set():
                    sock.sendall(requests)
                    self.begun.set()
            self._close(sock)
            reader.join()

    def _anew(self, request: bytes) -> None:
        while not self._stop.is_set():
            sock = self._connect()
            with suppress(OSError):
                sock.sendall(request)
                _read_all(sock)
            self._close(sock)
            self.begun.set()

    def _on_and_on(self, head: bytes, piece: bytes) -> None:
        sock, sent = self._connect(), 0
        with suppress(OSError):
            sock.sendall(head)
            while sent < MOST and not self._stop.is_set():
                sent += sock.send(piece)
                self.begun.set()
        self.accepted.append(sent)

    def _close(self, sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        self._open.remove(sock)
        sock.close()


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _read_all(sock: socket.socket) -> None:
    with suppress(OSError):
        while sock.recv(65536):
            pass


KINDS: Final[dict[str, Callable[[Flood], None]]] = {
    "pipelined requests": lambda flood: flood.pipelined("/healthz"),
    "pipelined metrics": lambda flood: flood.pipelined("/metrics"),
    "connections": lambda flood: flood.one_each("/metrics"),
    "trailers": lambda flood: flood.endless(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"a",
    ),
    "trailers of a body": lambda flood: flood.endless(POST + b"0\r\nX: ", b"a"),
    "a refused body": lambda flood: flood.endless(POST, b"1\r\na\r\n"),
    "silent connections": lambda flood: flood.silent(b""),
    "half a request": lambda flood: flood.silent(b"GET /healthz HTTP/1.1\r\nHost: "),
    "no body": lambda flood: flood.silent(
        b"POST /device-metadata HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    ),
}


def room_for(connections: int) -> None:
    """Allow this process and its children to open *connections* connections (getrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * connections), hard))


def main(kind: str, port: str) -> None:
    """Send until killed."""
    room_for(SILENT)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with Flood(
        kind, int(port), peers=tuple(f"127.0.0.{number}" for number in range(1, 200))
    ) as flood:
        flood.begun.wait()
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        flood.wait()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
