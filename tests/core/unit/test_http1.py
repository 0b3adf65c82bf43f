"""A guest's bytes should be read as one whole HTTP/1 request, or refused; nothing in between."""

from collections.abc import Iterator
from typing import Any

import pytest

from dfmeta.errors import BadRequestError
from dfmeta.http.http1 import CHUNK_LINE_MAX, LIMITS, Body, Head, HeadLimits, find_end, parse_head

HOST = b"Host: 169.254.169.254\r\n"
BODY_MAX = 64


def get(headers: bytes = b"", *, line: bytes = b"GET / HTTP/1.1", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + headers + b"\r\n"


def chunked(body: bytes, extra: bytes = b"") -> bytes:
    return get(b"Transfer-Encoding: chunked\r\n" + extra, line=b"POST / HTTP/1.1") + body


CLOUD_INIT = get(
    b"User-Agent: Cloud-Init/22.4.2\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
    b"Connection: keep-alive\r\n",
    line=b"GET /openstack/2018-08-27/meta_data.json HTTP/1.1",
)
CURL = get(
    b"User-Agent: curl/7.88.1\r\nAccept: */*\r\n",
    line=b"GET /latest/meta-data/instance-id HTTP/1.1",
)
PASSWORD = get(
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n",
    line=b"POST /openstack/2013-04-04/password HTTP/1.1",
)

ACCEPTED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "cloud-init": (CLOUD_INIT, {"path": "/openstack/2018-08-27/meta_data.json", "minor": 1}),
    "curl": (CURL, {"method": "GET", "keep_alive": True, "length": 0, "chunked": False}),
    "a password": (PASSWORD, {"method": "POST", "length": 4}),
    "HTTP/1.0 without Host": (b"GET / HTTP/1.0\r\n\r\n", {"minor": 0, "headers": {}}),
    "an empty Host": (get(host=b"Host:\r\n"), {"headers": {"host": ""}}),
    "a host with a port": (get(host=b"Host: h:80\r\n"), {"headers": {"host": "h:80"}}),
    "a host with no port": (get(host=b"Host: h:\r\n"), {"headers": {"host": "h:"}}),
    "a host with an escape": (get(host=b"Host: %41\r\n"), {"headers": {"host": "%41"}}),
    "an IPv6 host": (get(host=b"Host: [::1]:80\r\n"), {"headers": {"host": "[::1]:80"}}),
    "a zone": (
        get(host=b"Host: [fe80::1%eth0]:80\r\n"),
        {"headers": {"host": "[fe80::1%eth0]:80"}},
    ),
    "a longer zone": (get(host=b"Host: [fe80::1%25en.1]\r\n"), {"length": 0}),
    "a query": (
        get(line=b"GET /a?b?c=%2F HTTP/1.1"),
        {"target": "/a?b?c=%2F", "path": "/a", "query": "b?c=%2F"},
    ),
    "an empty query": (get(line=b"GET /? HTTP/1.1"), {"path": "/", "query": ""}),
    "all of a target": (
        get(line=b"GET //!\"$%25&'()*+,-./09:;<=>@AZ[\\]^_`az{|}~ HTTP/1.1"),
        {"path": "//!\"$%25&'()*+,-./09:;<=>@AZ[\\]^_`az{|}~"},
    ),
    "any token as method": (get(line=b"!#$%&'*+-.^_`|~0aZ / HTTP/1.1"), {"minor": 1}),
    "connect in lower case": (get(line=b"connect / HTTP/1.1"), {"method": "connect"}),
    "an underscore": (
        get(b"Content_Length: 5\r\nTransfer_Encoding: chunked\r\n"),
        {"length": 0, "chunked": False},
    ),
    "a name in capitals": (get(b"CONTENT-LENGTH:7\r\n"), {"length": 7}),
    "zeros before a length": (get(b"Content-Length: 007\r\n"), {"length": 7}),
    "the longest length": (get(b"Content-Length: " + b"9" * 20 + b"\r\n"), {"length": 10**20 - 1}),
    "chunks in any case": (
        get(b"Transfer-Encoding: \tChUnKeD \r\n"),
        {"chunked": True, "length": 0},
    ),
    "close": (get(b"Connection: close\r\n"), {"keep_alive": False}),
    "close among others": (get(b"Connection: TE,\t CLOSE ,x\r\n"), {"keep_alive": False}),
    "close in a second line": (
        get(b"Connection: keep-alive\r\nConnection: close\r\n"),
        {"keep_alive": False},
    ),
    "closed": (get(b"Connection: closed, x-close\r\n"), {"keep_alive": True}),
    "HTTP/1.0": (get(line=b"GET / HTTP/1.0"), {"keep_alive": False}),
    "HTTP/1.0 kept": (
        get(b"Connection: Keep-Alive\r\n", line=b"GET / HTTP/1.0"),
        {"keep_alive": True},
    ),
    "HTTP/1.0 kept and closed": (
        get(b"Connection: keep-alive, close\r\n", line=b"GET / HTTP/1.0"),
        {"keep_alive": False},
    ),
    "Expect": (get(b"Expect: 100-Continue\r\n"), {"expects_continue": True}),
    "another Expect": (get(b"Expect: 200-ok\r\n"), {"expects_continue": False}),
    "Expect in HTTP/1.0": (
        get(b"Expect: 100-continue\r\n", line=b"GET / HTTP/1.0"),
        {"expects_continue": False},
    ),
    "a tab and Latin-1 in a value": (
        get(b"X: \t\x85\xa0 a\tb \xff\xa0\x85\t \r\n"),
        {"headers": {"host": "169.254.169.254", "x": "\x85\xa0 a\tb \xff\xa0\x85"}},
    ),
    "repeated headers": (
        get(b"a: 1\r\nB:2\r\nA:\r\nA: 3,4\r\n"),
        {"headers": {"host": "169.254.169.254", "a": "1, , 3,4", "b": "2"}},
    ),
}

LINES = {
    "HTTP/0.9": b"GET /",
    "no method": b" / HTTP/1.1",
    "no target": b"GET  HTTP/1.1",
    "two blanks behind the target": b"GET /  HTTP/1.1",
    "a blank in the target": b"GET /a b HTTP/1.1",
    "a tab for a blank": b"GET\t/ HTTP/1.1",
    "a separator in the method": b"GE(T / HTTP/1.1",
    "CONNECT with a path": b"CONNECT / HTTP/1.1",
    "an absolute target": b"GET http://h/ HTTP/1.1",
    "a fragment": b"GET /a#b HTTP/1.1",
    "Latin-1 in the target": b"GET /\xe9 HTTP/1.1",
    "DEL in the target": b"GET /\x7f HTTP/1.1",
    "half an escape": b"GET /%2 HTTP/1.1",
    "no hexadecimal escape": b"GET /%2g HTTP/1.1",
    "a broken escape in the query": b"GET /?%zz HTTP/1.1",
    "HTTP/1.2": b"GET / HTTP/1.2",
    "HTTP/1.10": b"GET / HTTP/1.10",
    "HTTP in lower case": b"GET / http/1.1",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
HEADERS = {
    "a folded line": b"A: b\r\n c\r\n",
    "a line of blanks": b"A: b\r\n \r\n",
    "a blank before the colon": b"A : b\r\n",
    "no colon": b"A\r\n",
    "no name": b": b\r\n",
    "a separator in a name": b"A(b: c\r\n",
    "a NUL in a value": b"A: b\x00c\r\n",
    "a bare LF": b"A: b\nC: d\r\n",
    "a bare CR": b"A: b\rC: d\r\n",
    "two CRs": b"A: b\r\r\n",
    "LF CR": b"A: b\n\r",
    "DEL in a value": b"A: \x7f\r\n",
    "a second Host": b"Host: other\r\n",
    "an empty Host besides": b"host:\r\n",
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "the same length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n",
    "an empty length and one": b"Content-Length:\r\nContent-Length: 5\r\n",
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "an empty length": b"Content-Length:\r\n",
    "a length with a sign": b"Content-Length: +5\r\n",
    "a length of other digits": b"Content-Length: \xb2\r\n",
    "a length of 21 digits": b"Content-Length: " + b"0" * 21 + b"\r\n",
    "another coding": b"Transfer-Encoding: gzip\r\n",
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n",
    "chunked in two lines": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunked and nothing": b"Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n",
    "an empty coding": b"Transfer-Encoding:\r\n",
    "chunked with other white space": b"Transfer-Encoding: \xa0chunked\r\n",
    "chunked behind NEL": b"Transfer-Encoding: chunked\x85\r\n",
}
HOSTS = {
    "no Host": b"",
    "a blank": b"Host: a b\r\n",
    "a user": b"Host: u@h\r\n",
    "a path": b"Host: h/a\r\n",
    "Latin-1": b"Host: h\xe9\r\n",
    "two ports": b"Host: h:1:2\r\n",
    "a port that is none": b"Host: h:http\r\n",
    "an open bracket": b"Host: [::1\r\n",
    "nothing in brackets": b"Host: []\r\n",
    "something behind the brackets": b"Host: [::1]a\r\n",
    "an IPv6 host without brackets": b"Host: fe80::a9fe:a9fe\r\n",
    "a zone with a path": b"Host: [fe80::a9fe:a9fe%25eth0/a]\r\n",
    "a port of an IPv6 host that is none": b"Host: [fe80::a9fe:a9fe%25eth0]:http\r\n",
    "a broken escape": b"Host: %4\r\n",
    "a folded first line": b" Host: h\r\n",
    "a first line that begins with a tab": b"\tHost: h\r\n",
    "a first line of blanks": b"  \r\nHost: h\r\n",
}
HEADS = {
    "an empty first line": b"\r\n" + get(),
    "a blank first": b" " + get(),
    "a BOM first": b"\xef\xbb\xbf" + get(),
    "no CR anywhere": get().replace(b"\r", b""),
    "no LF anywhere": get().replace(b"\n", b""),
    "a blank line of LF": get()[:-2] + b"\n\r\n",
    "a bare LF behind the request line": b"GET / HTTP/1.1\n" + HOST + b"\r\n",
    "a wrong Host in HTTP/1.0": get(line=b"GET / HTTP/1.0", host=b"Host: a/b\r\n"),
    "chunks in HTTP/1.0": get(b"Transfer-Encoding: chunked\r\n", line=b"POST / HTTP/1.0"),
    "nothing but a blank line": b"\r\n\r\n",
}
REFUSED = (
    {f"line: {name}": get(line=line) for name, line in LINES.items()}
    | {f"header: {name}": get(lines) for name, lines in HEADERS.items()}
    | {f"host: {name}": get(host=line) for name, line in HOSTS.items()}
    | {f"head: {name}": head for name, head in HEADS.items()}
)
BODIES: dict[str, tuple[bytes, bytes]] = {
    "nothing": (get(), b""),
    "a length of none": (get(b"Content-Length: 0\r\n"), b""),
    "a length": (get(b"Content-Length: 5\r\n") + b"ab\r\n\x00", b"ab\r\n\x00"),
    "no chunk": (chunked(b"0\r\n\r\n"), b""),
    "chunks": (chunked(b"3\r\nabc\r\n0a\r\n0\r\n\r\nGET /\r\n0\r\n\r\n"), b"abc0\r\n\r\nGET /"),
    "digits in both cases": (
        chunked(b"B\r\n" + b"x" * 11 + b"\r\nb\r\n" + b"y" * 11 + b"\r\n0\r\n\r\n"),
        b"x" * 11 + b"y" * 11,
    ),
    "sixteen digits": (chunked(b"0000000000000001\r\na\r\n0000000000000000\r\n\r\n"), b"a"),
    "extensions": (chunked(b'1;a;b=c\t;d="e f"\r\nx\r\n0;\r\n\r\n'), b"x"),
    "trailers": (chunked(b"1\r\nx\r\n0\r\nA: b\r\nX-Y:\t\xff\r\n\r\n"), b"x"),
    "as much as there may be": (chunked(b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n"), b"x" * 64),
}
BAD_BODIES = {
    "no size": b"\r\n",
    "a size with a sign": b"+5\r\n",
    "a blank before the size": b" 5\r\n",
    "a blank before an extension": b"5 ;a\r\n",
    "no hexadecimal size": b"g\r\n",
    "a size of 17 digits": b"0" * 16 + b"1\r\n",
    "Latin-1 in an extension": b"1;\xe9\r\n",
    "a bare CR in an extension": b"1;a\rb\r\n",
    "a size line that ends with LF": b"1\n",
    "a size line that ends with two CRs": b"1\r\r\n",
    "a chunk that is too long": b"1\r\nab\r\n",
    "a chunk with a bare LF behind it": b"1\r\na\n",
    "a chunk with a CR and more behind it": b"1\r\na\rb",
    "a folded trailer": b"0\r\nA: b\r\n c\r\n\r\n",
    "a trailer that begins with a blank": b"0\r\n A: b\r\n\r\n",
    "a trailer without a colon": b"0\r\nA\r\n\r\n",
    "a blank before a trailer's colon": b"0\r\nA : b\r\n\r\n",
    "a NUL in a trailer": b"0\r\nA: \x00\r\n\r\n",
    "a bare CR in a trailer": b"0\r\nA: b\rC: d\r\n\r\n",
    "a blank line of LF": b"0\r\n\n",
    "a length in a trailer": b"0\r\nContent-Length: 5\r\n\r\n",
    "a coding in a trailer": b"0\r\nTRANSFER-ENCODING: chunked\r\n\r\n",
    "a host in a trailer": b"0\r\nHost: h\r\n\r\n",
}


def read(pieces: list[bytes], limits: HeadLimits = LIMITS) -> tuple[Head, Body] | None:
    """Read what comes in *pieces* as a server does; None while something is missing."""
    buffer, looked = bytearray(), 0
    for index, piece in enumerate(pieces):
        buffer += piece
        end = find_end(buffer, limits, looked)
        looked = len(buffer)
        if end >= 0:
            head = parse_head(memoryview(bytes(buffer))[:end], limits)
            body = Body(head.body_length, BODY_MAX, limits=limits)
            for rest in (bytes(buffer[end:]), *pieces[index + 1 :]):
                body.feed(rest)
            return (head, body) if body.done else None
    return None


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """*data* as a whole, in two pieces of each length, and byte by byte."""
    yield [data]
    yield from ([data[:place], data[place:]] for place in range(1, len(data)))
    yield [data[place : place + 1] for place in range(len(data))]


def refusal(data: bytes, limits: HeadLimits = LIMITS) -> tuple[int, str]:
    """Status and reason that *data* is refused with, whatever pieces it comes in."""
    found = set()
    for pieces in cuts(data):
        try:
            read(pieces, limits)
        except BadRequestError as error:
            found.add((error.status, error.reason))
        else:
            pytest.fail(f"accepted or waited for: {pieces}")
    assert len(found) == 1, found
    return found.pop()


def test_a_well_formed_request_is_read() -> None:
    for name, (raw, fields) in ACCEPTED.items():
        assert find_end(raw, LIMITS) == len(raw), name
        head = parse_head(raw)
        assert {field: getattr(head, field) for field in fields} == fields, name


def test_a_malformed_request_is_refused_in_any_pieces() -> None:
    for name, head in REFUSED.items():
        assert refusal(head) == (400, "malformed"), name
        with pytest.raises(BadRequestError) as caught:
            parse_head(head)
        assert caught.value.status == 400, name
    for name, body in BAD_BODIES.items():
        assert refusal(chunked(body)) == (400, "malformed"), name


def test_a_body_is_read_in_any_pieces_and_the_next_request_is_kept() -> None:
    for name, (raw, content) in BODIES.items():
        for pieces in cuts(raw + get()):
            done = read(pieces)
            assert done is not None, name
            assert (done[1].content, done[1].rest) == (content, get()), name


def test_incomplete_request_is_awaited() -> None:
    for raw in (*(raw for raw, _content in BODIES.values()), CLOUD_INIT, PASSWORD + b"x"):
        whole = read([raw])
        for place in range(len(raw)):
            assert read([raw[:place]]) is None, (raw, place)
        assert whole is None or whole[1].rest == b""


def test_a_refusal_quotes_nothing_that_the_guest_sent() -> None:
    for raw in (get(b"Sec ret: x\r\n"), get(line=b"SECRET secret HTTP/1.1")):
        with pytest.raises(BadRequestError) as caught:
            parse_head(raw)
        assert "secret" not in str(caught.value).lower()
        assert str(caught.value) == f"refused with 400: {caught.value.cause}"


def test_a_head_that_does_not_end_with_its_blank_line_is_refused() -> None:
    heads = b"", b"abc", b"\r\n", get()[:-1], get() + b"x", get() + get(), b"GET / HTTP/1.1\r\n"
    for raw in heads:
        with pytest.raises(BadRequestError, match="blank line"):
            parse_head(raw)


SMALL = HeadLimits(request_line=40, header=60, lines=3)


def with_line(length: int) -> bytes:
    return get(line=b"GET /".ljust(length - 9, b"a") + b" HTTP/1.1")


def with_header(length: int, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return get(b"A: ".ljust(length - len(HOST) - 2, b"b") + b"\r\n", line=line)


def trailers(lines: bytes) -> bytes:
    return chunked(b"0\r\n" + lines)


LONGEST = b"GET /" + b"a" * 26 + b" HTTP/1.1"
FULL, TWO = b"A: " + b"b" * 55, b"A: " + b"b" * 30 + b"\r\nA: " + b"b" * 20
"""Trailers."""
MANY, EXTENDED = b"1\r\nx\r\n" * 64, b"1;" + b"a" * 59 + b"\r\nx\r\n"
"""Chunks."""
AT_LIMIT: dict[tuple[int, str], list[tuple[bytes, bytes]]] = {
    (414, "request_line"): [(with_line(40), with_line(41))],
    (431, "header"): [
        (with_header(60), with_header(61)),
        (with_header(60, LONGEST), with_header(61, LONGEST)),
        (trailers(FULL + b"\r\n\r\n"), trailers(FULL + b"b")),
        (trailers(FULL + b"\r\n\r\n"), trailers(FULL + b"\r\nA:\r\n")),
        (trailers(TWO + b"\r\n\r\n"), trailers(TWO + b"b\r\n")),
    ],
    (431, "header_lines"): [
        (get(b"A:\r\n" * 2), get(b"A:\r\n" * 3)),
        (trailers(b"A:\r\n" * 3 + b"\r\n"), trailers(b"A:\r\n" * 4)),
    ],
    (413, "body"): [
        (get(b"Content-Length: 64\r\n") + b"x" * 64, get(b"Content-Length: 65\r\n")),
        (chunked(b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n"), chunked(b"41\r\n")),
        (chunked(b"0" * 16 + b"\r\n\r\n"), chunked(b"f" * 16 + b"\r\n")),
        (chunked(MANY + b"0\r\n\r\n"), chunked(MANY + b"1\r\n")),
        (chunked(EXTENDED + b"0\r\n\r\n"), chunked(EXTENDED + b"0;\r\n\r\n")),
    ],
}
"""Status and limit → requests that fit, and requests that exceed it."""


def test_a_limit_holds_exactly() -> None:
    for how, rows in AT_LIMIT.items():
        for fits, exceeds in rows:
            for pieces in cuts(fits):
                assert read(pieces, SMALL) is not None, (how, pieces)
            assert refusal(exceeds, SMALL) == how, exceeds
    for how in ((414, "request_line"), (431, "header"), (431, "header_lines")):
        fits, exceeds = AT_LIMIT[how][0]
        assert parse_head(fits, SMALL).method == "GET"
        with pytest.raises(BadRequestError) as caught:
            parse_head(exceeds, SMALL)
        assert (caught.value.status, caught.value.reason) == how


def test_a_body_has_a_limit_of_chunks() -> None:
    for limit, chunks in ((4096, 64), (8192, 128)):
        body = Body(None, limit)
        body.feed(b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
        assert body.content == b"x" * chunks
        body = Body(None, limit)
        with pytest.raises(BadRequestError) as caught:
            body.feed(b"1\r\nx\r\n" * chunks + b"1\r\n")
        assert (caught.value.status, caught.value.reason) == (413, "chunks")


def test_a_size_line_has_a_limit_of_its_own() -> None:
    fits = b"1;" + b"a" * (CHUNK_LINE_MAX - 2)
    assert read([chunked(fits + b"\r\nx\r\n0\r\n\r\n")]) is not None
    for exceeds in (fits + b"a", fits + b"a\r\nx\r\n0\r\n\r\n"):
        assert refusal(chunked(exceeds)) == (400, "malformed")


def test_a_head_is_refused_as_soon_as_it_is_malformed() -> None:
    for raw, how in (
        (b"G" * 41, (414, "request_line")),
        (b"GET / HTTP/1.1\r\n" + b"a" * 61, (431, "header")),
        (b"GET / HTTP/1.1\r\nA:\r\nB:\r\nC:\r\nD:\r\n", (431, "header_lines")),
        (b"GET / HTTP/1.1\n", (400, "malformed")),
        (b"GET / HTTP/1.1\r\nA\rB", (400, "malformed")),
        (b"GET / HTTP/1.1\r\nA: \x00", (400, "malformed")),
        (b"GET /\t", (400, "malformed")),
        (b"GET /\xff", (400, "malformed")),
        (b"GET / HTTP/1.1\r\nA: b\r\n ", (400, "malformed")),
        (b"GET / HTTP/1.1\r\n\t", (400, "malformed")),
        (b"\r", (400, "malformed")),
        (b"\x16", (400, "malformed")),
    ):
        assert read([raw[:-1]], SMALL) is None, raw
        assert refusal(raw, SMALL) == how, raw


def test_bytes_behind_a_head_are_not_examined() -> None:
    for rest in (b"\x00\r\r\n\n", b"\n" * 100, b"x" * 20_000):
        assert find_end(get() + rest, LIMITS) == len(get())


class Watched(bytearray):
    looked = 0

    def _span(self, start: int = 0, stop: int | None = None) -> int:
        return max(min(len(self) if stop is None else stop, len(self)) - start, 0)

    def find(self, sub: Any, start: Any = 0, stop: Any = None) -> int:
        found = super().find(sub, start, len(self) if stop is None else stop)
        self.looked += self._span(start, stop if found < 0 else found + 1)
        return found

    def count(self, sub: Any, start: Any = 0, stop: Any = None) -> int:
        self.looked += self._span(start, stop)
        return super().count(sub, start, len(self) if stop is None else stop)

    def __getitem__(self, key: Any) -> Any:
        self.looked += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        return super().__getitem__(key)


def looked_at(raw: bytes, limits: HeadLimits = LIMITS) -> list[int]:
    """How many bytes each call looks at when a head comes byte by byte."""
    buffer, counts = Watched(), []
    for place in range(len(raw)):
        buffer += raw[place : place + 1]
        buffer.looked = 0
        assert (find_end(buffer, limits, place) >= 0) == (place == len(raw) - 1)
        counts.append(buffer.looked)
    return counts


def test_bytes_of_a_head_are_examined_once() -> None:
    # Near the header's limit each call must know how long the request line is, no more.
    long, many = get(b"A: " + b"b" * 8000 + b"\r\n"), get(b"A: b\r\n" * 63)
    for raw, most in ((long, 20 * len(long)), (many, (12 + many.count(b"\n")) * len(many))):
        counts = looked_at(raw)
        assert sum(counts) < most
        assert sum(1 for count in counts if count > 100) <= raw.count(b"\n") + 1
