"""Read HTTP/1.1 answers from a connection: strictly, and only the parts that are needed.

Trust: the server is the operator's, but anything may be between it and dfmeta. An ambiguous answer
(RFC 9112, 6.3) is refused, since a guess could give one guest the end of another guest's answer.
Nothing that was received is quoted in an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from dfmeta.errors import BadRequestError, UpstreamAnswerError, UpstreamLostError
from dfmeta.http.http1 import Body, HeadLimits, read_fields

HEAD_MAX = 65536
"""Bytes of a header section, including the status line and the trailers of a chunked body."""
LINES_MAX = 256
BODY_MAX = 16 << 20
"""Bytes; no metadata is that large."""
CHUNKS_MAX = 65536
"""Chunks of a body: each costs as much as a small answer."""
INTERIM_MAX = 8
"""Answers of class 1xx before the final answer."""
PIECE = 65536
"""Bytes of one read, and of those after which a greenthread yields: data that are there are read
without a wait."""

Receive = Callable[[int], bytes]
"""Return at least one and at most this many bytes; empty at the end of the connection."""
Headers = tuple[tuple[str, str], ...]

_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
_START = b"HTTP/1."
_TLS = frozenset({0x15, 0x16})
"""First byte of a TLS alert and of a handshake (RFC 8446, 5.1)."""
_BODILESS = frozenset({204, 304})


class HttpResponse(NamedTuple):
    """An answer, and its effect on the connection."""

    status: int
    headers: Headers = ()
    """Names in lower case, with repetitions, in the order of the answer."""
    body: bytes = b""
    options: frozenset[str] = frozenset()
    """Options of the Connection header, in lower case."""
    keep: bool = False
    """Whether the connection may carry another request."""
    complete: bool = True
    """Whether the body's end was announced; else it is where the connection ended."""

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"

    def header(self, name: str) -> str:
        """Return the first value of a header, by its name in lower case; empty if there is none."""
        return next((value for field_name, value in self.headers if field_name == name), "")

    @property
    def content_type(self) -> str:
        """The media type in lower case and without parameters; empty if there is none."""
        return self.header("content-type").partition(";")[0].strip().lower()


def read_response(
    receive: Receive, *, head: bool = False, body_max: int = BODY_MAX
) -> HttpResponse:
    """Read the answer to one request.

    :param head: the request was a HEAD: no body follows, even if the headers announce one.
    :param body_max: bytes of the longest body that is accepted.
    :raises UpstreamAnswerError: when the answer is not HTTP, is ambiguous or is too large.
    :raises UpstreamLostError: when the connection ends before the answer does; its field ``begun``
        is true if a byte had been received.
    """
    stream, interim = _Stream(receive), False
    for _ in range(INTERIM_MAX):
        section = stream.section()
        top = _read_top(section)
        if top.status >= 200:
            break
        if top.status == HTTPStatus.SWITCHING_PROTOCOLS:
            raise _refuse("it switches protocols without a request to do so")
        interim = True
    else:
        raise _refuse(f"more than {INTERIM_MAX} interim answers")
    bodiless = head or top.status in _BODILESS
    if bodiless:
        body = b""
    elif top.framed:
        body = _read_body(stream, top.length, body_max, HEAD_MAX - len(section))
    else:
        body = stream.rest(body_max)
    # No request asked for an interim answer, and a body may follow where none should.
    keep = top.kept and not interim and not bodiless and not stream.data
    complete = bodiless or top.framed
    return HttpResponse(
        top.status, tuple(top.headers), body, frozenset(top.options), keep, complete
    )


def lost(*, begun: bool) -> UpstreamLostError:
    """Return the error for a connection that ended; *begun*: after a byte of the answer."""
    cause = f"it closed the connection {'in the middle of' if begun else 'without'} an answer"
    return UpstreamLostError(cause=cause, begun=begun)


@dataclass(slots=True)
class _Top:
    """Status line and headers of an answer."""

    minor: str
    status: int
    headers: list[tuple[str, str]]
    options: set[str] = field(default_factory=set)
    length: int | None = None
    chunked: bool = False
    repeated: bool = False
    """Whether it has more than one Content-Length, all of them equal."""

    @property
    def framed(self) -> bool:
        """Whether the end of the body is announced."""
        return self.chunked or self.length is not None

    @property
    def kept(self) -> bool:
        """Whether the connection may be kept, if a body with an end of its own follows."""
        sound = self.framed and not self.repeated
        return sound and self.minor == "1" and "close" not in self.options


def _read_top(section: str) -> _Top:
    end = section.find("\r\n") if "\r\n" in section else len(section)
    if section.count("\n") >= LINES_MAX:
        raise _refuse(f"more than {LINES_MAX} header lines")
    matched = _STATUS.fullmatch(section, 0, end)
    if matched is None:
        raise _refuse("its status line is invalid")
    try:
        top = _Top(matched[1], int(matched[2]), read_fields(section, end))
    except BadRequestError as error:
        raise _refuse(error.cause) from None
    for name, value in top.headers:
        if name == "content-length":
            top.repeated = top.length is not None
            top.length = _length(value, top.length)
        elif name == "transfer-encoding":
            _check_coding(value, top)
            top.chunked = True
        elif name == "connection":
            top.options.update(option.strip(" \t").lower() for option in value.split(","))
    if top.chunked and top.length is not None:
        raise _refuse("it has both a Content-Length and a Transfer-Encoding")
    if top.chunked and top.status in _BODILESS:
        # Clients differ on whether chunks follow.
        raise _refuse("it has a Transfer-Encoding and can have no body")
    return top


def _length(value: str, before: int | None) -> int:
    if not _LENGTH.fullmatch(value):
        raise _refuse("its Content-Length is not a number")
    if before is not None and before != int(value):
        raise _refuse("it has Content-Lengths that differ")
    return int(value)


def _check_coding(value: str, top: _Top) -> None:
    # HTTP/1.0 has none: a proxy in between may not have understood it (RFC 9112, 6.1).
    if top.chunked or top.minor == "0" or value.lower() != "chunked":
        raise _refuse("its Transfer-Encoding is not just chunked")


def _read_body(stream: _Stream, length: int | None, body_max: int, trailers_max: int) -> bytes:
    """Take a body; *length* is None if it is chunked."""
    if length is not None and length <= len(stream.data) and length <= body_max:
        # Nearly every body arrives with its head.
        content = bytes(stream.data[:length])
        del stream.data[:length]
        return content
    limits = HeadLimits(header=trailers_max, lines=LINES_MAX)
    try:
        body = Body(length, body_max, limits=limits, chunks=CHUNKS_MAX)
        body.feed(bytes(stream.data))
        while not body.done:
            stream.data.clear()
            stream.more()
            body.feed(bytes(stream.data))
    except BadRequestError as error:
        if error.reason == "body":
            raise _too_large(body_max) from None
        raise _refuse(error.cause) from None
    stream.data[:] = body.rest
    return body.content


class _Stream:
    """The received bytes of a connection that have not been used yet."""

    __slots__ = ("_begun", "_receive", "data")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._begun = False
        self.data = bytearray()

    def section(self) -> str:
        """Take a header section; return it without the empty line at the end."""
        if not self.data:
            self.more()
        seen = 0
        while (end := self.data.find(b"\r\n\r\n", max(0, seen - 3))) < 0:
            self._check_start()
            seen = len(self.data)
            self._bound(seen)
            self.more()
        self._check_start()
        self._bound(end)
        text = self.data[:end].decode("latin-1")
        del self.data[: end + 4]
        return text

    def rest(self, body_max: int) -> bytes:
        """Take all bytes until the end of the connection."""
        while len(self.data) <= body_max:
            piece = self._receive(PIECE)
            if not piece:
                return bytes(self.data)
            self.data += piece
        raise _too_large(body_max)

    def more(self) -> None:
        """Append the bytes that arrive next.

        :raises UpstreamLostError: when the connection has ended.
        """
        piece = self._receive(PIECE)
        if not piece:
            raise lost(begun=self._begun)
        self._begun = True
        self.data += piece

    def _check_start(self) -> None:
        # Before the section is complete: a server of another protocol may never complete it.
        if not self.data.startswith(_START[: len(self.data)]):
            raise _not_http(self.data[0])

    def _bound(self, size: int) -> None:
        if size > HEAD_MAX:
            raise _refuse(f"its header section is larger than {HEAD_MAX} bytes")


def _refuse(cause: str) -> UpstreamAnswerError:
    return UpstreamAnswerError(cause=f"its answer is not valid HTTP/1.1: {cause}")


def _too_large(body_max: int) -> UpstreamAnswerError:
    return UpstreamAnswerError(cause=f"its answer is larger than {body_max} bytes")


def _not_http(first: int) -> UpstreamAnswerError:
    if first in _TLS:
        return UpstreamAnswerError(cause="it speaks TLS", tls=True)
    return _refuse("it does not begin with HTTP/1")
