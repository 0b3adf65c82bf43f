"""No bytes of a client should make the API fail, wait or confuse two requests."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from eventlet.green import socket
from hypothesis import given, settings
from hypothesis import strategies as st
from webob import Request

from dfmeta.errors import ApiError, BadRequestError
from dfmeta.store.api.admin import read_body
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import (
    INSTANCE,
    MAX_BODY,
    OTHER,
    Client,
    connected,
    exchange,
    make_api,
    served,
)
from tests.core.unit.store.support import named
from tests.harness.examples import examples

GOOD = json.dumps(
    {"id": INSTANCE, "ipAddresses": ["10.1.2.0/28"], "metadata": {"a": [1, "é", {"b": None}]}}
).encode()
LATIN = st.text(st.characters(max_codepoint=0xFF), max_size=20)
LIMIT = 10
FULL = b"0123456789"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Repository(f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db") as repository:
        yield Client(make_api(repository))


@settings(max_examples=examples(70), deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "DELETE", "PUT", "BREW"]),
    path=LATIN,
    query=LATIN,
    headers=LATIN,
)
def test_no_request_makes_the_server_fail(
    client: Client, method: str, path: str, query: str, headers: str
) -> None:
    for first in ("/device-metadata/", "/device-userdata", "/records", "/api/v1/"):
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": first + path,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": headers,
            "HTTP_IF_NONE_MATCH": headers,
            "HTTP_AUTHORIZATION": headers,
            "CONTENT_LENGTH": headers,
            "wsgi.input": io.BytesIO(headers.encode()),
        }
        assert client.application(Request(environ)).status_int < 500


# Reading a body


class Failing:
    """The input of a body that the server refuses."""

    def __init__(self, status: int, reason: Any) -> None:
        self._error = BadRequestError(status=status, reason=reason, cause="its own words")

    def read(self, _size: int) -> bytes:
        raise self._error


def request_of(content: bytes | Failing, **more: str) -> Request:
    body = io.BytesIO(content) if isinstance(content, bytes) else content
    return Request.blank("/", {"wsgi.input": body, **more})


def test_a_body_of_the_limit_is_read_whole() -> None:
    for content, more in (
        (FULL, {"CONTENT_LENGTH": "10"}),
        (FULL + b" and the next request", {"CONTENT_LENGTH": "10"}),
        (FULL, {"HTTP_TRANSFER_ENCODING": "chunked"}),
    ):
        assert read_body(request_of(content, **more), LIMIT) == FULL, (content, more)


def test_a_body_that_cannot_be_read_is_refused_in_words_of_the_api() -> None:
    invalid = "invalid request body"
    for content, length, status, words in (
        (FULL + b"a", "11", 413, "request body over 10 bytes"),
        (b"012345678", "10", 400, invalid),
        (Failing(400, "chunks"), "", 413, "the request body has too many chunks"),
        (Failing(413, "body"), "", 413, "request body over 10 bytes"),
        (Failing(400, "malformed"), "", 400, invalid),
        (Failing(408, "body_timeout"), "", 408, "the request body did not come"),
        (Failing(503, "body"), "", 503, "too many large bodies at once"),
    ):
        more = {"CONTENT_LENGTH": length} if length else {}
        with named(words, status), pytest.raises(ApiError) as caught:
            read_body(request_of(content, **more), LIMIT)
        assert (caught.value.status, caught.value.message) == (status, words)


# Over a socket


@pytest.fixture
def port(repository: Repository, capsys: pytest.CaptureFixture[str]) -> Iterator[int]:
    with served(repository) as port:
        yield port
    assert capsys.readouterr().err == ""


def post(*headers: str, body: bytes = b"") -> bytes:
    lines = ("POST /device-metadata HTTP/1.1", "Host: x", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body


def chunked(body: bytes, *, size: int = 60_000) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def padded(size: int) -> bytes:
    return GOOD[:-1] + b" " * (size - len(GOOD)) + b"}"


def test_a_body_over_the_limit_is_413_to_a_client_that_sends_it_all(port: int) -> None:
    body = padded(MAX_BODY + 1)
    for sent in (
        post(f"Content-Length: {len(body)}", body=body),
        post("Transfer-Encoding: chunked", body=chunked(body)),
    ):
        first, _, rest = exchange(port, sent).partition(b'bytes"}')
        assert first.startswith(b"HTTP/1.1 413 "), sent[:80]
        assert rest == b"", sent[:80]
    taken = post("Connection: close", f"Content-Length: {MAX_BODY}", body=padded(MAX_BODY))
    assert exchange(port, taken).startswith(b"HTTP/1.1 200 ")


def test_413_does_not_wait_for_an_announced_body(port: int) -> None:
    for expect in ((), ("Expect: 100-continue",)):
        with connected(port, post(f"Content-Length: {MAX_BODY + 1}", *expect)) as sock:
            assert sock.recv(65536).startswith(b"HTTP/1.1 413 "), expect


def test_a_body_that_ends_early_is_not_stored(port: int, repository: Repository) -> None:
    good = GOOD.replace(INSTANCE.encode(), OTHER.encode())
    for body in (b"", good[:20], good):
        with connected(port, post(f"Content-Length: {len(good) + 1}", body=body)) as sock:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(65536).startswith(b"HTTP/1.1 400 "), body
    assert repository.get(OTHER) is None
