"""A real HTTP server for the tests with configurable answers: an upstream store, or a service."""

import contextlib
import json
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from tests.harness.certificates import Pair
from tests.harness.closing import Closing, serving
from tests.harness.netns import Namespace

JSON = "application/json"


class ResetError(Exception):
    """The connection must be reset instead of an answer."""


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    target: str
    version: str
    fields: tuple[tuple[str, str], ...]
    """Its headers as they came."""
    content: bytes
    client: str
    """The address that it came from."""

    @property
    def headers(self) -> dict[str, str]:
        """The first value of each header, by its name in small letters."""
        return {name.lower(): value for name, value in reversed(self.fields)}

    @property
    def body(self) -> str:
        """The content as text."""
        return self.content.decode()


class Last(bytes):
    """An answer after which the connection is closed."""


Answer = Callable[[Asked], bytes | Iterator[bytes]]


def reply(
    content: object, *, status: int = 200, kind: str = JSON, headers: tuple[str, ...] = ()
) -> bytes:
    """Return an answer with Content-Length; *content* is written as JSON unless it is bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Said", *([f"Content-Type: {kind}"] if kind else []), *headers]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


NOT_FOUND = reply({"message": "resource not found"}, status=404)


class OtherStore(Closing):
    """A server. ``answer`` gets each request and returns the bytes of the answer.

    An answer of several pieces closes the connection after the last one. ``asked`` has all requests
    in their order, ``connections`` the number of connections.
    """

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        tls: Pair | None = None,
        client_authority: Path | None = None,
        namespace: Namespace | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.answers: dict[str, bytes] = {}
        self.answer: Answer = answer or (
            lambda request: self.answers.get(request.target, NOT_FOUND)
        )
        self.asked: list[Asked] = []
        self.connections = 0
        self.stopping = threading.Event()
        self.context: ssl.SSLContext | None = None
        if tls is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(tls.certificate, tls.key)
        if self.context is not None and client_authority is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_verify_locations(client_authority)
        self._namespace, self._address, self.port = namespace, address, port
        self._serving = contextlib.ExitStack()
        self._listens = False

    @property
    def url(self) -> str:
        """Return the URL of the server; a certificate is for a name."""
        if self.context:
            return f"https://localhost:{self.port}"
        return f"http://{self._address}:{self.port}"

    def targets(self) -> list[str]:
        """Return the targets of all requests, in their order."""
        return [request.target for request in self.asked]

    def __enter__(self) -> Self:
        self.start()
        return self

    def close(self) -> None:
        """End the store, and the answers that it delays."""
        self.stopping.set()
        self.stop()

    def start(self) -> None:
        """Start to listen, on the same port as before. Idempotent."""
        if self._listens:
            return
        self._listens = True
        server = _Server(self, (self._address, self.port), self._namespace)
        self.port = server.server_address[1]
        self._serving.callback(server.close_connections)
        self._serving.enter_context(serving(server))

    def stop(self) -> None:
        """Stop to listen, and close all connections."""
        self._serving.close()
        self._listens = False

    def talk(self, sock: socket.socket) -> None:
        """Serve a connection."""
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        with sock, sock.makefile("rb") as lines:
            while first := lines.readline().decode("latin-1").split():
                if len(first) != 3 or not first[2].startswith("HTTP/"):
                    sock.sendall(reply(b"", status=400))
                    return
                request = _read(first, lines, sock.getpeername()[0])
                self.asked.append(request)
                try:
                    content = self.answer(request)
                except ResetError:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                for piece in [content] if isinstance(content, bytes) else content:
                    sock.sendall(piece)
                if not isinstance(content, bytes) or isinstance(content, Last):
                    return

    def trickle(self, start: bytes, piece: bytes) -> Iterator[bytes]:
        """Yield pieces of an answer slowly and without end."""
        yield start
        while not self.stopping.wait(0.02):
            yield piece


def _read(first: list[str], lines: BinaryIO, client: str) -> Asked:
    fields = []
    while (line := lines.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        fields.append((name, value.strip()))
    length = {name.lower(): value for name, value in fields}.get("content-length", "")
    content = lines.read(int(length)) if length.isdigit() else b""
    method, target, version = first
    return Asked(method, target, version, tuple(fields), content, client)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self, store: OtherStore, place: tuple[str, int], namespace: Namespace | None
    ) -> None:
        self._store = store
        self._open: set[socket.socket] = set()
        super().__init__(place, socketserver.BaseRequestHandler, bind_and_activate=False)
        if namespace is not None:
            self.socket.close()
            family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
            self.socket = namespace.open_socket(family)
        try:
            self.server_bind()
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def get_request(self) -> tuple[socket.socket, Any]:
        """Count a connection."""
        sock, place = super().get_request()
        if self._store.context is not None:
            sock = self._store.context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        self._store.connections += 1
        self._open.add(sock)
        return sock, place

    def finish_request(self, request: object, _client: object) -> None:
        """Serve a connection; the client may have closed it."""
        assert isinstance(request, socket.socket)
        with contextlib.suppress(OSError):
            self._store.talk(request)

    def shutdown_request(self, request: object) -> None:
        """Close a connection without a shutdown, which would send an end instead of a reset."""
        assert isinstance(request, socket.socket)
        self._open.discard(request)
        request.close()

    def close_connections(self) -> None:
        """Close all open connections."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
