"""An admin API for tests of its client: routes, bodies and envelopes as CONTRACT.md has them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dfmeta.store.record import Kind, Record, parse_document
from dfmeta.store.repository import Repository
from dfmeta.store.seeds import parse_line

ENVELOPE = "application/vnd.dfmeta.record+json"


class Api(ThreadingHTTPServer):
    """Answers from a repository.

    :param token: what a request has to bring; empty: nothing.
    """

    daemon_threads = True

    def __init__(self, repository: Repository, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.token = token
        self.requests: list[str] = []
        self.failing = 0
        """A status that everything is answered with; 0: what is right."""
        self.message = "it fails"
        """What goes with it."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}/api/v1"


@contextmanager
def served(api: Api) -> Iterator[Api]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        api.shutdown()
        thread.join()
        api.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """One half of a record, in its envelope."""
        if not self._may():
            return
        kind, record_id = self._named()
        record = self.server.repository.get(record_id)
        half = None if record is None else getattr(record, kind)
        if record is None or half is None:
            self._say(404, {"message": "resource not found"})
        elif ENVELOPE in self.headers["Accept"]:
            self._say(200, self._envelope(kind, record))
        else:
            self._say(200, json.loads(half) if kind is Kind.METADATA else half.decode())

    def do_POST(self) -> None:
        """A push."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._may():
            return
        try:
            (push,) = parse_line(body)
        except ValueError as error:
            self._say(400, {"message": "Invalid request", "errors": [str(error)]})
            return
        assert push.kind is self._named()[0]
        self.server.repository.push_all([push])
        self._say(200, None)

    def do_DELETE(self) -> None:
        """Remove one half."""
        if self._may():
            found = self.server.repository.remove(*self._named())
            self._say(200 if found else 404, None if found else {"message": "resource not found"})

    def _may(self) -> bool:
        self.server.requests.append(f"{self.command} {self.path}")
        wanted = f"Bearer {self.server.token}" if self.server.token else None
        if self.server.failing:
            self._say(self.server.failing, {"message": self.server.message})
        elif wanted and self.headers["Authorization"] != wanted:
            self._say(401, {"message": "invalid auth token"})
        elif self.path.endswith("/healthz/readiness"):
            self._say(200, {"status": "UP"})
        else:
            return True
        return False

    def _named(self) -> tuple[Kind, str]:
        name, _, record_id = self.path.removeprefix("/api/v1/device-").partition("/")
        return Kind(name), record_id

    def _envelope(self, kind: Kind, record: Record) -> dict[str, Any]:
        addresses = [one.removesuffix("/32") for one in self.server.repository.addresses(record.id)]
        members: dict[str, Any] = {"id": record.id, "ipAddresses": addresses}
        if record.http_tokens is not None:
            members["http_tokens"] = record.http_tokens
        if kind is Kind.METADATA:
            return {**members, "metadata": parse_document(record.id, record.metadata)}
        assert record.userdata is not None
        try:
            text = record.userdata.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(record.userdata).decode()
            return {**members, "userdata": text, "userdata_encoding": "base64"}
        return {**members, "userdata": text, "userdata_encoding": "plain"}

    def _say(self, status: int, value: object) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)
