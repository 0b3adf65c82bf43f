"""The WSGI environment of a request (PEP 3333).

Trust: headers, path and body come from the client.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from dfmeta.http.http1 import Head

SAME_HOST = "dfmeta.same_host"
"""Environment key: whether a request to the admin listener comes from this host."""
ENDS = "dfmeta.ends"
"""Environment key: address and port of the client, and those of the admin listener that it has
connected to; empty if the client has disconnected."""
KEYS = 256
"""Header names with a cached environment key."""
_SAME: Final[Mapping[str, Any]] = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}
"""The part of the environment that is the same for every request."""


@functools.lru_cache(KEYS)
def _key(name: str) -> str:
    """Return the environment key of a header; empty if it has none (RFC 3875, 4.1.18)."""
    # "a_b" and "a-b" have the same key: only the spelling with hyphens counts.
    if "_" in name or name in ("content-type", "content-length"):
        return ""
    return "HTTP_" + name.upper().replace("-", "_")


class Incoming(io.IOBase):
    """``wsgi.input`` (PEP 3333), limited to one read of the whole body.

    A body that the application does not read is not received at all: its connection is closed
    after the answer.

    :param take: read the body, of at most this many bytes, from the connection; raises
        BadRequestError. None: there is no body.
    """

    def __init__(self, take: Callable[[int], bytes] | None) -> None:
        self.done = take is None
        """Whether the body is read, so that the next request follows."""
        self.asked = 0
        """Limit in bytes of the application's read."""
        self._take = take

    def read(self, size: int = -1) -> bytes:
        """Return the whole body; empty once it has been read.

        :param size: largest size in bytes, where the application sets it.
        :raises BadRequestError: when the body is malformed, too long or not complete in time.
        """
        if self.done or self._take is None:
            return b""
        self.asked = max(size, 0)
        content = self._take(self.asked)
        self.done = True
        return content

    def close(self) -> None:
        """Drop the reference to the connection, which would form a cycle with this object."""
        if self._take is not None:
            self._take = None
            super().close()

    def readline(self, size: int | None = -1, /) -> bytes:
        """Refuse to read single lines.

        :raises io.UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation("a body is read whole, not in lines")


NO_BODY: Final = Incoming(None)
"""The input of all requests without a body; it is never closed."""


def base_environ(head: Head, *, server: tuple[str, str], peer: str) -> dict[str, Any]:
    """Build the environment of a request (PEP 3333), except its body and Content-Length.

    :param server: name and port that the client connected to.
    :param peer: the client's address.
    """
    environ = {
        **_SAME,
        "REQUEST_METHOD": head.method,
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1")
        if "%" in head.path
        else head.path,
        "QUERY_STRING": head.query,
        "SERVER_NAME": server[0],
        "SERVER_PORT": server[1],
        "SERVER_PROTOCOL": "HTTP/1.1" if head.minor else "HTTP/1.0",
        "REMOTE_ADDR": peer,
        "wsgi.errors": sys.stderr,
    }
    for name, value in head.headers.items():
        key = _key(name)
        if key:
            environ[key] = value
    if "content-type" in head.headers:
        environ["CONTENT_TYPE"] = head.headers["content-type"]
    return environ
