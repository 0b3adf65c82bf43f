"""Asks the admin API in this process: its application, or a server on the hub."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import eventlet
import webob
from eventlet.green import socket
from webob.dec import wsgify

from dfmeta.admin.listener import AdminApplication, serve
from dfmeta.errors import Forbidden, Unauthorized
from dfmeta.runtime.hub import Health
from dfmeta.store.api.admin import AdminApi
from dfmeta.store.auth import caller as auth
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import INSTANCE

__all__ = ["INSTANCE"]

OTHER = "7a1f0c9b-1d01-4a55-9d0e-6f1c2b5e3a44"
ENVELOPE = "application/vnd.dfmeta.record+json"
MAX_BODY = 1 << 20


class Tokens:
    """An authorizer whose tokens are their scopes, ``Bearer read,write``; keeps the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, tuple[str, ...]]] = []

    def authorize(self, header: str | None, accepted: Collection[str]) -> auth.Client:
        self.asked.append((header, tuple(accepted)))
        if header is None:
            raise Unauthorized(message="who is there?")
        scopes = frozenset(header.removeprefix("Bearer ").split(","))
        if scopes.isdisjoint(accepted):
            raise Forbidden(message="not you", client="token known")
        return auth.Client("token known", scopes)


def make_api(repository: Repository, **options: Any) -> AdminApi:
    """An API whose defaults are those of a daemon on loopback."""
    defaults = {"authorizer": None, "max_body": MAX_BODY, "refresh": None}
    return AdminApi(repository, **(defaults | options))


@dataclass
class Client:
    """Asks an application."""

    application: Any

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> webob.Response:
        """Headers are named as in Python: if_none_match."""
        request = webob.Request.blank(path, method=method, body=body or b"")
        request.headers.update({name.replace("_", "-"): text for name, text in headers.items()})
        return request.get_response(wsgify(self.application))

    def get(self, path: str, **headers: str) -> webob.Response:
        return self.ask("GET", path, **headers)

    def push(self, kind: str, **members: Any) -> webob.Response:
        """Push to /device-KIND; the id is INSTANCE's unless another is given."""
        body = json.dumps({"id": INSTANCE} | members).encode()
        return self.ask("POST", f"/device-{kind}", body)


@contextmanager
def served(repository: Repository) -> Iterator[int]:
    """Serve the API on the hub as a daemon does; yield the port."""
    listener = eventlet.listen(("127.0.0.1", 0))
    application = AdminApplication(Health(), list, {}, api=make_api(repository))
    server = serve("", application, sock=listener)
    yield listener.getsockname()[1]
    server.stop(0)


def connected(port: int, sent: bytes) -> socket.socket:
    """Return a connection on which these bytes have been sent."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(sent)
    return sock


def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes and return all that the server answers until it closes the connection."""
    received = b""
    with connected(port, sent) as sock:
        while piece := sock.recv(65536):
            received += piece
    return received
