"""Parse HTTP/1, without I/O: RFC 9112 and RFC 9110, without leniency.

Header lines and chunked bodies are those of requests and of answers
(:mod:`dfmeta.http.responses`); the rest is about a guest's request.

If two parsers disagree on where a request ends, bytes of a guest can pass for another request. So
everything that RFC 9112 lets a server repair (a bare LF, a folded line, a list of equal lengths, an
absolute target) is refused here, and the caller must close the connection. Trust: the result is
well-formed, but every value comes from the guest.
"""

import http.client
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dfmeta.errors import (
    BadRequestError,
)
from dfmeta.model import HttpHost

CHUNK_LINE_MAX: Final = 256
"""Bytes of a chunk's size and its extensions, without the CRLF."""
CHUNKS: Final = 64
"""Chunks that a body may have, or one chunk for each 64 bytes of its limit if that is more. Reading
a chunk takes longer than reading 64 bytes."""

_BLANK: Final = b"\r\n\r\n"
_PLAIN: Final = bytes(range(0x20, 0x7F)) + b"\r\n"
_OPAQUE: Final = b"\t" + bytes(range(0x80, 0x100))
"""Further octets that are allowed in a field's value only (RFC 9110, 5.5)."""
_FIELD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*"
_FIELDS: Final = re.compile(rf"(?:\r\n{_FIELD})*")
_REQUEST_LINE: Final = re.compile(
    r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (/[!\"$-~]*) HTTP/1\.([01])",
)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NAME: Final = re.compile(r"([0-9A-Za-z\-._~!$&'()*+,;=%]*)(?::[0-9]*)?")
# In brackets, a zone is allowed as well, with an unescaped "%": Python's http.client before
# 3.13 writes "[fe80::a9fe:a9fe%eth0]" for cloud-init.
_LITERAL: Final = re.compile(r"\[[0-9A-Za-z\-._~!$&'()*+,;=%:]+\](?::[0-9]*)?")
_LENGTH: Final = re.compile(r"[0-9]{1,20}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(;[\t -~]*)?")
_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "host"})


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Size limits of a request's head."""

    request_line: int = 2048
    """Bytes of the request line, without its CRLF."""
    header: int = 8192
    """Bytes of the header section, including CRLFs, without the blank line."""
    lines: int = 64
    """Header lines."""


LIMITS: Final = HeadLimits()


class Head(NamedTuple):
    """A request line and its headers. Trust: every value comes from the guest.

    A tuple, because each request makes one: a frozen dataclass takes three times as long.
    """

    method: str
    """A token, in the guest's case (RFC 9110, 9.1); never CONNECT."""
    target: str
    """Request target in origin form (RFC 9112, 3.2.1), not decoded."""
    path: str
    """The target before the first "?"; begins with "/"."""
    query: str
    """The target after the first "?", or empty."""
    minor: int
    """Minor version of HTTP/1.x: 0 or 1."""
    headers: Mapping[str, str]
    """Names in lower case, values as Latin-1 without spaces and tabs around them; values of
    repeated headers are joined by ", ". An underscore in a name is kept, and makes another name."""
    length: int
    """Bytes of the body; 0 if there is no body or it is chunked."""
    chunked: bool
    """Whether the body is chunked (RFC 9112, 7.1)."""
    keep_alive: bool
    """Whether the guest allows another request on the connection (RFC 9112, 9.3)."""
    expects_continue: bool
    """Whether the guest waits for status 100 before it sends a body (RFC 9110, 10.1.1)."""

    @property
    def body_length(self) -> int | None:
        """Bytes of the body; None if it is chunked."""
        return None if self.chunked else self.length


def find_end(buffer: bytes | bytearray, limits: HeadLimits, start: int = 0) -> int:
    """Find the end of the head at the beginning of *buffer*; bytes after the head are not read.

    New bytes are examined once, however they are split over calls. Of the earlier bytes, a call
    reads only the request line, when it needs its end, and counts the line feeds when it has
    received another one; their number is limited.

    :param start: length of *buffer* at the previous call, which returned -1.
    :returns: the index after the blank line, or -1 when more must be read.
    :raises BadRequestError: when the bytes cannot become a valid head. Not every malformed head is
        refused here: :func:`parse_head` does the rest.
    """
    if not buffer:
        return -1
    end = buffer.find(_BLANK, max(start - 3, 0))
    whole = end >= 0
    if whole and not start:
        # Nearly every head arrives whole, and parse_head checks all of it: 4 us less.
        return end + len(_BLANK)
    stop = end + len(_BLANK) if whole else len(buffer)
    if start == 0 and buffer[0] <= 0x20:
        raise _malformed("the request does not begin with a method")
    _check_sizes(buffer, limits, start=start, stop=stop, whole=whole)
    begin = max(start - 2, 0)
    if buffer[begin : begin + 1] == b"\n":
        # Its CR is one byte earlier and was examined before.
        begin += 1
    new = buffer[begin:stop]
    _check_lines(new)
    _check_octets(buffer, new, begin)
    if (
        new.find(b"\n", start - begin) >= 0
        and buffer.count(b"\n", 0, stop) - 1 - whole > limits.lines
    ):
        raise _many_lines()
    return stop if whole else -1


def parse_head(head: bytes | bytearray | memoryview, limits: HeadLimits = LIMITS) -> Head:
    """Parse a request's head.

    :param head: from the method up to and including the blank line that :func:`find_end` found.
        Everything else is checked here.
    :raises BadRequestError: when it is not a well-formed request in origin form.
    """
    text, end = _split(bytes(head), limits)
    match = _REQUEST_LINE.fullmatch(text, 0, end)
    if match is None:
        raise _malformed("the request line is not a method, a path and HTTP/1.0 or HTTP/1.1")
    method, target, version = match.groups()
    if method == "CONNECT":
        raise _malformed("this is no proxy to connect through")
    if "%" in target and _BAD_ESCAPE.search(target):
        raise _malformed("a percent sign in the target has no two hexadecimal digits")
    minor = int(version)
    headers: dict[str, str] = {}
    for name, value in read_fields(text, end):
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    _check_host(headers, minor)
    path, _mark, query = target.partition("?")
    return Head(
        method=method,
        target=target,
        path=path,
        query=query,
        minor=minor,
        headers=headers,
        length=_length(headers),
        chunked=_chunked(headers, minor),
        keep_alive=_keep_alive(headers, minor),
        expects_continue=minor > 0 and "100-continue" in _options(headers, "expect"),
    )


class Body:
    """Reads and stores the body of one message (RFC 9112, 6 and 7.1).

    A chunked body is decoded; its extensions and trailers are checked and discarded. Trust: the
    content comes from the peer and is not checked.

    :param limit: bytes of the decoded body.
    :param length: bytes of the body; None: it is chunked.
    :param limits: limits of the trailers; ``header`` also limits all extensions of a body together.
    :param chunks: most chunks; 0: see :data:`CHUNKS`.
    :raises BadRequestError: 413 when the head announces more than *limit*.
    """

    def __init__(
        self,
        length: int | None,
        limit: int,
        *,
        limits: HeadLimits = LIMITS,
        chunks: int = 0,
    ) -> None:
        self._missing = length or 0
        if self._missing > limit:
            raise _too_large()
        self.done = length == 0
        """Whether the body is complete."""
        self.content = b""
        """The body, once done."""
        self.rest = b""
        """Bytes received after the body, once done."""
        self._limit = limit
        self._limits = limits
        self._chunked = length is None
        self._data = bytearray()
        self._buffer = bytearray()
        self._searched = 0
        # Functions, not bound methods: those would keep the body alive until the collector runs.
        self._step: Callable[[Body], bool] = Body._size
        self._chunks = chunks or max(CHUNKS, limit // CHUNKS)
        self._extensions = self._trailers = self._trailer_lines = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes, split in any way; once the body is done they go to :attr:`rest`.

        :raises BadRequestError: when the body is malformed or too long. Do not call it again then.
        """
        if self.done:
            self.rest += data
            return
        self._buffer += data
        if self._chunked:
            while self._step(self):
                pass
        elif self._take():
            self._finish()

    def _finish(self) -> None:
        self.done = True
        self.content, self.rest = bytes(self._data), bytes(self._buffer)
        self._data.clear()
        self._buffer.clear()

    def _take(self) -> bool:
        """Move missing bytes of a chunk or of the whole body; return whether none is missing."""
        piece = self._buffer[: self._missing]
        self._data += piece
        self._missing -= len(piece)
        del self._buffer[: len(piece)]
        return not self._missing

    def _line(self, limit: int, too_long: Callable[[], BadRequestError]) -> bytes | None:
        """Return the next line without its CRLF, or None if it is not complete yet.

        :raises BadRequestError: *too_long* as soon as the line must be longer than *limit*; or
            when its end is not a CRLF, or a CR is within it.
        """
        buffer = self._buffer
        end = buffer.find(b"\n", self._searched)
        length = end - 1 if end >= 0 else len(buffer) - buffer.endswith(b"\r")
        if length > limit:
            raise too_long()
        self._searched = 0 if end >= 0 else len(buffer)
        if end < 0:
            return None
        line = bytes(buffer[: end + 1])
        del buffer[: end + 1]
        if not line.endswith(b"\r\n") or line.count(b"\r") > 1:
            raise _malformed("a line of the body does not end with CRLF")
        return line[:-2]

    def _size(self) -> bool:
        line = self._line(CHUNK_LINE_MAX, _long_size)
        if line is None:
            return False
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise _malformed("a chunk does not begin with its size")
        digits, extensions = match.groups()
        self._extensions += len(extensions or b"")
        self._missing = int(digits, 16)
        self._chunks -= bool(self._missing)
        if self._extensions > self._limits.header or len(self._data) + self._missing > self._limit:
            raise _too_large()
        if self._chunks < 0:
            cause = "the body has too many chunks"
            raise BadRequestError(status=413, reason="chunks", cause=cause)
        self._step = Body._chunk if self._missing else Body._trailer
        return True

    def _chunk(self) -> bool:
        if not self._take():
            return False
        self._step = Body._chunk_end
        return True

    def _chunk_end(self) -> bool:
        if not b"\r\n".startswith(self._buffer[:2]):
            raise _malformed("a chunk is longer than its size")
        if len(self._buffer) < 2:
            return False
        del self._buffer[:2]
        self._step = Body._size
        return True

    def _trailer(self) -> bool:
        room = self._limits.header - self._trailers - 2
        line = self._line(max(room, 0), _large_header)
        if line is None:
            return False
        if not line:
            self._finish()
            return False
        self._trailers += len(line) + 2
        self._trailer_lines += 1
        if self._trailer_lines > self._limits.lines:
            raise _many_lines()
        ((name, _value),) = read_fields(f"\r\n{line.decode('latin-1')}", 0)
        if name in _FRAMING:
            raise _malformed("a trailer says where the request goes or ends")
        return True


def read_fields(text: str, start: int) -> list[tuple[str, str]]:
    """Parse header lines, each of which has a CRLF before it.

    :param start: where they begin in *text*; they end with it.
    :returns: names in lower case and values without blanks around them, in their order.
    :raises BadRequestError: when one is not a name, a colon and a value (RFC 9110, 5.5).
    """
    if not _FIELDS.fullmatch(text, start):
        raise _malformed("a header line is not a name, a colon and a value")
    fields = []
    for line in text[start + 2 :].split("\r\n") if start < len(text) else ():
        name, _colon, value = line.partition(":")
        # Not strip(): U+0085 and U+00A0 are white space to Python, and content to HTTP.
        fields.append((name.lower(), value.strip(" \t")))
    return fields


def _split(raw: bytes, limits: HeadLimits) -> tuple[str, int]:
    """Return the head without its blank line, and where its request line ends.

    Everything that :func:`find_end` checks is checked here, or by the patterns of both parts.
    """
    end = raw.find(_BLANK)
    if end < 0 or end + len(_BLANK) != len(raw):
        raise _malformed("the head does not end with its blank line")
    first = raw.find(b"\r\n")
    if first > limits.request_line:
        raise _long_line()
    if end - first > limits.header:
        raise _large_header()
    if raw.count(b"\n") - 2 > limits.lines:
        raise _many_lines()
    return raw[:end].decode("latin-1"), first


def _check_sizes(
    buffer: bytes | bytearray, limits: HeadLimits, *, start: int, stop: int, whole: bool
) -> None:
    longest = limits.request_line
    if start <= longest < stop and buffer.find(b"\r", 0, longest + 1) < 0:
        raise _long_line()
    if stop <= limits.header:
        return
    first = buffer.find(b"\n", 0, stop)
    # The blank line is not part of the section, nor is a last CR, with which it may begin.
    blank = 2 if whole else buffer.endswith(b"\r", 0, stop)
    if first >= 0 and stop - first - 1 - blank > limits.header:
        raise _large_header()


def _check_lines(new: bytes | bytearray) -> None:
    """Refuse lines in *new* that do not end with CRLF or that begin with white space.

    *new* must not begin within a CRLF.
    """
    lines = new.count(b"\r\n")
    # A last CR may still be followed by its LF.
    pending = new.endswith(b"\r")
    if new.count(b"\n") != lines or new.count(b"\r") - pending != lines:
        raise _malformed("a line does not end with CRLF")
    if b"\n " in new or b"\n\t" in new:
        raise _malformed("a header line begins with white space")


def _check_octets(buffer: bytes | bytearray, new: bytes | bytearray, begin: int) -> None:
    """Refuse octets that a head must not contain; *new* is the part of *buffer* from *begin*."""
    odd = new.translate(None, _PLAIN)
    if not odd:
        return
    if odd.translate(None, _OPAQUE):
        raise _malformed("there is a control character")
    first = buffer.find(b"\n", 0, begin + len(new))
    inside = new if first < 0 else new[: max(first - begin, 0)]
    if inside.translate(None, _PLAIN):
        raise _malformed("the request line has a character that must be escaped")


def _check_host(headers: Mapping[str, str], minor: int) -> None:
    host = headers.get("host")
    if host is None:
        if minor:
            raise _malformed("HTTP/1.1 needs a Host header")
        return
    # Repeated headers are joined with ", ": its space makes both patterns fail.
    match = _NAME.fullmatch(host)
    if match is None:
        if not _LITERAL.fullmatch(host):
            raise _malformed("the Host header is not one host with a port or without")
    elif "%" in host and _BAD_ESCAPE.search(match[1]):
        raise _malformed("a percent sign in the Host header has no two hexadecimal digits")


def _length(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length")
    if length is None:
        return 0
    # Repeated headers are joined with a comma: invalid, even if they are equal (RFC 9112, 6.3).
    if not _LENGTH.fullmatch(length):
        raise _malformed("the Content-Length header is not one number")
    return int(length)


def _chunked(headers: Mapping[str, str], minor: int) -> bool:
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False
    if "content-length" in headers or not minor:
        # Request smuggling: RFC 9112, 6.1 and 6.3.
        raise _malformed("Transfer-Encoding goes with HTTP/1.1 and without Content-Length")
    if coding.lower() != "chunked":
        raise _malformed("the Transfer-Encoding header is not chunked alone")
    return True


def _keep_alive(headers: Mapping[str, str], minor: int) -> bool:
    options = _options(headers, "connection")
    return "close" not in options and (minor > 0 or "keep-alive" in options)


def _options(headers: Mapping[str, str], name: str) -> set[str]:
    value = headers.get(name)
    return {option.strip(" \t") for option in value.lower().split(",")} if value else set()


def _malformed(cause: str) -> BadRequestError:
    return BadRequestError(status=400, reason="malformed", cause=cause)


def _long_size() -> BadRequestError:
    return _malformed("a chunk's size and extensions are too long")


def _long_line() -> BadRequestError:
    return BadRequestError(status=414, reason="request_line", cause="the request line is too long")


def _many_lines() -> BadRequestError:
    return BadRequestError(status=431, reason="header_lines", cause="there are too many headers")


def _large_header() -> BadRequestError:
    return BadRequestError(status=431, reason="header", cause="the headers are too long")


def _too_large() -> BadRequestError:
    return BadRequestError(status=413, reason="body", cause="the body is too long")


def phrase(status: int) -> str:
    """Return the reason phrase of a status (RFC 9110, 15)."""
    return http.client.responses.get(status, "Unknown")


def host_header(host: HttpHost) -> bytes:
    """Return the value of a request's Host header (RFC 9112, 3.2)."""
    # A zone is valid on this host only (RFC 6874, 1).
    authority = HttpHost(host.host.partition("%")[0], host.port).authority
    try:
        return authority.encode("idna")
    except UnicodeError:
        return authority.encode("ascii", "replace")  # it cannot be resolved
