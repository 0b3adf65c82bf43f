"""Read HTTP/1.1 answers from a connection: strictly, and only the parts that are needed.

Trust: the server is the operator's, but anything may be between it and dfmeta. An ambiguous answer
(RFC 9112, 6.3) is refused, since a guess could give one guest the end of another guest's answer.
Nothing that was received is quoted in an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dfmeta.errors import UpstreamAnswerError, UpstreamLostError

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

Receive = Callable[[int], bytes]
"""Return at least one and at most this many bytes; empty at the end of the connection."""
Headers = tuple[tuple[str, str], ...]

_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_FIELDS = re.compile(rf"(?:\r\n{_FIELD.pattern})*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_START = b"HTTP/1."
_TLS = frozenset({0x15, 0x16})
"""First byte of a TLS alert and of a handshake (RFC 8446, 5.1)."""
_BODILESS = frozenset({204, 304})
_SWITCHING = 101


class Reply(NamedTuple):
    """An answer, and its effect on the connection."""

    status: int
    headers: Headers
    """Names in lower case, with repetitions, in the order of the answer."""
    body: bytes
    options: frozenset[str]
    """Options of the Connection header, in lower case."""
    keep: bool
    """Whether the connection may carry another request."""


def read_reply(receive: Receive, *, head: bool = False, body_max: int = BODY_MAX) -> Reply:
    """Read the answer to one request.

    :param head: the request was a HEAD: no body follows, even if the headers announce one.
    :param body_max: bytes of the longest body that is accepted.
    :raises UpstreamAnswerError: when the answer is not HTTP, is ambiguous or is too large.
    :raises UpstreamLostError: when the connection ends before the answer does; its field ``begun``
        is true if a byte had been received.
    """
    stream, interim = _Stream(receive), False
    for _ in range(INTERIM_MAX):
        top = _read_top(stream.section())
        if top.status >= 200:
            break
        if top.status == _SWITCHING:
            raise _refuse("it switches protocols without a request to do so")
        interim = True
    else:
        raise _refuse(f"more than {INTERIM_MAX} interim answers")
    bodiless = head or top.status in _BODILESS
    if bodiless:
        body = b""
    elif top.chunked:
        body = _read_chunks(stream, body_max)
    elif top.length is not None:
        if top.length > body_max:
            raise _too_large(body_max)
        body = stream.take(top.length)
    else:
        body = stream.rest(body_max)
    # No request asked for an interim answer, and a body may follow where none should.
    keep = top.kept and not interim and not bodiless and not stream.data
    return Reply(top.status, tuple(top.headers), body, frozenset(top.options), keep)


def lost(*, begun: bool) -> UpstreamLostError:
    """Return the error for a connection that ended; *begun*: after a byte of the answer."""
    cause = f"it closed the connection {'in the middle of' if begun else 'without'} an answer"
    return UpstreamLostError(cause=cause, remedy="Read its log", begun=begun)


@dataclass(slots=True)
class _Top:
    """Status line and headers of an answer."""

    minor: str
    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    length: int | None = None
    chunked: bool = False
    repeated: bool = False
    """Whether it has more than one Content-Length, all of them equal."""

    @property
    def kept(self) -> bool:
        """Whether the connection may be kept, if a body with an end of its own follows."""
        framed = self.chunked or self.length is not None
        return self.minor == "1" and "close" not in self.options and framed and not self.repeated


def _read_top(section: str) -> _Top:
    first, *lines = section.split("\r\n")
    if len(lines) >= LINES_MAX:
        raise _refuse(f"more than {LINES_MAX} header lines")
    matched = _STATUS.fullmatch(first)
    if matched is None:
        raise _refuse("its status line is invalid")
    if not _FIELDS.fullmatch(section, len(first)):
        raise _refuse("a header line is invalid")
    top = _Top(matched[1], int(matched[2]))
    for line in lines:
        name, _colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        top.headers.append((name, value))
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


def _read_chunks(stream: _Stream, body_max: int) -> bytes:
    pieces: list[bytes] = []
    total = 0
    for _ in range(CHUNKS_MAX):
        matched = _CHUNK.fullmatch(stream.line())
        if matched is None:
            raise _refuse("the size of a chunk is invalid")
        size = int(matched[1], 16)
        if not size:
            stream.trailers()
            return b"".join(pieces)
        total += size
        if total > body_max:
            raise _too_large(body_max)
        piece = stream.take(size + 2)
        if piece[-2:] != b"\r\n":
            raise _refuse("a chunk does not end where its size says")
        pieces.append(piece[:-2])
    raise _refuse(f"more than {CHUNKS_MAX} chunks")


class _Stream:
    """The received bytes of a connection that have not been used yet."""

    __slots__ = ("_begun", "_receive", "_spent", "data")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._spent = 0
        self._begun = False
        self.data = bytearray()

    def section(self) -> str:
        """Take a header section; return it without the empty line at the end."""
        if not self.data:
            self._more()
        seen = 0
        while (end := self.data.find(b"\r\n\r\n", max(0, seen - 3))) < 0:
            self._check_start()
            seen = len(self.data)
            self._bound(seen)
            self._more()
        self._check_start()
        self._bound(end)
        self._spent += end
        text = self.data[:end].decode("latin-1")
        del self.data[: end + 4]
        return text

    def line(self) -> bytes:
        """Take a line; return it without its CRLF."""
        while (end := self.data.find(b"\r\n")) < 0:
            self._bound(len(self.data))
            self._more()
        self._bound(end)
        line = bytes(self.data[:end])
        del self.data[: end + 2]
        return line

    def trailers(self) -> None:
        """Take the trailer section and discard it (RFC 9110, 6.5.1)."""
        for _ in range(LINES_MAX):
            line = self.line()
            if not line:
                return
            self._spent += len(line)
            if not _FIELD.fullmatch(line.decode("latin-1")):
                raise _refuse("a trailer line is invalid")
        raise _refuse(f"more than {LINES_MAX} trailer lines")

    def take(self, size: int) -> bytes:
        """Take exactly *size* bytes."""
        if len(self.data) < size:
            pieces = [bytes(self.data)]
            have = len(self.data)
            while have < size:
                self.data.clear()
                self._more()
                pieces.append(bytes(self.data))
                have += len(self.data)
            self.data = bytearray().join(pieces)
        taken = bytes(self.data[:size])
        del self.data[:size]
        return taken

    def rest(self, body_max: int) -> bytes:
        """Take all bytes until the end of the connection."""
        while len(self.data) <= body_max:
            piece = self._receive(PIECE)
            if not piece:
                return bytes(self.data)
            self.data += piece
        raise _too_large(body_max)

    def _more(self) -> None:
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
        if self._spent + size > HEAD_MAX:
            raise _refuse(f"its header section is larger than {HEAD_MAX} bytes")


def _refuse(cause: str) -> UpstreamAnswerError:
    return UpstreamAnswerError(
        cause=f"its answer is not valid HTTP/1.1: {cause}",
        remedy="Check that Nova's metadata API listens there",
    )


def _too_large(body_max: int) -> UpstreamAnswerError:
    return UpstreamAnswerError(
        cause=f"its answer is larger than {body_max} bytes",
        remedy="Check that Nova's metadata API listens there",
    )


def _not_http(first: int) -> UpstreamAnswerError:
    if first in _TLS:
        remedy = "Set nova_metadata_protocol = https"
        return UpstreamAnswerError(cause="it speaks TLS", remedy=remedy)
    return _refuse("it does not begin with HTTP/1")
