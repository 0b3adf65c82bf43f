"""The host's API of attachments for one VM: in memory, strict about the rules for guests."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.closing import Closing, serving
from tests.harness.netns import Namespace

ADDRESS = "169.254.169.254"
ROOT = "/dfmeta/v1"
FIRST_VID = 100
REMEMBERED = 1000
"""Largest number of requests that are kept."""

Key = tuple[str, str]
Fault = Callable[["Handler"], bool]
"""Answers a request in the service's place; false lets the service answer as well."""


class Handler(BaseHTTPRequestHandler):
    """A connection of the VM."""

    protocol_version = "HTTP/1.1"
    # As in dfmeta: else a body waits up to 40 ms for the acknowledgement of the head.
    disable_nagle_algorithm = True
    service: Service
    token = ""

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return the method for requests with the method that *name* has after ``do_``."""
        if name in ("do_GET", "do_PUT", "do_POST", "do_DELETE"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        raw = self.rfile.read(length)
        service = self.service
        with service.lock:
            service.requests.append((self.command, self.path))
            fault = service.faults.popleft() if service.faults else None
        if fault is not None and fault(self):
            return
        if self.client_address[1] >= 1024:
            self.answer(403, {"error": "not_privileged", "message": "Use a port below 1024"})
        elif self.path == f"{ROOT}/token" and self.command == "PUT":
            ttl = self.headers.get("X-dfmeta-token-ttl-seconds", "")
            # A token for one connection: it has to be the one of the request.
            self.token = f"token-{service.number()}"
            self.answer(200 if ttl.isdigit() else 400, self.token)
        elif not self.token or self.headers.get("X-dfmeta-token") != self.token:
            self.answer(401, {"error": "token", "message": "Get a token"})
        else:
            body = json.loads(raw) if raw else None
            try:
                with service.lock:
                    status, document = service.handle(self.command, self.path, body)
                self.answer(status, document)
            except BrokenPipeError:
                self.close_connection = True

    def answer(self, status: int, document: object = None, **headers: str) -> None:
        """Send an answer: text as it is, else JSON."""
        text = document if isinstance(document, str) else json.dumps(document)
        body = b"" if status == 204 else text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_arguments: Any) -> None:
        """Print nothing: a killed client resets its connection."""


class Service(Closing):
    """A service that listens in a namespace at the metadata address.

    :param made: called with each new attachment, and *unmade* with each removed one.
    """

    def __init__(
        self,
        host: Namespace,
        *,
        parent_mac: str,
        made: Callable[[dict[str, Any]], None] = lambda attachment: None,
        unmade: Callable[[dict[str, Any]], None] = lambda attachment: None,
    ) -> None:
        self.lock = threading.Lock()
        self.parent_mac, self._made, self._unmade = parent_mac, made, unmade
        self._count = 0
        self.reset()
        handler = type("Bound", (Handler,), {"service": self})
        server = _Server((ADDRESS, 80), handler, bind_and_activate=False)
        server.socket.close()
        server.socket = host.open_socket()
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.socket.bind((ADDRESS, 80))
        server.server_activate()
        self._serving = contextlib.ExitStack()
        self._serving.enter_context(serving(server))

    def reset(self) -> None:
        """Forget everything, faults as well."""
        for attachment in list(getattr(self, "attachments", {}).values()):
            self._unmade(attachment)
        self.attachments: dict[Key, dict[str, Any]] = {}
        self.requests: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
        self.bodies: list[Any] = []
        self.faults: deque[Fault] = deque()
        self.gone: list[str] = []
        """Queries of the deletions."""
        self.networks = {"pods": 1500, "wide": 9000}
        self.free = 100
        self.ready = True
        self.next_vid = FIRST_VID

    def close(self) -> None:
        """Stop. Idempotent."""
        self._serving.close()

    def number(self) -> int:
        """Return a new number."""
        self._count += 1
        return self._count

    def handle(self, method: str, target: str, body: Any) -> tuple[int, object]:
        """Return status and document for a request with a token."""
        path, _mark, query = target.removeprefix(ROOT).partition("?")
        names = path.strip("/").split("/")
        self.bodies.append(body)
        if (method, path) == ("GET", "/status"):
            networks = [{"name": name, "mtu": mtu} for name, mtu in self.networks.items()]
            return 200, {"ready": self.ready, "free": self.free, "networks": networks}
        if (method, path) == ("POST", "/gc"):
            return self._collect(body)
        if names[0] != "attachments" or len(names) != 3:
            return 404, {"error": "not_found", "message": "There is nothing at this path"}
        key = (names[1], names[2])
        if method == "PUT":
            return self._put(key, body)
        attachment = self.attachments.get(key)
        if method == "DELETE":
            self.gone.append(query)
            if attachment:
                self._unmade(self.attachments.pop(key))
            return 204, None
        return (
            (200, attachment) if attachment else (404, {"error": "not_found", "message": "Nothing"})
        )

    def _put(self, key: Key, body: Any) -> tuple[int, object]:
        allowed = {"network", "boot_id", "mac", "ip", "avoid", "owner", "labels"}
        assert body.keys() <= allowed, body
        if body["network"] not in self.networks:
            return 422, {"error": "attach_network", "message": "There is no such network"}
        before = self.attachments.get(key)
        avoid = set(body.get("avoid", []))
        if before and before["network"] != body["network"]:
            return 409, {"error": "attach_conflict", "message": "It is on another network"}
        if before and before["vid"] not in avoid:
            return 200, before
        if before:
            self._unmade(self.attachments.pop(key))
        if self.free <= 0:
            return 507, {"error": "attach_full", "message": "All are taken"}
        vid = self.next_vid
        while vid in avoid or vid in {
            attachment["vid"] for attachment in self.attachments.values()
        }:
            vid += 1
        self.next_vid = vid + 1
        attachment = {
            "id": f"id-{vid}",
            "container": key[0],
            "ifname": key[1],
            "network": body["network"],
            "owner": body["owner"],
            "vid": vid,
            "mac": body.get("mac") or f"fa:16:3e:00:{vid >> 8:02x}:{vid & 255:02x}",
            "mtu": self.networks[body["network"]],
            "ips": [
                {"address": f"{body.get('ip') or f'10.20.{vid >> 8}.{vid & 255}'}/16"}
                | {"gateway": "10.20.255.254"}
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.20.255.254"}],
            "dns": {"nameservers": ["192.0.2.53"]},
            "parent_mac": self.parent_mac,
        }
        self.attachments[key] = attachment
        self._made(attachment)
        return 201, attachment

    def _collect(self, body: Any) -> tuple[int, object]:
        valid = {(pair["container"], pair["ifname"]) for pair in body["valid"]}
        mine = (body["network"], body["owner"])
        for key, one in list(self.attachments.items()):
            if (one["network"], one["owner"]) == mine and key not in valid:
                self._unmade(self.attachments.pop(key))
        return 200, {"removed": 0}


def says(status: int, document: object = None, **headers: str) -> Fault:
    """Return a fault: that answer."""

    def fault(handler: Handler) -> bool:
        handler.answer(status, document, **headers)
        return True

    return fault


def sends(raw: bytes) -> Fault:
    """Return a fault: these bytes, and the end of the connection."""

    def fault(handler: Handler) -> bool:
        handler.wfile.write(raw)
        handler.close_connection = True
        return True

    return fault
