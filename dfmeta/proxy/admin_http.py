"""HTTP on the admin listener: eventlet's server, stricter about where a body ends.

Trust: none; whoever reaches the listener may send anything, with a token or without.
"""

from __future__ import annotations

import io
import re
from typing import Any, Final

from eventlet import wsgi

from dfmeta.store.bodies import HANG_UP, LINGER_BYTES

SIZE_LINE: Final = 1024
"""Bytes of the line before a chunk, its extensions included."""
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")


class StrictProtocol(wsgi.HttpProtocol):  # type: ignore[misc]  # eventlet has no types
    """eventlet's, but an application can have the connection closed after its answer."""

    def get_environ(self) -> dict[str, Any]:
        """Build the environment of a request (PEP 3333)."""
        environ: dict[str, Any] = super().get_environ()
        environ[HANG_UP] = self._hang_up
        source = environ["wsgi.input"]
        source.__class__ = StrictInput
        source.hang_up = self._hang_up
        return environ

    def log_message(self, *_args: object) -> None:
        """Say nothing of a request that is none: clients' words have no place in the log."""

    def _hang_up(self) -> None:
        self.close_connection = 1


class StrictInput(wsgi.Input):  # type: ignore[misc]  # eventlet has no types
    """eventlet's takes a negative size of a chunk, and reads to the connection's end then."""

    chunk_length: int
    position: int

    def _chunked_read(
        self, rfile: Any, length: int | None = None, use_readline: bool = False
    ) -> bytes:
        """Read from the chunks (RFC 9112, 7.1).

        :param use_readline: refused (io.UnsupportedOperation, an OSError): nobody reads lines.
        :raises OSError: the body ends too soon.
        :raises wsgi.ChunkReadError: a chunk does not begin or end as it should.
        """
        if use_readline:
            raise io.UnsupportedOperation("a body is read in pieces, not in lines")
        if self.should_send_hundred_continue:
            self.send_hundred_continue_response()
            self.is_hundred_continue_response_sent = True
        left = None if length is None or length < 0 else length
        found = []
        while self.chunk_length != 0 and left != 0:
            if self.chunk_length <= self.position:
                self._begin_chunk(rfile)
                continue
            inside = self.chunk_length - self.position
            data = rfile.read(inside if left is None else min(inside, left))
            if not data:
                self.chunk_length = 0
                raise OSError("the body ends in a chunk")
            self.position += len(data)
            left = None if left is None else left - len(data)
            found.append(data)
            if self.position == self.chunk_length and rfile.readline(2) != b"\r\n":
                raise self._broken("a chunk is longer than it says")
        return b"".join(found)

    def _begin_chunk(self, rfile: Any) -> None:
        line = rfile.readline(SIZE_LINE)
        size = line.partition(b";")[0].rstrip(b" \t\r\n")
        if not line.endswith(b"\n") or not _SIZE.fullmatch(size):
            raise self._broken("a chunk does not begin with its size")
        self.chunk_length, self.position = int(size, 16), 0
        if self.chunk_length == 0:
            self._discard_trailers(rfile)

    def _broken(self, cause: str) -> wsgi.ChunkReadError:
        # Where the next request begins nobody knows.
        self.chunk_length = 0
        self.hang_up()
        return wsgi.ChunkReadError(cause)

    def discard(self, buffer_size: int = 16 << 10) -> None:
        """Throw away what the application has not read, but not for ever."""
        left = LINGER_BYTES
        while left > 0 and (piece := self.read(buffer_size)):
            left -= len(piece)
        if left <= 0:
            self.hang_up()
