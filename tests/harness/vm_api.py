"""Requests of a VM's programs for attachments of its containers, from a chosen kind of port."""

from __future__ import annotations

import contextlib
import errno
import http.client
import itertools
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from tests.harness.guest import METADATA_IP, Reply
from tests.harness.netns import Namespace
from tests.harness.poll import DEADLINE

TTL = "X-dfmeta-token-ttl-seconds"
TOKEN = "X-dfmeta-token"  # a header's name
_PORTS = itertools.count()
_LOW = range(600, 1024)


class Connection:
    """A connection to the API; a context manager that resets it, so that its port is free again.

    :param low: from a port below 1024.
    :param host: address of the service, of either version of IP.
    :param device: the device to use; a link-local address needs it.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        low: bool = True,
        timeout: float = DEADLINE,
        host: str = METADATA_IP,
        device: str = "",
    ) -> None:
        self.socket = namespace.open_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if device:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.settimeout(timeout)
        if low:
            bind(self.socket)
        self.socket.connect((host, 80))
        # As http.client does: else a body waits up to 40 ms for the acknowledgement of the head.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = http.client.HTTPConnection(METADATA_IP)
        self._http.sock = self.socket
        # Another connection would begin in the namespace of the tests.
        self._http.auto_open = 0
        self.token = ""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request, with the token of :meth:`get_token`; *body* is JSON unless bytes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            named.setdefault(TOKEN, self.token)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._http.request(method, f"/dfmeta/v1{path}", body=data, headers=named)
        reply = self._http.getresponse()
        return Reply(status=reply.status, headers=tuple(reply.getheaders()), body=reply.read())

    def get_token(self, **headers: str) -> Reply:
        """Ask for a token, and use it from now on."""
        reply = self.ask("PUT", "/token", **{TTL: "60", **headers})
        self.token = reply.text if reply.status == 200 else ""
        return reply


def bind(sock: socket.socket) -> None:
    """Bind a socket to a free port below 1024."""
    first = os.getpid() + next(_PORTS)
    for step in range(len(_LOW)):
        with contextlib.suppress(OSError):
            sock.bind(("", _LOW[(first + step) % len(_LOW)]))
            return
    raise OSError(errno.EADDRINUSE, "no port below 1024 is free")


@contextlib.contextmanager
def allowed(namespace: Namespace) -> Iterator[Connection]:
    """Open a connection with a token."""
    with Connection(namespace) as connection:
        reply = connection.get_token()
        assert reply.status == 200, reply
        yield connection


def is_ready(namespace: Namespace) -> bool:
    """Whether a VM can have attachments now.

    For polls: a connection that a change of the VM's port cut off must not be waited for.
    """
    try:
        with Connection(namespace, timeout=2) as connection:
            connection.get_token()
            reply = connection.ask("GET", "/status")
    except (OSError, http.client.HTTPException):
        return False
    return reply.status == 200 and bool(json.loads(reply.body)["ready"])
