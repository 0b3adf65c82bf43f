"""A Keystone and a Neutron on one port, with the parts that dfmeta uses, and with faults."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.closing import Closing, serving
from tests.harness.netns import Namespace

PASSWORD = "the password of the tests"
HOST = "compute-1"
PORT = 9696


def options(url: str = f"http://127.0.0.1:{PORT}", **more: object) -> dict[str, object]:
    """Return ``[neutron]`` for a server at *url*."""
    return {
        "host": HOST,
        "auth_type": "password",
        "auth_url": f"{url}/identity/v3",
        "username": "dfmeta",
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        **more,
    }


def port(
    port_id: str,
    instance: str,
    project: str,
    *,
    host: str = HOST,
    owner: str = "compute:nova",
    network: str = "",
    mac: str = "",
    ips: Iterable[str] = (),
) -> dict[str, Any]:
    """Return a port as Neutron returns it."""
    return {
        "id": port_id,
        "device_id": instance,
        "device_owner": owner,
        "project_id": project,
        "tenant_id": project,
        "binding:host_id": host,
        "network_id": network,
        "mac_address": mac,
        "fixed_ips": [{"subnet_id": f"subnet of {ip}", "ip_address": ip} for ip in ips],
    }


class Server(ThreadingHTTPServer):
    """The server and all of its state."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, namespace: Namespace | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=False)
        if namespace is not None:
            self.socket.close()
            self.socket = namespace.open_socket()
        self.server_bind()
        self.server_activate()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.ended = threading.Event()
        self.ports: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.issued = 0
        self.fault: dict[str, Any] = {}
        self.lock = threading.Lock()

    def control(self, op: str, **values: Any) -> Any:
        """Execute an operation of a test."""
        with self.lock:
            match op:
                case "put":
                    self.ports[values["id"]] = values
                case "remove":
                    self.ports.pop(values["id"], None)
                case "fault":
                    self.fault = values
                case "revoke":
                    self.tokens.clear()
                case "requests":
                    return list(self.requests)
                case "clear":
                    self.requests.clear()
                case _:
                    raise ValueError(op)
        return None


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer requests for Keystone's discovery and Neutron's ports."""
        url = urllib.parse.urlsplit(self.path)
        if url.path.rstrip("/") == "/identity/v3":
            link = {"rel": "self", "href": f"{self.server.url}/identity/v3/"}
            version = {"id": "v3.14", "status": "stable", "links": [link]}
            self._answer(200, {"version": version})
        elif url.path == "/network/v2.0/ports":
            self._ports(urllib.parse.parse_qs(url.query))
        else:
            self._answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        """Answer requests for tokens."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._broken("keystone"):
            return
        if body["auth"]["identity"]["password"]["user"]["password"] != PASSWORD:
            self._answer(401, {"error": {"message": "wrong password", "code": 401}})
        else:
            self._token()

    def _token(self) -> None:
        with self.server.lock:
            self.server.issued += 1
            token = f"token-{self.server.issued}"
            self.server.tokens.add(token)
        endpoint = {"interface": "internal", "region": "one", "region_id": "one"}
        network = {
            "type": "network",
            "name": "neutron",
            "endpoints": [{**endpoint, "id": "e", "url": f"{self.server.url}/network"}],
        }
        document = {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "user": {"id": "u", "name": "dfmeta", "domain": {"id": "d", "name": "Default"}},
            "project": {"id": "p", "name": "service", "domain": {"id": "d", "name": "Default"}},
            "catalog": [network],
            "roles": [],
        }
        self._answer(201, {"token": document}, ("X-Subject-Token", token))

    def _ports(self, query: dict[str, list[str]]) -> None:
        with self.server.lock:
            self.server.requests.append(self.path)
            known = self.headers["X-Auth-Token"] in self.server.tokens
            rows = list(self.server.ports.values())
        if self._broken("neutron"):
            return
        if not known:
            self._answer(401, {"error": {"message": "no such token", "code": 401}})
            return
        for name in ("id", "binding:host_id", "network_id", "device_owner"):
            if name in query:
                rows = [row for row in rows if row.get(name) in query[name]]
        fields = query.get("fields")
        if fields:
            rows = [{k: v for k, v in row.items() if k in fields} for row in rows]
        self._answer(200, {"ports": rows})

    def _broken(self, service: str) -> bool:
        fault = self.server.fault
        if fault.get("service") not in (service, "both"):
            return False
        if delay := fault.get("delay"):
            self.server.ended.wait(delay)
        if fault.get("close"):
            self.close_connection = True
            return True
        if fault.get("raw") is not None:
            self._send(200, fault["raw"].encode())
            return True
        if fault.get("status"):
            self._answer(fault["status"], {"error": "broken"})
            return True
        return False

    def _answer(self, status: int, document: object, *headers: tuple[str, str]) -> None:
        self._send(status, json.dumps(document).encode(), *headers)

    def _send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), *headers):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Neutron(Closing):
    """The server in a namespace; a context manager that ends it."""

    def __init__(self, namespace: Namespace) -> None:
        self._server = Server(namespace, PORT)
        self._serving = contextlib.ExitStack()
        self._serving.enter_context(serving(self._server))

    def close(self) -> None:
        """End the server. Idempotent."""
        self._server.ended.set()
        self._serving.close()

    def put(self, row: dict[str, Any]) -> None:
        """Add or replace a port."""
        self._server.control("put", **row)

    def remove(self, port_id: str) -> None:
        """Remove a port."""
        self._server.control("remove", id=port_id)

    def fault(self, service: str = "neutron", **values: object) -> None:
        """Set a fault of ``neutron``, ``keystone`` or ``both``: delay, status, close, raw."""
        self._server.control("fault", service=service, **values)

    def mend(self) -> None:
        """Remove the fault."""
        self._server.control("fault")

    def requests(self) -> list[str]:
        """Return the paths of all requests for ports."""
        return list(self._server.requests)
