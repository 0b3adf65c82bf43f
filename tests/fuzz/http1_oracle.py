"""What must hold of dfmeta.http.http1 for any bytes, measured against h11 and RFC 9112's grammar.

h11 is more lenient than dfmeta, so it says what may be accepted at all and how that reads; the
grammar, written down a second time as one expression, says what must be.
"""

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import h11

from dfmeta.errors import BadRequestError
from dfmeta.http.http1 import LIMITS, Body, Head, HeadLimits, find_end, parse_head

BODY_MAX = 1 << 14
WHOLE = 1 << 20
"""h11 is to refuse nothing for its length."""
STATUS = {"malformed": 400, "request_line": 414, "header": 431, "header_lines": 431, "body": 413}
BYTEWISE_MAX = 600
"""Longer input does not come byte by byte, which is slow."""
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(
    rb"(?P<method>%(token)s) /(?:[!\"$&-~]|%%[0-9A-Fa-f]{2})* HTTP/1\.(?P<minor>[01])\r\n"
    rb"(?P<fields>(?:%(token)s:[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n" % {b"token": _TOKEN}
)
_HOST = re.compile(
    rb"(?:(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
    rb"|\[[0-9A-Za-z._~!$&'()*+,;=:%-]+\])(?::[0-9]*)?"
)


class End(Enum):
    """Why no further request is read."""

    REFUSED = "refused"
    WANTING = "more must come"


@dataclass(frozen=True)
class Read:
    """One request, as far as both parsers can tell."""

    method: bytes
    target: bytes
    version: bytes
    headers: dict[bytes, bytes]
    body: bytes
    rest: bytes
    waits: bool
    """For 100 (Continue)."""
    closes: bool | None
    """None where h11 has no opinion."""


def check(data: bytes) -> list[Read]:
    """Hold every property for one connection's bytes, and give the requests that are accepted.

    :raises AssertionError: when one does not hold.
    """
    accepted: list[Read] = []
    rest = data
    while True:
        ours, theirs = _ours(rest), _theirs(rest)
        _check_grammar(rest)
        if not isinstance(ours, Read):
            assert ours is End.REFUSED or theirs is End.WANTING, (rest, theirs)
            break
        assert isinstance(theirs, Read), (rest, ours)
        assert _comparable(ours, theirs) == theirs, rest
        accepted.append(ours)
        rest = ours.rest
    whole = in_pieces([data], LIMITS)
    assert whole[1] is ours, data
    assert [body for _head, body in whole[0]] == [one.body for one in accepted], data
    narrow = _narrow(data)
    some = in_pieces([data], narrow)
    assert some[0] == whole[0][: len(some[0])], (data, narrow)
    for pieces in pieces_of(data):
        assert in_pieces(pieces, LIMITS) == whole, pieces
        assert in_pieces(pieces, narrow) == some, (pieces, narrow)
    return accepted


def _narrow(data: bytes) -> HeadLimits:
    """Limits that some input of the usual length meets; the same ones each time."""
    dice = random.Random(zlib.crc32(data))
    return HeadLimits(dice.randint(14, 60), dice.randint(0, 120), dice.randint(0, 6))


def pieces_of(data: bytes) -> Iterator[list[bytes]]:
    """Ways in which *data* can come; the same ones each time."""
    if len(data) <= BYTEWISE_MAX:
        yield [data[place : place + 1] for place in range(len(data))]
    dice = random.Random(zlib.crc32(data))
    places = sorted(dice.randint(0, len(data)) for _ in range(dice.randint(1, 6)))
    yield [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def in_pieces(pieces: Sequence[bytes], limits: HeadLimits) -> tuple[list[tuple[Head, bytes]], End]:
    """Heads and bodies that come out when a server reads *pieces*, and why there are no more."""
    out: list[tuple[Head, bytes]] = []
    buffer, looked, reading = bytearray(), 0, None
    try:
        for piece in pieces:
            if reading is None:
                buffer += piece
            else:
                reading[1].feed(piece)
            while reading is None or reading[1].done:
                if reading is not None:
                    out.append((reading[0], reading[1].content))
                    buffer, looked, reading = bytearray(reading[1].rest), 0, None
                end = find_end(buffer, limits, looked)
                looked = len(buffer)
                if end < 0:
                    break
                head = parse_head(memoryview(bytes(buffer))[:end], limits)
                reading = head, Body(head.body_length, BODY_MAX, limits=limits)
                reading[1].feed(bytes(buffer[end:]))
    except BadRequestError:
        return out, End.REFUSED
    return out, End.WANTING


def _ours(data: bytes) -> Read | End:
    try:
        end = find_end(data, LIMITS)
        if end < 0:
            return End.WANTING
        head = parse_head(data[:end], LIMITS)
        body = Body(head.body_length, BODY_MAX)
        body.feed(data[end:])
    except BadRequestError as error:
        refusal = error
    else:
        return _read(head, body) if body.done else End.WANTING
    assert STATUS[refusal.reason] == refusal.status
    return End.REFUSED


def _read(head: Head, body: Body) -> Read:
    assert head.target == (f"{head.path}?{head.query}" if "?" in head.target else head.path)
    assert len(body.content) == head.length or head.chunked
    return Read(
        head.method.encode(),
        head.target.encode(),
        b"1.%d" % head.minor,
        {name.encode(): value.encode("latin-1") for name, value in head.headers.items()},
        body.content,
        body.rest,
        head.expects_continue,
        not head.keep_alive,
    )


def _comparable(ours: Read, theirs: Read) -> Read:
    # h11 writes the coding in lower case, and keeps no connection of HTTP/1.0.
    headers = ours.headers | {
        name: value.lower() for name, value in ours.headers.items() if name == b"transfer-encoding"
    }
    closes = ours.closes if ours.version == b"1.1" and theirs.closes is not None else theirs.closes
    return Read(
        ours.method, ours.target, ours.version, headers, ours.body, ours.rest, ours.waits, closes
    )


def _theirs(data: bytes) -> Read | End:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=WHOLE)
    connection.receive_data(data)
    try:
        request = connection.next_event() if data else h11.NEED_DATA
        if not isinstance(request, h11.Request):
            return End.WANTING
        waits = connection.they_are_waiting_for_100_continue
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return End.WANTING
            body += event.data
    except h11.RemoteProtocolError:
        return End.REFUSED
    headers: dict[bytes, bytes] = {}
    for name, value in request.headers:
        headers[name] = headers[name] + b", " + value if name in headers else value
    closes = {h11.DONE: False, h11.MUST_CLOSE: True}.get(connection.their_state)
    return Read(
        request.method,
        request.target,
        request.http_version,
        headers,
        body,
        connection.trailing_data[0],
        waits,
        closes,
    )


def _check_grammar(data: bytes) -> None:
    """Exactly what RFC 9112 allows is a head, where its size allows it."""
    match = _HEAD.match(data)
    wanted = match.end() if match and _fields_agree(match) else None
    status = 0
    try:
        end = find_end(data, LIMITS)
        if end >= 0:
            parse_head(data[:end], LIMITS)
    except BadRequestError as error:
        status = error.status
    if status:
        assert status != 400 or wanted is None, data
    else:
        assert end == (-1 if wanted is None else wanted), data


def _fields_agree(match: re.Match[bytes]) -> bool:
    """Whether the headers that concern framing and routing may stand together."""
    minor = match["minor"] == b"1"
    pairs = [line.split(b":", 1) for line in match["fields"].split(b"\r\n")[:-1]]
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name.lower(), []).append(value.strip(b" \t"))
    hosts, lengths, codings = (
        found.get(name, []) for name in (b"host", b"content-length", b"transfer-encoding")
    )
    return (
        match["method"] != b"CONNECT"
        and len(hosts) in ((1,) if minor else (0, 1))
        and all(_HOST.fullmatch(host) for host in hosts)
        and len(lengths) + len(codings) <= 1
        and all(re.fullmatch(rb"[0-9]{1,20}", length) for length in lengths)
        and all(minor and coding.lower() == b"chunked" for coding in codings)
    )
