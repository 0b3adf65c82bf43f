"""What upstream answers should be bounded in time and size, and never be taken by half."""

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dfmeta.errors import UpstreamAnswerError, UpstreamAwayError, UpstreamError, UpstreamLostError
from dfmeta.http import client as http_client
from dfmeta.http.client import HttpClient, UpstreamLateError, UrlRequest
from dfmeta.http.responses import HttpResponse
from tests.core.unit.store.support import named
from tests.harness.certificates import Authority
from tests.harness.other_store import NOT_FOUND, Asked, Last, OtherStore, ResetError, reply
from tests.harness.tier import CLOCK

SECRET = "a secret nobody may see"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def store() -> Iterator[OtherStore]:
    with OtherStore() as store:
        yield store


@pytest.fixture
def client() -> HttpClient:
    return HttpClient()


def fetch(
    client: HttpClient, store: OtherStore, *, seconds: float = 60.0, body: bytes | None = None
) -> HttpResponse:
    headers = {"Authorization": f"Bearer {SECRET}", "Accept-Encoding": "identity"}
    deadline = CLOCK.now() + seconds
    return client.handle_request(UrlRequest(f"{store.url}/x?y=%3A", headers, body, deadline))


def test_an_answer_is_returned_as_it_is_and_through_no_proxy(
    store: OtherStore, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    store.answer = lambda _request: reply(b"\x00\xff", kind="Text/Plain; charset=x", status=418)
    response = fetch(client, store)
    assert (response.status, response.content_type, response.body) == (
        418,
        "text/plain",
        b"\x00\xff",
    )
    assert response.complete
    assert store.targets() == ["/x?y=%3A"]
    assert store.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    client.handle_request(UrlRequest(f"{store.url}/ä/%3A?ö=1", {}, deadline=CLOCK.now() + 60))
    assert store.targets()[1:] == ["/%C3%A4/%3A?%C3%B6=1"]


def test_bytes_behind_an_answer_are_no_answer_to_another_request(
    authority: Authority, client: HttpClient
) -> None:
    def answer(request: Asked) -> bytes:
        late = NOT_FOUND if len(store.asked) > store.connections else b""
        return late + reply({"method": request.method, "body": request.body})

    secure = HttpClient(context=ssl.create_default_context(cafile=str(authority.certificate)))
    for tls, asking in ((None, client), (authority.issue("localhost"), secure)):
        with OtherStore(answer, tls=tls) as store:
            assert fetch(asking, store).body == b'{"method": "GET", "body": ""}'
            assert fetch(asking, store, body=b"a=b").body == b'{"method": "POST", "body": "a=b"}'
            assert [request.headers["connection"] for request in store.asked] == ["close"] * 2


def test_refused_connection_fails_the_whole_store(store: OtherStore, client: HttpClient) -> None:
    store.stop()
    with pytest.raises(UpstreamAwayError, match="refused"):
        fetch(client, store)


def test_a_name_is_resolved_within_the_time_that_is_left(store: OtherStore) -> None:
    lookups: list[tuple[str, int, float]] = []

    def resolve(host: str, port: int, seconds: float) -> list[tuple[Any, ...]]:
        lookups.append((host, port, seconds))
        if len(lookups) > 1:
            raise socket.gaierror(socket.EAI_AGAIN, "no nameserver has answered in time")
        return socket.getaddrinfo("127.0.0.1", port, 0, socket.SOCK_STREAM)

    store.answer = lambda _request: Last(reply({}))
    port = int(store.url.rpartition(":")[2])
    client = HttpClient(clock=lambda: 100.0, resolve=resolve)
    request = UrlRequest(f"http://upstream.example:{port}/", {}, None, deadline=103.0)
    assert client.handle_request(request).status == 200
    with pytest.raises(UpstreamAwayError, match="no nameserver has answered in time"):
        client.handle_request(request)
    assert lookups == [("upstream.example", port, 3.0)] * 2


def test_an_answer_that_ends_early_is_an_error(store: OtherStore, client: HttpClient) -> None:
    def answer(_request: Asked) -> bytes:
        if sent is None:
            raise ResetError
        return Last(sent)

    store.answer = answer
    for sent in (
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        CHUNKED + b"9\r\nabc",
        None,
    ):
        store.asked.clear()
        with named(sent), pytest.raises(UpstreamLostError, match="closed the connection"):
            fetch(client, store)
        assert len(store.asked) == 1, sent


def test_non_http_answer_is_rejected(store: OtherStore, client: HttpClient) -> None:
    store.answer = lambda _request: CHUNKED + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    assert (fetch(client, store).body, fetch(client, store).complete) == (b"abc", True)
    store.answer = lambda _request: Last(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert (fetch(client, store).body, fetch(client, store).complete) == (b"abc", False)
    store.answer = lambda _request: reply(b"x", headers=("Content-Encoding: gzip",))
    with pytest.raises(UpstreamAnswerError, match="compressed"):
        fetch(client, store)
    for reply_bytes in [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 300 + b"\r\n",
        CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n",
    ]:
        with named(reply_bytes):
            store.answer = lambda _request, reply_bytes=reply_bytes: Last(reply_bytes)
            with pytest.raises(UpstreamAnswerError):
                fetch(client, store)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(store: OtherStore) -> None:
    long_head = b"HTTP/1.1 200 OK\r\n" + b"X: %s\r\n" % (b"a" * 60000) * 2
    for sent in (reply(b"a" * 101), Last(long_head)):
        store.answer = lambda _request, sent=sent: sent
        with named(sent), pytest.raises(UpstreamAnswerError, match="is larger than"):
            fetch(HttpClient(body_max=100), store)


def test_a_complete_answer_has_to_come_in_time(store: OtherStore, client: HttpClient) -> None:
    end = threading.Event()

    def drip(start: bytes, piece: bytes) -> Iterator[bytes]:
        yield start
        # Fewer than http.client takes headers, however many it reads at once.
        for _ in range(20):
            CLOCK.advance(1)
            yield piece
        end.wait()

    for start, piece in (
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n"),
        (CHUNKED, b"5\r\nabcde\r\n"),
    ):
        store.answer = lambda _request, start=start, piece=piece: drip(start, piece)
        with named(start, piece), pytest.raises(UpstreamLateError, match="no answer in time"):
            fetch(client, store, seconds=10)
    end.set()


def test_a_silent_server_has_a_deadline(store: OtherStore, client: HttpClient) -> None:
    go = threading.Event()

    def answer(_request: Asked) -> bytes:
        go.wait()
        return b""

    store.answer = answer
    with pytest.raises(UpstreamLateError, match="no answer in time"):
        fetch(client, store, seconds=0.05)
    go.set()


def test_a_redirection_is_not_followed(store: OtherStore, client: HttpClient) -> None:
    store.answer = lambda _request: reply({}, status=302, headers=(f"Location: {store.url}/z",))
    assert fetch(client, store).status == 302
    assert store.targets() == ["/x?y=%3A"]


def test_a_certificate_and_its_name_are_checked(
    authority: Authority, store: OtherStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def system() -> ssl.SSLContext:
        reads.append("authorities")
        return ssl.create_default_context(cafile=str(authority.certificate))

    with OtherStore(lambda _: reply({}), tls=authority.issue("localhost")) as secure:
        with pytest.raises(UpstreamAwayError, match="not trusted"):
            fetch(HttpClient(), secure)
        monkeypatch.setattr(http_client, "client_context", system)
        store.answer = lambda _request: reply({})
        client = HttpClient()
        assert fetch(client, store).status == 200
        assert reads == [], "http needs none"
        for _ in range(2):
            assert fetch(client, secure).status == 200
        assert reads == ["authorities"]
        assert secure.asked[0].headers["host"] == secure.url.removeprefix("https://")
    assert HttpClient(tls=True)
    assert len(reads) == 2, "at once"
    with (
        OtherStore(lambda _: reply({}), tls=authority.issue("another.example.org")) as other,
        pytest.raises(UpstreamAwayError, match="not trusted"),
    ):
        fetch(HttpClient(), other)


def test_no_secret_is_in_a_repr_or_an_error(store: OtherStore, client: HttpClient) -> None:
    request = UrlRequest("http://x", {"Authorization": SECRET}, SECRET.encode())
    assert SECRET not in repr(request)
    store.answer = lambda _request: reply(SECRET.encode())
    assert SECRET not in repr(fetch(client, store))
    store.answer = lambda _request: Last(SECRET.encode() + b"\r\n")
    with pytest.raises(UpstreamError) as caught:
        fetch(client, store)
    assert SECRET not in str(caught.value)
