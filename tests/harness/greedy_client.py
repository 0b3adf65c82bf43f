"""``greedy_client.py KIND WANTED PATH HOST``: as many connections to HOST's port 80 as possible.

KIND selects the use of each connection. ``silent`` sends nothing, ``head`` a header and ``body`` a
body, a byte at a time and without end; ``unread`` requests PATH and never reads. The others send
the next request as soon as they have an answer: ``asks`` requests PATH, ``spellings`` PATH with
another number of slashes each time, and ``chunks`` sends a body in chunks of one byte. Lost
connections are opened again, up to WANTED at a time; after SIGUSR1 no further connections are
opened, and the open ones stay open. The program prints "begun" when it has opened WANTED
connections. After SIGTERM it prints, as JSON, the numbers of opened connections, of those that the
other side has closed, and of answers. It uses only the standard library.
"""

import contextlib
import json
import select
import signal
import socket
import sys
import time

PACE = 0.05
"""Seconds between two bytes, and between two rounds of opening lost connections."""
WAIT = 5
"""Milliseconds to wait for events."""
SMALL = 4096
LARGE = 65536
ASKING = ("asks", "spellings", "chunks")
SPELLINGS = 512
"""Maximum number of additional slashes in a path."""
HOST = b"Host: 169.254.169.254\r\n"
POST = b"POST /openstack/latest/password HTTP/1.1\r\n" + HOST + b"Content-Length: 4096\r\n\r\n"
CHUNKS = (
    b"POST /openstack/latest/password HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + 4096 * b"1\r\na\r\n"
    + b"0\r\n\r\n"
)
HEAD = b"GET /openstack/latest/meta_data.json HTTP/1.1\r\n" + HOST + b"X-Slow: "


class Client:
    """All connections of the client, in one thread."""

    def __init__(self, kind: str, wanted: int, path: str, host: str) -> None:
        self.kind = kind
        self.wanted = wanted
        self.path = path.encode()
        self.address = (host, 80)
        self.opened = self.ended = self.answered = 0
        self.refills, self.enough = True, False
        self._poll = select.poll()
        self._open: dict[int, tuple[socket.socket, list[bytes]]] = {}
        self._connecting: set[int] = set()
        self._read: dict[int, bytes] = {}

    def run(self) -> None:
        """Open and use connections until SIGTERM."""
        begun, due = False, 0.0
        while not self.enough:
            if time.monotonic() >= due:
                due = time.monotonic() + PACE
                self._drip()
                self._fill()
            for number, _event in self._poll.poll(WAIT):
                if number in self._connecting:
                    self._connected(number)
                else:
                    self._look(number)
            if not begun and self.opened >= self.wanted:
                begun = True
                sys.stdout.write("begun\n")
                sys.stdout.flush()
        counts = {"opened": self.opened, "ended": self.ended, "answered": self.answered}
        sys.stdout.write(json.dumps(counts))

    def _fill(self) -> None:
        while self.refills and len(self._open) < self.wanted:
            sock = socket.socket()
            sock.setblocking(False)
            if self.kind == "unread":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            sock.connect_ex(self.address)
            self._open[sock.fileno()] = (sock, self._bytes())
            self._connecting.add(sock.fileno())
            self._poll.register(sock.fileno(), select.POLLOUT)

    def _bytes(self) -> list[bytes]:
        """Return the pieces to send, the last piece first."""
        match self.kind:
            case "head":
                return [bytes([byte]) for byte in reversed(HEAD)]
            case "body":
                return [POST]
            case "unread":
                return [self._get(self.path)]
            case "asks" | "spellings" | "chunks":
                return [self._question()]
        return []

    def _get(self, path: bytes) -> bytes:
        return b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"

    def _question(self) -> bytes:
        match self.kind:
            case "chunks":
                return CHUNKS
            case "spellings":
                first, _slash, last = self.path.rpartition(b"/")
                return self._get(first + b"/" * (2 + self.answered % SPELLINGS) + last)
        return self._get(self.path)

    def _connected(self, number: int) -> None:
        self._connecting.discard(number)
        self.opened += 1
        sock, _rest = self._open[number]
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(number)
        else:
            # A client that reads nothing waits only for a reset.
            events = select.POLLIN | select.POLLOUT if self.kind in ASKING else select.POLLIN
            self._poll.modify(number, 0 if self.kind == "unread" else events)
            self._send(number)

    def _look(self, number: int) -> None:
        if self.kind in ASKING:
            self._take(number)
            return
        sock, _rest = self._open[number]
        try:
            over = self.kind == "unread" or not sock.recv(SMALL)
        except OSError:
            over = True
        if over:
            self._end(number)

    def _take(self, number: int) -> None:
        """Continue to send a request, or send another one when the answer is complete."""
        sock, rest = self._open[number]
        try:
            if rest:
                self._send(number)
            data = sock.recv(LARGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(number)
            return
        read = self._read.get(number, b"") + data
        if whole(read):
            self.answered += 1
            read = b""
            rest[:] = [self._question()]
            self._poll.modify(number, select.POLLIN | select.POLLOUT)
        self._read[number] = read

    def _drip(self) -> None:
        if self.kind in ("head", "body"):
            for number in [fd for fd in self._open if fd not in self._connecting]:
                self._send(number)

    def _send(self, number: int) -> None:
        sock, rest = self._open[number]
        with contextlib.suppress(OSError):
            if rest and self.kind in ASKING:
                rest[0] = rest[0][sock.send(rest[0]) :]
                if not rest[0]:
                    rest.clear()
                    self._poll.modify(number, select.POLLIN)
            elif rest:
                sock.send(rest.pop())
            elif self.kind in ("head", "body"):
                sock.send(b"x")

    def _end(self, number: int) -> None:
        self.ended += 1
        self._close(number)

    def _close(self, number: int) -> None:
        sock, _rest = self._open.pop(number)
        self._read.pop(number, None)
        self._poll.unregister(number)
        sock.close()


def whole(answer: bytes) -> bool:
    """Return whether *answer* is complete, by its Content-Length (RFC 9112, 6.3)."""
    head, result, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if result and name == b"content-length":
            return len(body) >= int(value)
    return False


def main() -> None:
    """Run the client."""
    kind, wanted, path, host = sys.argv[1:]
    client = Client(kind, int(wanted), path, host)

    def rest(*_: object) -> None:
        client.refills = False

    def finish(*_: object) -> None:
        client.enough = True

    signal.signal(signal.SIGUSR1, rest)
    signal.signal(signal.SIGTERM, finish)
    client.run()


if __name__ == "__main__":
    main()
