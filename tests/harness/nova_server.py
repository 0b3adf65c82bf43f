"""The process behind :mod:`tests.harness.nova`: Nova's metadata API, and a control socket.

The API is HTTP/1.1 with kept connections, as cheroot's. The control socket is a unix socket: a JSON
object a line in each direction, ``{"op": …}`` to ``{"result": …}`` or ``{"error": …}``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import re
import socket
import socketserver
import ssl
import sys
import threading
import time
import urllib.parse
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.harness import nova_tree
from tests.harness.nova_tree import Document, Instance

MAX_PASSWORD = 1020


@dataclass(kw_only=True)
class Fault:
    """A fault of requests whose ``METHOD path`` matches, ``times`` times (-1: always).

    ``delay``: seconds before the answer. ``held``: no answer before all faults are removed.
    ``close``: no answer at all. ``status``: this status instead. ``trickle``: seconds between the
    pieces of a body. ``cut``: only this number of bytes of the body. ``raw``: these bytes, base64,
    instead of an answer, and the end of the connection.
    """

    match: str = ""
    times: int = -1
    delay: float = 0.0
    held: bool = False
    close: bool = False
    status: int = 0
    trickle: float = 0.0
    cut: int = -1
    raw: str = ""


@dataclass(kw_only=True)
class State:
    """The whole state of the server, with one lock."""

    secret: str
    direct: str = ""
    instances: dict[str, Instance] = field(default_factory=dict)
    passwords: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    connections: set[socket.socket] = field(default_factory=set)
    accepted: int = 0
    stalls: int = 0
    going_on: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stall(self) -> None:
        """Wait, if the next handshake must hang."""
        with self.lock:
            stalls, self.stalls = self.stalls, max(0, self.stalls - 1)
        if stalls:
            self.going_on.wait(60)

    def fault(self, request: str) -> Fault:
        """Return the first fault for this request, and count it."""
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.match, request):
                    fault.times -= 1
                    return fault
        return Fault()


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """An HTTP status to answer with."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(str(status))


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The API's listener; it records its connections, so that it can cut them."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(
        self, address: tuple[str, int], state: State, context: ssl.SSLContext | None
    ) -> None:
        self.state = state
        self._context = context
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record the connection."""
        with self.state.lock:
            self.state.accepted += 1
            self.state.connections.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection; over TLS, if there is a certificate."""
        if self._context is None:
            super().finish_request(request, client_address)
            return
        self.state.stall()
        request.settimeout(Handler.timeout)
        with self._context.wrap_socket(request, server_side=True) as wrapped:
            with self.state.lock:
                self.state.connections.add(wrapped)
            try:
                super().finish_request(wrapped, client_address)
            finally:
                with self.state.lock:
                    self.state.connections.discard(wrapped)

    def shutdown_request(self, request: Any) -> None:
        """Remove the connection from the record."""
        with self.state.lock:
            self.state.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless the peer closed the connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30
    server: Server

    def log_message(self, *_: Any) -> None:
        """Log nothing, because requests are recorded."""

    def answer(self) -> None:
        """Record the request, apply a fault, verify the headers, and answer."""
        state = self.server.state
        # http.server merges leading slashes in self.path.
        self.path = self.requestline.split()[1]
        body = self._body()
        entry = {
            "time": time.time(),
            "method": self.command,
            "path": self.path,
            "version": self.request_version,
            "headers": list(self.headers.items()),
            "body": base64.b64encode(body).decode(),
            "client": list(self.client_address[:2]),
            "status": 0,
        }
        with state.lock:
            state.requests.append(entry)
        fault = state.fault(f"{self.command} {self.path}")
        if fault.delay:
            time.sleep(fault.delay)
        if fault.held:
            state.going_on.wait(60)
        if fault.close or fault.raw:
            self.wfile.write(base64.b64decode(fault.raw))
            self.close_connection = True
            return
        if fault.status:
            status, document = fault.status, Document(body=b"fault\n")
        else:
            try:
                status, document = 200, self._document(body)
            except Refused as refusal:
                status = refusal.status
                document = Document(body=f"{status}\n".encode())
        entry["status"] = status
        self._send(status, document, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer  # noqa: N815

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        return self.rfile.read(int(length)) if length and length.isdigit() else b""

    def _document(self, body: bytes) -> Document:
        if not self.path.startswith("/") or self.path.startswith("//"):
            raise Refused(400)
        path = urllib.parse.unquote(self.path.partition("?")[0]).rstrip("/")
        if not path and not self.server.state.direct:
            # Nova identifies no caller for this path.
            return Document(body="\n".join([*nova_tree.EC2_VERSIONS, "latest"]).encode())
        instance = self._instance()
        if re.fullmatch(r"/openstack/[^/]+/password", path):
            return self._password(instance, body)
        client = self.headers.get("X-Forwarded-For") or str(self.client_address[0])
        document = nova_tree.find(instance, path, client)
        if document is None:
            raise Refused(404)
        return document

    def _instance(self) -> Instance:
        """Verify the headers as Nova does."""
        state = self.server.state
        if state.direct:
            instance_id = state.direct
        else:
            instance_id = self.headers.get("X-Instance-ID") or ""
            project_id = self.headers.get("X-Tenant-ID") or ""
            signature = self.headers.get("X-Instance-ID-Signature") or ""
            if not (instance_id and project_id and signature):
                raise Refused(400)
            expected = hmac.new(
                state.secret.encode(), instance_id.encode(), hashlib.sha256
            ).hexdigest()
            if not hmac.compare_digest(expected.encode(), signature.encode("latin-1")):
                raise Refused(403)
        with state.lock:
            instance = state.instances.get(instance_id)
        if instance is None or not (state.direct or instance.project_id == project_id):
            raise Refused(404)
        return instance

    def _password(self, instance: Instance, body: bytes) -> Document:
        state = self.server.state
        with state.lock:
            known = state.passwords.get(instance.instance_id, b"")
            if self.command == "GET":
                return Document(body=known)
            if self.command != "POST" or len(body) > MAX_PASSWORD:
                raise Refused(400)
            if "Content-Length" not in self.headers:
                raise Refused(500)
            if known:
                raise Refused(409)
            state.passwords[instance.instance_id] = body
        return Document(body=b"")

    def _send(self, status: int, document: Document, fault: Fault) -> None:
        self.send_response(status)
        self.send_header("Content-Type", document.content_type)
        self.send_header("Content-Length", str(len(document.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = document.body if fault.cut < 0 else document.body[: fault.cut]
        if fault.cut >= 0:
            self.close_connection = True
        if not fault.trickle:
            self.wfile.write(body)
            return
        size = max(1, len(body) // 10)
        for start in range(0, len(body), size):
            self.wfile.write(body[start : start + size])
            self.wfile.flush()
            time.sleep(fault.trickle)


class Api:
    """The API's listener, which can be closed and opened again."""

    def __init__(
        self, address: tuple[str, int], state: State, context: ssl.SSLContext | None
    ) -> None:
        self._address = address
        self._state = state
        self._context = context
        self._server: Server | None = None
        self.back()

    def back(self) -> None:
        """Open the listener."""
        if self._server is None:
            self._server = Server(self._address, self._state, self._context)
            serve = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
            serve.start()

    def away(self) -> None:
        """Close the listener and reset every connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Close every connection; the listener stays."""
        with self._state.lock:
            for connection in self._state.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class Control:
    """The operations of the control socket."""

    def __init__(self, api: Api, state: State) -> None:
        self._api = api
        self._state = state

    def handle(self, message: dict[str, Any]) -> Any:
        """Execute one operation."""
        operation = getattr(self, f"op_{message.pop('op')}")
        return operation(**message)

    def op_put(self, instance: dict[str, Any], user_data: str | None) -> None:
        """Add or replace an instance."""
        raw = None if user_data is None else base64.b64decode(user_data)
        with self._state.lock:
            self._state.instances[instance["instance_id"]] = Instance(**instance, user_data=raw)

    def op_remove(self, instance_id: str) -> None:
        """Remove an instance."""
        with self._state.lock:
            self._state.instances.pop(instance_id, None)

    def op_fault(self, **values: Any) -> None:
        """Add a fault."""
        fault = Fault(**values)
        with self._state.lock:
            self._state.faults.append(fault)
            if fault.held:
                self._state.going_on.clear()

    def op_stall(self, times: int) -> None:
        """Let the next TLS handshakes hang."""
        with self._state.lock:
            self._state.stalls = times
            self._state.going_on.clear()

    def op_mend(self) -> None:
        """Remove all faults, and open the listener."""
        with self._state.lock:
            self._state.faults.clear()
            self._state.stalls = 0
        self._state.going_on.set()
        self._api.back()

    def op_away(self) -> None:
        """See :meth:`Api.away`."""
        self._api.away()

    def op_back(self) -> None:
        """See :meth:`Api.back`."""
        self._api.back()

    def op_cut(self) -> None:
        """See :meth:`Api.cut`."""
        self._api.cut()

    def op_requests(self) -> list[dict[str, Any]]:
        """Return all requests so far."""
        with self._state.lock:
            return [dict(entry) for entry in self._state.requests]

    def op_clear(self) -> None:
        """Clear the recorded requests and the count of connections."""
        with self._state.lock:
            self._state.requests.clear()
            self._state.accepted = 0

    def op_status(self) -> dict[str, Any]:
        """Return counts and faults."""
        with self._state.lock:
            return {
                "accepted": self._state.accepted,
                "open": len(self._state.connections),
                "requests": len(self._state.requests),
                "stalls": self._state.stalls,
                "faults": [asdict(fault) for fault in self._state.faults],
            }

    def op_password(self, instance_id: str) -> str:
        """Return the posted password, base64."""
        with self._state.lock:
            return base64.b64encode(self._state.passwords.get(instance_id, b"")).decode()


def serve_control(listener: socket.socket, control: Control) -> None:
    """Serve connections, and the lines on each, one after the other until the process ends."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                try:
                    answer = {"result": control.handle(json.loads(line))}
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


def tls_context(certificate: str, key: str, client_authority: str) -> ssl.SSLContext | None:
    """Return the TLS settings for the certificate and the clients' authority, or None."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context


def main() -> None:
    """Serve until killed. The secret comes on the first line of stdin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8775)
    parser.add_argument("--control", required=True)
    parser.add_argument("--direct", default="")
    parser.add_argument("--certificate", default="")
    parser.add_argument("--key", default="")
    parser.add_argument("--client-authority", default="")
    options = parser.parse_args()
    state = State(secret=sys.stdin.readline().rstrip("\n"), direct=options.direct)
    context = tls_context(options.certificate, options.key, options.client_authority)
    control = Control(Api((options.host, options.port), state, context), state)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(options.control)
    listener.listen()
    serve_control(listener, control)


if __name__ == "__main__":
    main()
