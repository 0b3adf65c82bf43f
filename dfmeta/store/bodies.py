"""A request's body in WSGI (PEP 3333), bounded, and where it ends.

Trust: none. A client that says two things about where its body ends could have the rest of it
taken for another request: it is refused, and its connection closed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

from dfmeta.exceptions import ApiError

HANG_UP: Final = "dfmeta.hang_up"
"""In the environment: what has the server close the connection after the answer. Where it is not
there, that is left to the server."""
LINGER_BYTES: Final = 64 << 20
"""Of a refused body that are taken and thrown away: a client that has not sent all of it would
never see the answer, but its connection reset."""

_PIECE: Final = 64 << 10
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


class Body:
    """The body of one request.

    :param environ: of the request; headers and input are the client's.
    :param limit: bytes that it may have.
    """

    def __init__(self, environ: dict[str, Any], limit: int) -> None:
        self.environ = environ
        self._limit = limit
        self._done = False

    def check(self) -> None:
        """See that it is clear where the body ends (RFC 9112, 6.3).

        :raises ApiError: 400.
        """
        raw = self.environ.get("headers_raw", ())
        lengths = {value for name, value in raw if name.lower() == "content-length"}
        length = self.environ.get("CONTENT_LENGTH") or "0"
        if len(lengths) > 1 or not _DIGITS.fullmatch(length):
            raise self._broken("invalid Content-Length")
        coding = self.environ.get("HTTP_TRANSFER_ENCODING", "chunked")
        if coding.lower() != "chunked":
            raise self._broken("invalid Transfer-Encoding")

    def read(self) -> bytes:
        """Return all of it.

        :raises ApiError: 413 when it is over the limit, before more than that is read; 400 when it
            does not end as it said, 408 when it does not come.
        """
        length = None if self._chunked else self._length
        if length is not None and length > self._limit:
            raise ApiError(status=413, message=f"request body over {self._limit} bytes")
        try:
            body: bytes = self.environ["wsgi.input"].read(
                self._limit + 1 if length is None else length
            )
        except TimeoutError:
            raise self._broken("the request body did not come", status=408) from None
        except (OSError, ValueError):
            raise self._broken("invalid request body") from None
        if len(body) > self._limit:
            raise ApiError(status=413, message=f"request body over {self._limit} bytes")
        if length is not None and len(body) < length:
            raise self._broken("invalid request body")
        self._done = True
        return body

    def leave(self) -> Iterator[bytes]:
        """Yield nothing, while what has not been read of the body is thrown away.

        To be called before the answer is begun, and iterated over after its last byte. What a
        server throws away itself, as much as it is, is left to it.
        """
        awaited = "HTTP_EXPECT" in self.environ
        if self._done or awaited or not (self._chunked or self._length > LINGER_BYTES):
            return iter(())
        hang_up(self.environ)
        return self._thrown_away()

    def _thrown_away(self) -> Iterator[bytes]:
        left, source = LINGER_BYTES, self.environ["wsgi.input"]
        with contextlib.suppress(OSError, ValueError):
            while left > 0 and (piece := source.read(_PIECE)):
                left -= len(piece)
        yield from ()

    @property
    def _chunked(self) -> bool:
        return "HTTP_TRANSFER_ENCODING" in self.environ

    @property
    def _length(self) -> int:
        return int(self.environ.get("CONTENT_LENGTH") or 0)

    def _broken(self, message: str, *, status: int = 400) -> ApiError:
        self._done = True
        hang_up(self.environ)
        return ApiError(status=status, message=message)


def hang_up(environ: dict[str, Any]) -> None:
    """Have the server close the connection after the answer."""
    if HANG_UP in environ:
        environ[HANG_UP]()
