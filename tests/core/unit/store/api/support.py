"""Asks the admin API: in this process, or over a socket from a server of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import webob

from dfmeta.exceptions import Forbidden, Unauthorized
from dfmeta.store.api.admin import AdminApi, Gate, Refresh, at_once
from dfmeta.store.auth import caller as auth
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.db.repository import Repository

INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
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


def make_api(
    repository: Repository,
    *,
    authorizer: Authorizer | None = None,
    max_body: int = MAX_BODY,
    refresh: Refresh | None = None,
    aside: Any = at_once,
    gate: Gate | None = None,
) -> AdminApi:
    """An API whose defaults are those of a daemon on loopback."""
    return AdminApi(
        repository,
        authorizer=authorizer,
        max_body=max_body,
        refresh=refresh,
        aside=aside,
        gate=gate,
    )


@dataclass
class Client:
    """Asks an application (PEP 3333)."""

    application: Any

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> webob.Response:
        """Headers are named as in Python: if_none_match."""
        request = webob.Request.blank(path, method=method, body=body or b"")
        request.headers.update({name.replace("_", "-"): text for name, text in headers.items()})
        return request.get_response(self.application)

    def get(self, path: str, **headers: str) -> webob.Response:
        return self.ask("GET", path, **headers)

    def push(self, kind: str, **members: Any) -> webob.Response:
        """Push to /device-KIND; the id is INSTANCE's unless another is given."""
        body = json.dumps({"id": INSTANCE} | members).encode()
        return self.ask("POST", f"/device-{kind}", body)


def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes to a server of this host and return all that it answers until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(sent)
        received = b""
        while piece := sock.recv(65536):
            received += piece
    return received
