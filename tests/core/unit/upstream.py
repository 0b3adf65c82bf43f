"""A small HTTP server on a real socket, for tests of an HTTP client that runs on the hub."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eventlet
from eventlet.event import Event
from eventlet.green import ssl

from dfmeta.model import HttpHost
from tests.harness.certificates import Pair

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(frozen=True)
class Asked:
    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


Script = Callable[[Asked], bytes | None]


def hang(_request: Asked) -> bytes:
    Event().wait()
    raise AssertionError("an event that nobody sends")


def close(_request: Asked) -> None:
    """Close the connection in place of an answer."""


def server_context(pair: Pair, client_authority: Path | None = None) -> Any:
    """What a server shows, and whose certificates it wants of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context


class Upstream:
    """Answers as ``script`` says: bytes as they are; None closes the connection."""

    def __init__(
        self,
        script: Script = lambda _request: OK,
        *,
        address: str = "127.0.0.1",
        context: Any = None,
    ) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections: list[Any] = []
        self._context = context
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sock = eventlet.listen((address, 0), family)
        # No piece waits for the acknowledgement of the one before, which comes after 40 ms.
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = HttpHost(address, self._sock.getsockname()[1])
        self._threads = [eventlet.spawn(self._accept)]

    def stop(self) -> None:
        for thread in self._threads:
            thread.kill()
        for sock in (self._sock, *self.connections):
            sock.close()

    def _accept(self) -> None:
        while True:
            sock, _address = self._sock.accept()
            if self._context is None:
                self.connections.append(sock)
            self._threads.append(eventlet.spawn(self._serve, sock))

    def _serve(self, sock: Any) -> None:
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self.connections.append(sock)
            try:
                sock.do_handshake()
            except OSError:
                sock.close()
                return
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
    except (ConnectionError, ssl.SSLError):
        return None
