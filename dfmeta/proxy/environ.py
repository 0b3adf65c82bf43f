"""The environment of a request, as WSGI has it (PEP 3333).

Trust: headers, path and body are the client's words.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from dfmeta.model import GuestRequest
from dfmeta.proxy.exchange import Exchange
from dfmeta.proxy.http1 import Head
from dfmeta.proxy.wsgi import EXCHANGE
from dfmeta.registry import Claim

SAME_HOST = "dfmeta.same_host"
"""Key of whether a request to the admin listener comes from this host."""
KEYS = 256
"""Names of headers whose key is remembered."""


@functools.lru_cache(KEYS)
def _key(name: str) -> str:
    """The key of a header in the environment, or none (RFC 3875, 4.1.18)."""
    # Of two spellings that a key cannot tell apart, only the one with hyphens counts.
    if "_" in name or name in ("content-type", "content-length"):
        return ""
    return "HTTP_" + name.upper().replace("-", "_")


class Incoming(io.IOBase):
    """``wsgi.input`` (PEP 3333), as far as dfmeta's applications read it: once, and whole.

    A body that the application does not ask for is not read at all: its connection is closed
    behind the answer.

    :param take: reads the body from the connection, of so many bytes at most; raises
        BadRequestError. None: there is no body.
    """

    def __init__(self, take: Callable[[int], bytes] | None) -> None:
        self.done = take is None
        """Whether the next request follows at once."""
        self.asked = 0
        """Bytes that the application would have taken."""
        self._take = take

    def read(self, size: int = -1) -> bytes:
        """Return the whole body; empty once it has been read.

        :param size: bytes that it may have, where that is for the application to say.
        :raises BadRequestError: it is no body, is too long or does not come in time.
        """
        if self.done or self._take is None:
            return b""
        self.asked = max(size, 0)
        content = self._take(self.asked)
        self.done = True
        return content

    def close(self) -> None:
        """Let go of the connection, which has this: neither would be freed before the other."""
        self._take = None
        super().close()

    def readline(self, size: int | None = -1, /) -> bytes:
        """Refuse to read lines, which a body does not have.

        :raises io.UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation("a body is read whole, not in lines")


def request_of(head: Head, claim: Claim) -> GuestRequest:
    """Return a guest's request without its body.

    :param head: the guest's words.
    """
    return GuestRequest(
        head.method,
        head.path,
        query=head.query,
        headers=head.headers,
        guest_ip=str(claim.address.ip),
    )


def guest_environ(exchange: Exchange, head: Head, incoming: Incoming) -> dict[str, Any]:
    """Build the environment of a guest's request (PEP 3333).

    :param exchange: the request; applications of dfmeta read nothing else.
    :param head: the guest's words, for any other application.
    """
    guest_ip = exchange.request.guest_ip
    environ = base_environ(head, server=("169.254.169.254", "80"), peer=guest_ip)
    environ |= {"wsgi.input": incoming, EXCHANGE: exchange}
    if head.length:
        environ["CONTENT_LENGTH"] = str(head.length)
    return environ


def base_environ(head: Head, *, server: tuple[str, str], peer: str) -> dict[str, Any]:
    """Build the environment of a request (PEP 3333), but for its body and the body's length.

    :param server: name and port that the client has connected to.
    :param peer: the client's address.
    """
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1")
        if "%" in head.path
        else head.path,
        "QUERY_STRING": head.query,
        "SERVER_NAME": server[0],
        "SERVER_PORT": server[1],
        "SERVER_PROTOCOL": f"HTTP/1.{head.minor}",
        "REMOTE_ADDR": peer,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in head.headers.items():
        key = _key(name)
        if key:
            environ[key] = value
    if "content-type" in head.headers:
        environ["CONTENT_TYPE"] = head.headers["content-type"]
    return environ
