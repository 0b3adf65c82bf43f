"""Nothing that a client sends should make the API fail, wait or take one thing for another."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import BadRequestError
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.server import ApiServer, Connection
from tests.core.unit.store.api.support import INSTANCE, MAX_BODY, OTHER, Client, exchange, make_api
from tests.harness.examples import examples

GOOD = json.dumps(
    {"id": INSTANCE, "ipAddresses": ["10.1.2.0/28"], "metadata": {"a": [1, "é", {"b": None}]}}
).encode()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def members(**changed: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Bodies with wrong values in the place of right ones."""
    good = {name: st.just(value) for name, value in json.loads(GOOD).items()}
    return st.fixed_dictionaries(good | changed).map(lambda value: json.dumps(value).encode())


MALFORMED = st.one_of(
    st.binary(max_size=200),
    st.integers(0, len(GOOD) - 1).map(lambda at: GOOD[:at]),
    st.binary(min_size=1, max_size=9).filter(lambda junk: junk.strip(b" \t\r\n")).map(
        lambda junk: GOOD + junk
    ),
    st.tuples(st.integers(0, len(GOOD)), st.integers(0x80, 0xFF)).map(
        lambda put: GOOD[: put[0]] + bytes([put[1]]) + GOOD[put[0] :]
    ),
    members(id=ANYTHING),
    members(metadata=ANYTHING.filter(lambda value: not isinstance(value, dict))),
    members(ipAddresses=ANYTHING.filter(lambda value: value not in (None, []))),
    members(http_tokens=ANYTHING.filter(lambda value: value is not None)),
    st.integers(101, 100_000).map(lambda depth: b'{"metadata":' + b"[" * depth + b"]" * depth),
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Repository(f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db") as repository:
        yield Client(make_api(repository))


@settings(
    max_examples=examples(170),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(body=MALFORMED)
@example(body=GOOD.replace(b'"metadata"', b'"id"'))
@example(body=b"9" * 5000)
def test_a_malformed_body_is_the_clients_fault(client: Client, body: bytes) -> None:
    response = client.ask("POST", "/device-metadata", body)
    assert response.status_int == 400
    assert response.json["message"] in ("invalid request body", "Invalid request")
    assert client.get(f"/device-metadata/{INSTANCE}").status_int == 404


@settings(max_examples=examples(70), deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "DELETE", "PUT", "BREW"]),
    path=st.text(st.characters(max_codepoint=0xFF), max_size=20),
    query=st.text(st.characters(max_codepoint=0xFF), max_size=20),
    headers=st.text(st.characters(max_codepoint=0xFF), max_size=20),
)
def test_no_request_makes_the_server_fail(
    client: Client, method: str, path: str, query: str, headers: str
) -> None:
    for first in ("/device-metadata/", "/device-userdata", "/records", "/api/v1/"):
        statuses: list[str] = []
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
        list(client.application(environ, lambda status, _, to=statuses: to.append(status)))
        assert statuses[0] < "500"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(f"sqlite:///{tmp_path_factory.mktemp('served')}/store.db") as served:
        yield served
        assert served.complaints() == ""


def post(*headers: str, body: bytes = b"", path: str = "/device-metadata") -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", "Host: x", *headers))
    return head.encode("latin-1") + b"\r\n" + body


def chunked(body: bytes, *, size: int = 60_000) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize("size", [MAX_BODY + 1, 2_000_000])
@pytest.mark.parametrize("how", ["length", "chunks"])
def test_a_body_over_the_limit_is_413_to_whoever_sends_all_of_it(
    server: ApiServer, size: int, how: str
) -> None:
    body = GOOD[:-1] + b" " * (size - len(GOOD)) + b"}"
    length = f"Content-Length: {size}"
    sent = post(length, body=body) if how == "length" else post(CHUNKED, body=chunked(body))
    first, _, rest = exchange(server.port, sent).partition(b'bytes"}')
    assert first.startswith(b"HTTP/1.1 413 ")
    assert first.endswith(b'{"message":"request body over 1048576 ')
    assert rest == b""


def test_a_body_of_just_the_limit_is_taken(server: ApiServer) -> None:
    body = GOOD[:-1] + b" " * (MAX_BODY - len(GOOD)) + b"}"
    answer = exchange(server.port, post(CLOSE, f"Content-Length: {MAX_BODY}", body=body))
    assert status_of(answer) == 200


def test_413_does_not_wait_for_what_is_announced(server: ApiServer) -> None:
    for header in (f"Content-Length: {MAX_BODY + 1}", f"Content-Length: {10**15}"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
            sock.sendall(post(header))
            assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(post(f"Content-Length: {MAX_BODY + 1}", "Expect: 100-continue"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_whoever_goes_on_sending_is_hung_up_on(server: ApiServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(post(f"Content-Length: {10**15}"))
        with pytest.raises(ConnectionError):
            sock.sendall(bytes(32 * MAX_BODY))


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: -1",),
        ("Content-Length: " + "9" * 5000,),
        ("Content-Length: 5", CHUNKED),
        ("Transfer-Encoding: gzip, chunked",),
    ],
    ids=lambda headers: headers[0][:30],
)
@pytest.mark.parametrize("path", ["/device-metadata", f"/device-metadata/refresh/{INSTANCE}"])
def test_a_body_whose_end_is_not_clear_is_refused_and_nothing_follows_it(
    server: ApiServer, headers: tuple[str, ...], path: str
) -> None:
    behind = b"GET /device-metadata/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = exchange(server.port, post(*headers, body=behind, path=path))
    assert status_of(answer) == 400
    assert answer.count(b"\r\n\r\n") == 1


def test_a_body_that_ends_early_is_not_stored(server: ApiServer) -> None:
    good = GOOD.replace(INSTANCE.encode(), OTHER.encode())
    for body in (b"", good[:20], good):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
            sock.sendall(post(f"Content-Length: {len(good) + 1}", body=body))
            sock.shutdown(socket.SHUT_WR)
            assert status_of(sock.recv(65536)) == 400
    with Connection(server.port) as connection:
        assert connection.ask("GET", f"/device-metadata/{OTHER}")[0] == 404


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "invalid request body"),
        (408, "the request body did not come"),
        (413, f"request body over {MAX_BODY} bytes"),
        (503, "too many large bodies at once"),
    ],
)
def test_a_body_that_the_server_gives_up_is_refused_in_the_apis_words(
    client: Client, status: int, message: str
) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise BadRequestError(status=status, reason="malformed", cause="x")

    told: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/device-metadata",
        "CONTENT_LENGTH": "100",
        "wsgi.input": Broken(),
    }
    (body,) = client.application(environ, lambda status, _headers: told.append(status[:3]))
    assert told == [str(status)]
    assert json.loads(body) == {"message": message}


def test_a_broken_request_line_breaks_nothing(server: ApiServer) -> None:
    for line in (b"\r\n\r\n", b"x\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
        exchange(server.port, line)
    with Connection(server.port) as connection:
        assert connection.ask("GET", "/healthz")[0] == 200


def test_many_at_once_are_each_answered(server: ApiServer) -> None:
    def push(number: int) -> int:
        with Connection(server.port) as connection:
            one = f"00000000-0000-4000-8000-{number:012x}"
            status, _ = connection.ask("POST", "/device-userdata", {"id": one, "userdata": one})
            got = connection.ask("GET", f"/device-userdata/{one}")
            assert got == (200, one.encode())
            return status

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(push, range(64))) == {200}
