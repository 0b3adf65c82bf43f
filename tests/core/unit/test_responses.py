"""An answer should be read as any other client reads it, or be refused."""

import contextlib
import http.client
import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.errors import UpstreamAnswerError, UpstreamLostError
from dfmeta.http import responses
from dfmeta.http.responses import HttpResponse, read_response
from tests.harness.examples import examples

OK = b"HTTP/1.1 200 OK\r\n"


def pieces(data: bytes, size: int = 1 << 20) -> Callable[[int], bytes]:
    """A connection over which *data* comes, *size* bytes at a time, and which ends then."""
    stream = io.BytesIO(data)
    return lambda wanted: stream.read(min(size, wanted))


def read(data: bytes, size: int = 1 << 20, **options: Any) -> HttpResponse:
    return read_response(pieces(data, size), **options)


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize(
    ("data", "status", "headers", "body"),
    [
        (b"Content-Length: 2\r\n\r\n{}", 200, [("content-length", "2")], b"{}"),
        (b"Content-Length: 0\r\n\r\n", 200, [("content-length", "0")], b""),
        (b"\r\nuntil the end", 200, [], b"until the end"),
        (b"A: 1\r\nB:\t2 \r\na:3\r\n\r\n", 200, [("a", "1"), ("b", "2"), ("a", "3")], b""),
        (b"X: \xe9 y\r\n\r\n\xff", 200, [("x", "\xe9 y")], b"\xff"),
        (
            b"Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00a;x\r\n0123456789\r\n0\r\n\r\n",
            200,
            [("transfer-encoding", "Chunked")],
            b"abc0123456789",
        ),
    ],
)
def test_a_sound_answer_is_read_whole(
    data: bytes, status: int, headers: list[tuple[str, str]], body: bytes, size: int
) -> None:
    reply = read(OK + data, size)
    assert (reply.status, list(reply.headers), reply.body) == (status, headers, body)


def test_interim_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    reply = read(early + OK + b"Content-Length: 1\r\n\r\nx")
    assert (reply.status, reply.headers, reply.body) == (200, (("content-length", "1"),), b"x")
    assert not reply.keep


def test_some_answers_have_no_body_despite_their_headers() -> None:
    for status, head in ((204, False), (304, False), (200, True), (404, True), (304, True)):
        reply = read(f"HTTP/1.1 {status} x\r\nContent-Length: 99\r\n\r\n".encode(), head=head)
        assert (reply.status, reply.body, reply.keep) == (status, b"", False)
        assert reply.headers == (("content-length", "99"),)


def test_connection_is_kept_only_where_the_next_answer_is_sure() -> None:
    for data, keep in (
        (OK + b"Content-Length: 1\r\n\r\nx", True),
        (OK + b"Content-Length: 1\r\nConnection: Keep-Alive\r\n\r\nx", True),
        (OK + b"Content-Length: 1\r\nConnection: x, Close\r\n\r\nx", False),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        (OK + b"\r\nx", False),
        (OK + b"Content-Length: 1\r\n\r\nxstray", False),
        (OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", False),
        (b"HTTP/1.1 204 x\r\n\r\n", False),
        (b"HTTP/1.1 204 x\r\n\r\nstray", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", False),
    ):
        assert read(data).keep is keep, data


def test_options_of_connection_are_read() -> None:
    reply = read(OK + b"Connection: X-A ,close\r\nConnection:x-b\r\n\r\n")
    assert reply.options == {"x-a", "close", "x-b"}


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def test_malformed_or_ambiguous_answer_is_refused() -> None:
    for data in (
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"SSH-2.0-x\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/1.1 99 x\r\n\r\n",
        b"HTTP/1.1 600 x\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200 O\rK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
        OK + b"X\r\n\r\n",
        OK + b"X : y\r\n\r\n",
        OK + b"X: y\r\n folded\r\n\r\n",
        OK + b"X: a\rY: b\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: a\0\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        OK + b"Content-Length: 1, 1\r\n\r\nx",
        OK + b"Content-Length: -1\r\n\r\nx",
        OK + b"Content-Length: +1\r\n\r\nx",
        OK + b"Content-Length: 1_0\r\n\r\n0123456789",
        OK + b"Content-Length: \xb2\r\n\r\nx",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"+1\r\na\r\n0\r\n\r\n",
        CHUNKED + b"1\na\n0\n\n\r\n",
        CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
        CHUNKED + b"1\r\na\n\n0\r\n\r\n",
        CHUNKED + b"123456789\r\n",
        CHUNKED + b"0\r\nnot a trailer\r\n\r\n",
    ):
        for size in (1, 1 << 20):
            with pytest.raises(UpstreamAnswerError):
                read(data, size)
    data = b"HTTP/1.1 304 x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
    for head in (True, False):
        with pytest.raises(UpstreamAnswerError):
            read(data, head=head)


def test_server_that_speaks_tls_is_recognized() -> None:
    with pytest.raises(UpstreamAnswerError, match="speaks TLS") as caught:
        read(b"\x15\x03\x01\x00\x02\x02\x46")
    assert caught.value.fields["tls"] is True


def test_errors_quote_nothing_of_the_answer() -> None:
    for data in (b"S3CRET\r\n\r\n", OK + b"S3CRET\r\n\r\n", CHUNKED + b"S3CRET\r\n"):
        with pytest.raises(UpstreamAnswerError) as caught:
            read(data)
        assert "S3CRET" not in f"{caught.value}{caught.value.fields}"


def test_incomplete_answer_is_a_lost_connection() -> None:
    for data in (
        b"",
        b"HTTP/1.1 200 OK",
        OK,
        OK + b"Content-Length: 9\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\n12345678",
        CHUNKED,
        CHUNKED + b"1\r\na",
        CHUNKED + b"1\r\na\r\n",
        CHUNKED + b"0\r\nX: y\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ):
        with pytest.raises(UpstreamLostError) as caught:
            read(data)
        assert caught.value.fields["begun"] is (data != b""), data


BIG = b"x" * 70000


def test_header_section_has_a_bound() -> None:
    line = b"X: " + b"y" * (responses.HEAD_MAX - len(OK) - 3)
    assert len(read(OK + line + b"\r\n\r\n").headers[0][1]) == len(line) - 3
    for data in (
        OK + line + b"y\r\n\r\n",
        OK + b"X: " + BIG + b"\r\n\r\n",
        OK + b"X: " + BIG,
        b"HTTP/1.1 200 " + BIG,
        OK + b"X: y\r\n" * 256 + b"\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        CHUNKED + b"0\r\nX: " + BIG + b"\r\n\r\n",
        CHUNKED + b"1;" + BIG + b"\r\na\r\n0\r\n\r\n",
    ):
        with pytest.raises(UpstreamAnswerError, match=r"larger than|more than|too long|too many"):
            read(data, 16384)


def test_body_has_a_bound() -> None:
    for data in (
        OK + b"Content-Length: 11\r\n\r\n" + b"x" * 11,
        OK + b"\r\n" + b"x" * 11,
        CHUNKED + b"5\r\n01234\r\n6\r\n012345\r\n0\r\n\r\n",
        CHUNKED + b"ffffffff\r\n",
    ):
        with pytest.raises(UpstreamAnswerError, match="larger than 10 bytes"):
            read(data, body_max=10)
    for data in (
        OK + b"Content-Length: 10\r\n\r\n" + b"x" * 10,
        OK + b"\r\n" + b"x" * 10,
        CHUNKED + b"5\r\n01234\r\n5\r\n01234\r\n0\r\nT: 1\r\n\r\n",
    ):
        assert len(read(data, body_max=10).body) == 10, data


def test_number_of_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "CHUNKS_MAX", 3)
    assert read(CHUNKED + b"1\r\na\r\n" * 2 + b"0\r\n\r\n").body == b"aa"
    with pytest.raises(UpstreamAnswerError, match="too many chunks"):
        read(CHUNKED + b"1\r\na\r\n" * 4 + b"0\r\n\r\n")


class Wire:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def oracle(data: bytes, method: str) -> tuple[int, list[tuple[str, str]], bytes]:
    response = http.client.HTTPResponse(Wire(data), method=method)  # type: ignore[arg-type]  # a part of one
    with contextlib.closing(response):
        response.begin()
        headers = [(name.lower(), value.strip(" \t")) for name, value in response.getheaders()]
        return response.status, headers, response.read()


NAMES = st.sampled_from(
    ["Content-Length", "content-length", "Transfer-Encoding", "Connection", "X-A", "Etag", "x b"]
)
VALUES = st.one_of(
    st.sampled_from(["0", "1", "5", "5 ", "05", "+5", "5, 5", "chunked", "Chunked", "close"]),
    st.text(st.characters(min_codepoint=1, max_codepoint=0xFF), max_size=8),
)
COLONS = st.sampled_from([":", ": ", ":\t", " : ", ""])
ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n "])
LINES = st.builds("".join, st.tuples(NAMES, COLONS, VALUES, ENDS))
STARTS = st.sampled_from(
    [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 404 ",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204 x",
        "HTTP/1.1 304 x",
        "HTTP/1.1 200",
        "HTTP/1.1 1200 x",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 x",
    ]
)
SIZES = st.sampled_from([b"1", b"3", b"5", b"05", b"0", b"0", b"a", b"3;x=y", b"5 ", b"-1", b"zz"])
CHUNKS = st.builds(
    lambda size, data, end: size + b"\r\n" + data + end,
    SIZES,
    st.sampled_from([b"a", b"abc", b"abcde", b"abcdefghij", b"", b"\r\n"]),
    st.sampled_from([b"\r\n", b"\r\n", b"\n", b"xx"]),
)
BODIES = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"abcde"]), st.lists(CHUNKS, max_size=4).map(b"".join)
)


@settings(max_examples=examples(500), deadline=None)
@given(
    STARTS,
    st.lists(LINES, max_size=4),
    BODIES,
    st.sampled_from(["GET", "HEAD"]),
    st.integers(1, 40),
)
@example("HTTP/1.1 200 OK", ["Content-Length: 5\r\n"], b"abcdefgh", "GET", 3)
@example("HTTP/1.1 200 OK", ["Transfer-Encoding: chunked\r\n"], b"3\r\nabc\r\n0\r\n\r\n", "GET", 1)
@example("HTTP/1.1 200 OK", ["X-A: \x85y\r\n", "Etag: \xa0\r\n"], b"", "GET", 40)
def test_accepted_answer_is_the_one_of_http_client(
    start: str, lines: list[str], body: bytes, method: str, size: int
) -> None:
    data = f"{start}\r\n{''.join(lines)}\r\n".encode("latin-1") + body
    try:
        reply = read(data, size, head=method == "HEAD")
    except (UpstreamAnswerError, UpstreamLostError):
        return
    assert (reply.status, list(reply.headers), reply.body) == oracle(data, method)
