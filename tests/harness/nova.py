"""A Nova metadata API that verifies signatures, records every request and fails on demand.

It is HTTP/1.1 with kept connections, as cheroot's.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import socket
import ssl
import sys
import threading
import urllib.parse
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from tests.harness import nova_tree
from tests.harness.certificates import Pair
from tests.harness.closing import Closing, serving
from tests.harness.netns import Namespace
from tests.harness.nova_tree import Document, Instance
from tests.harness.poll import DEADLINE

SECRET = "the secret of the tests"
_MAX_PASSWORD = 1020


@dataclass(kw_only=True)
class Recorded:
    """A request as it arrived; ``status`` is the status of the answer (0: no answer)."""

    method: str
    path: str
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int = 0

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None.

        :raises AssertionError: the header arrived more than once.
        """
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        if len(values) > 1:
            raise AssertionError(f"{name} arrived {len(values)} times: {values}")
        return values[0] if values else None

    @property
    def instance_id(self) -> str | None:
        """Return the header X-Instance-ID."""
        return self.header("X-Instance-ID")


@dataclass(kw_only=True)
class _Fault:
    match: str = ""
    times: int = -1
    held: bool = False
    close: bool = False
    status: int = 0
    cut: int = -1
    raw: bytes = b""


class RecordingNova(Closing):
    """The API in a namespace; a context manager that ends it."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        host: str = "127.0.0.1",
        port: int = 8775,
        secret: str = SECRET,
        certificate: Pair | None = None,
        client_authority: Path | None = None,
    ) -> None:
        """Listen.

        :param certificate: the server's certificate, for TLS.
        :param client_authority: require a certificate of each client, signed by this authority.
        """
        self.namespace, self.host, self.port, self.secret = namespace, host, port, secret
        self.context = None if certificate is None else _tls(certificate, client_authority)
        self.lock = threading.Lock()
        self.open: set[socket.socket] = set()
        self.proceed = threading.Event()
        """Not set: what is held and stalled waits."""
        self._instances: dict[str, Instance] = {}
        self._passwords: dict[str, bytes] = {}
        self._faults: list[_Fault] = []
        self._requests: list[Recorded] = []
        self._accepted = self._stalls = 0
        self._serving: contextlib.ExitStack | None = None
        self.back()

    def close(self) -> None:
        """End the API. Idempotent."""
        self.proceed.set()
        self.away()

    # Instances

    def put(self, instance: Instance) -> Instance:
        """Add or replace an instance."""
        self._instances[instance.instance_id] = instance
        return instance

    def remove(self, instance_id: str) -> None:
        """Remove an instance; requests for it are answered with 404 from now on."""
        self._instances.pop(instance_id, None)

    def signature(self, instance_id: str) -> str:
        """Return the valid X-Instance-ID-Signature of an instance."""
        return hmac.new(self.secret.encode(), instance_id.encode(), hashlib.sha256).hexdigest()

    def password(self, instance_id: str) -> bytes:
        """Return the password that the instance has posted."""
        return self._passwords.get(instance_id, b"")

    # Recorded requests

    def requests(self) -> list[Recorded]:
        """Return all requests since the start or :meth:`clear`, in their order."""
        return [replace(one) for one in self._requests]

    def received(self) -> int:
        """Return the number of requests since the start or :meth:`clear`."""
        return len(self._requests)

    def accepted(self) -> int:
        """Return the number of connections accepted since the start or :meth:`clear`."""
        return self._accepted

    def clear(self) -> None:
        """Clear the recorded requests and the count of connections."""
        with self.lock:
            self._requests.clear()
            self._accepted = 0

    # Faults

    def fault(self, match: str = "", **values: Any) -> None:
        """Fail requests from now on.

        :param match: a regular expression, searched in "METHOD path".
        :param times: the number of requests; -1: all.
        :param held: no answer before :meth:`mend`.
        :param close: no answer at all.
        :param status: this status instead of the answer.
        :param cut: only this number of bytes of the body.
        :param raw: these bytes instead of an answer, and the end of the connection.
        """
        fault = _Fault(match=match, **values)
        if fault.held:
            self.proceed.clear()
        with self.lock:
            self._faults.append(fault)

    def stall(self) -> None:
        """Let the next TLS handshake hang until :meth:`mend`."""
        self.proceed.clear()
        with self.lock:
            self._stalls = 1

    def stalls(self) -> int:
        """Return the number of handshakes that will still hang."""
        return self._stalls

    def mend(self) -> None:
        """Remove all faults, and listen again."""
        with self.lock:
            self._faults.clear()
            self._stalls = 0
        self.proceed.set()
        self.back()

    def away(self) -> None:
        """Close the listener and all connections, so that new connections are refused."""
        if self._serving is not None:
            self._serving.close()
            self._serving = None
        self.cut()

    def back(self) -> None:
        """Listen again."""
        if self._serving is None:
            self._serving = contextlib.ExitStack()
            self._serving.enter_context(serving(_Server(self)))

    def cut(self) -> None:
        """Close all open connections, including kept ones; the listener stays."""
        with self.lock:
            for connection in self.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    # For the handler

    def accept(self, connection: socket.socket) -> None:
        """Count a connection."""
        with self.lock:
            self._accepted += 1
            self.open.add(connection)

    def before_handshake(self) -> None:
        """Wait, if this handshake must hang."""
        with self.lock:
            stalls, self._stalls = self._stalls, 0
        if stalls:
            self.proceed.wait(DEADLINE)

    def record(self, request: Recorded) -> _Fault:
        """Record a request, and return its fault."""
        text = f"{request.method} {request.path}"
        with self.lock:
            self._requests.append(request)
            for fault in self._faults:
                if fault.times and re.search(fault.match, text):
                    fault.times -= 1
                    return fault
        return _Fault()

    def find(self, request: Recorded, headers: Any, client: str) -> tuple[int, Document]:
        """Return the status and the document of a request, as Nova does."""
        if not request.path.startswith("/") or request.path.startswith("//"):
            return _refused(400)
        path = urllib.parse.unquote(request.path.partition("?")[0]).rstrip("/")
        if not path:
            # Nova identifies no caller for this path.
            return 200, Document(body="\n".join([*nova_tree.EC2_VERSIONS, "latest"]).encode())
        instance_id, project_id, signature = (
            headers.get(name) or ""
            for name in ("X-Instance-ID", "X-Tenant-ID", "X-Instance-ID-Signature")
        )
        if not (instance_id and project_id and signature):
            return _refused(400)
        if self.signature(instance_id).encode() != signature.encode("latin-1"):
            return _refused(403)
        instance = self._instances.get(instance_id)
        if instance is None or instance.project_id != project_id:
            return _refused(404)
        if re.fullmatch(r"/openstack/[^/]+/password", path):
            return self._password(request, instance_id, has_length="Content-Length" in headers)
        document = nova_tree.find(instance, path, headers.get("X-Forwarded-For") or client)
        return _refused(404) if document is None else (200, document)

    def _password(
        self, request: Recorded, instance_id: str, *, has_length: bool
    ) -> tuple[int, Document]:
        with self.lock:
            known = self._passwords.get(instance_id, b"")
            if request.method == "GET":
                return 200, Document(body=known)
            if request.method != "POST" or len(request.body) > _MAX_PASSWORD:
                return _refused(400)
            if not has_length:
                return _refused(500)
            if known:
                return _refused(409)
            self._passwords[instance_id] = request.body
        return 200, Document(body=b"")


class _Server(ThreadingMixIn, TCPServer):
    """The listener."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, nova: RecordingNova) -> None:
        self.nova = nova
        super().__init__((nova.host, nova.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = nova.namespace.open_socket(
            socket.AF_INET6 if ":" in nova.host else socket.AF_INET
        )
        try:
            self.server_bind()
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def get_request(self) -> tuple[socket.socket, Any]:
        """Record the connection."""
        connection, place = super().get_request()
        if self.nova.context is not None:
            connection = self.nova.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self.nova.accept(connection)
        return connection, place

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection."""
        if isinstance(request, ssl.SSLSocket):
            self.nova.before_handshake()
            request.settimeout(_Handler.timeout)
            request.do_handshake()
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Remove the connection from the record."""
        with self.nova.lock:
            self.nova.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless the peer closed the connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = DEADLINE
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Log nothing, because requests are recorded."""

    def answer(self) -> None:
        """Record the request, apply a fault, verify the headers, and answer."""
        nova, length = self.server.nova, self.headers.get("Content-Length") or ""
        request = Recorded(
            method=self.command,
            # http.server merges leading slashes in self.path.
            path=self.requestline.split()[1],
            version=self.request_version,
            headers=tuple(self.headers.items()),
            body=self.rfile.read(int(length)) if length.isdigit() else b"",
        )
        fault = nova.record(request)
        if fault.held:
            nova.proceed.wait(DEADLINE)
        if fault.close or fault.raw:
            self.wfile.write(fault.raw)
            self.close_connection = True
            return
        if fault.status:
            request.status, document = fault.status, Document(body=b"fault\n")
        else:
            client = str(self.client_address[0])
            request.status, document = nova.find(request, self.headers, client)
        self.send_response(request.status)
        self.send_header("Content-Type", document.content_type)
        self.send_header("Content-Length", str(len(document.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(document.body if fault.cut < 0 else document.body[: fault.cut])
        if fault.cut >= 0:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer  # noqa: N815


def _refused(status: int) -> tuple[int, Document]:
    return status, Document(body=f"{status}\n".encode())


def _tls(certificate: Pair, client_authority: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context
