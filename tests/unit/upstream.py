"""A small HTTP server on a real socket, for tests of an HTTP client that runs on the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import eventlet
from eventlet.event import Event

from dfmeta.model import HttpHost

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(frozen=True)
class Asked:
    """A request as it came over the wire."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> list[str]:
        """Values of *name*, in any spelling of it."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


Script = Callable[[Asked], bytes | None]


def hang(_asked: Asked) -> bytes:
    """Never answer."""
    Event().wait()
    raise AssertionError("an event that nobody sends")


def close(_asked: Asked) -> None:
    """Close the connection in place of an answer."""


class Upstream:
    """Answers each request as ``script`` says: bytes as they are; None closes the connection."""

    def __init__(self, script: Script = lambda _asked: OK) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections: list[Any] = []
        self._sock = eventlet.listen(("127.0.0.1", 0))
        self.host = HttpHost("127.0.0.1", self._sock.getsockname()[1])
        self._threads = [eventlet.spawn(self._accept)]

    def stop(self) -> None:
        """Refuse connections from now on, and close those that are open."""
        for thread in self._threads:
            thread.kill()
        for sock in (self._sock, *self.connections):
            sock.close()

    def _accept(self) -> None:
        while True:
            sock, _address = self._sock.accept()
            self.connections.append(sock)
            self._threads.append(eventlet.spawn(self._serve, sock))

    def _serve(self, sock: Any) -> None:
        with sock, sock.makefile("rb") as stream:
            while (asked := _read(stream)) is not None:
                self.asked.append(asked)
                answer = self.script(asked)
                if answer is None:
                    return
                sock.sendall(answer)


def _read(stream: Any) -> Asked | None:
    try:
        line = stream.readline()
        if not line:
            return None
        headers = []
        while (text := stream.readline().rstrip(b"\r\n").decode("latin-1")) != "":
            name, colon, value = text.partition(":")
            assert colon, text
            headers.append((name, value.strip()))
        length = {key.lower(): value for key, value in headers}.get("content-length", "0")
        return Asked(line.decode("latin-1").rstrip(), tuple(headers), stream.read(int(length)))
    except ConnectionError:
        return None
