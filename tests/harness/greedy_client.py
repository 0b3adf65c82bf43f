"""``greedy_client.py KIND WANTED PATH``: as many connections to the metadata service as it gets.

KIND says what becomes of each. ``silent`` sends nothing, ``head`` a header and ``body`` a body, a
byte at a time and without end; ``unread`` asks for PATH and never reads; ``churn`` closes it as
soon as it is open. What is lost is opened anew, WANTED at a time; after SIGUSR1 no more, and what
is open stays open. Prints "begun" once there have been WANTED. After SIGTERM it prints, as JSON,
how many were opened and how many of them the other side has ended. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sys
import time

ADDRESS = ("169.254.169.254", 80)
PACE = 0.05
"""Seconds between two bytes, and between two rounds of opening what was lost."""
WAIT = 5
"""Milliseconds."""
SMALL = 4096
HOST = b"Host: 169.254.169.254\r\n"
POST = b"POST /openstack/latest/password HTTP/1.1\r\n" + HOST + b"Content-Length: 4096\r\n\r\n"
HEAD = b"GET /openstack/latest/meta_data.json HTTP/1.1\r\n" + HOST + b"X-Slow: "


class Client:
    """All connections, in one thread."""

    def __init__(self, kind: str, wanted: int, path: str) -> None:
        self.kind = kind
        self.wanted = wanted
        self.path = path.encode()
        self.opened = self.ended = 0
        self.refills, self.enough = True, False
        self._poll = select.poll()
        self._open: dict[int, tuple[socket.socket, list[bytes]]] = {}
        self._connecting: set[int] = set()

    def run(self) -> None:
        """Take what there is until SIGTERM."""
        begun, due = False, 0.0
        while not self.enough:
            if self.kind == "churn" or time.monotonic() >= due:
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
        sys.stdout.write(json.dumps({"opened": self.opened, "ended": self.ended}))

    def _fill(self) -> None:
        while self.refills and len(self._open) < self.wanted:
            one = socket.socket()
            one.setblocking(False)
            if self.kind == "unread":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            one.connect_ex(ADDRESS)
            self._open[one.fileno()] = (one, self._bytes())
            self._connecting.add(one.fileno())
            self._poll.register(one.fileno(), select.POLLOUT)

    def _bytes(self) -> list[bytes]:
        """What is still to be sent, first what comes last: a whole at once, then byte by byte."""
        match self.kind:
            case "head":
                return [bytes([byte]) for byte in reversed(HEAD)]
            case "body":
                return [POST]
            case "unread":
                return [b"GET " + self.path + b" HTTP/1.1\r\n" + HOST + b"\r\n"]
        return []

    def _connected(self, number: int) -> None:
        self._connecting.discard(number)
        self.opened += 1
        one, _rest = self._open[number]
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(number)
        elif self.kind == "churn":
            self._close(number)
        else:
            # Who reads nothing hears nothing but a reset.
            self._poll.modify(number, 0 if self.kind == "unread" else select.POLLIN)
            self._send(number)

    def _look(self, number: int) -> None:
        one, _rest = self._open[number]
        try:
            over = self.kind == "unread" or not one.recv(SMALL)
        except OSError:
            over = True
        if over:
            self._end(number)

    def _drip(self) -> None:
        if self.kind in ("head", "body"):
            for number in [one for one in self._open if one not in self._connecting]:
                self._send(number)

    def _send(self, number: int) -> None:
        one, rest = self._open[number]
        with contextlib.suppress(OSError):
            if rest:
                one.send(rest.pop())
            elif self.kind in ("head", "body"):
                one.send(b"x")

    def _end(self, number: int) -> None:
        self.ended += 1
        self._close(number)

    def _close(self, number: int) -> None:
        one, _rest = self._open.pop(number)
        self._poll.unregister(number)
        one.close()


def main() -> None:
    """Be greedy."""
    kind, wanted, path = sys.argv[1:]
    client = Client(kind, int(wanted), path)

    def rest(*_: object) -> None:
        client.refills = False

    def finish(*_: object) -> None:
        client.enough = True

    signal.signal(signal.SIGUSR1, rest)
    signal.signal(signal.SIGTERM, finish)
    client.run()


if __name__ == "__main__":
    main()
