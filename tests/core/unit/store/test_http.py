"""What upstream answers should be bounded in time and size, and never be taken by half."""

from __future__ import annotations

import gzip
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dfmeta.exceptions import LookupAnswerError, LookupAwayError, StoreError
from dfmeta.store import http as lookup_http
from dfmeta.store.http import Client, Exchange, Reply
from tests.core.unit.store.lookup.support import resets
from tests.harness.certificates import Authority
from tests.harness.other_store import Last, OtherStore, reply

SECRET = "a secret nobody may see"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


def fetch(
    client: Client, store: OtherStore, *, seconds: float = 60.0, body: bytes | None = None
) -> Reply:
    headers = {"Authorization": f"Bearer {SECRET}", "Accept-Encoding": "identity"}
    deadline = time.monotonic() + seconds
    return client.exchange(Exchange(f"{store.url}/x?y=%3A", headers, body, deadline))


def test_an_answer_comes_as_it_is(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: reply(b"\x00\xff", kind="Text/Plain; charset=x", status=418)
    found = fetch(client, store)
    assert found == Reply(418, "text/plain", b"\x00\xff", whole=True)
    assert store.targets() == ["/x?y=%3A"]
    assert store.asked[0].headers["authorization"] == f"Bearer {SECRET}"


def test_a_path_outside_ascii_is_escaped(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: reply({})
    deadline = time.monotonic() + 60
    client.exchange(Exchange(f"{store.url}/ä/%3A?ö=1", {}, deadline=deadline))
    assert store.targets() == ["/%C3%A4/%3A?%C3%B6=1"]


def test_a_connection_is_used_again(store: OtherStore, client: Client) -> None:
    store.answer = lambda asked: reply({"method": asked.method, "body": asked.body})
    assert fetch(client, store).body == b'{"method": "GET", "body": ""}'
    assert fetch(client, store, body=b"a=b").body == b'{"method": "POST", "body": "a=b"}'
    assert store.connections == 1


def test_one_that_was_closed_meanwhile_costs_no_answer(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: reply({})
    fetch(client, store)
    store.stop()
    store.start()
    assert fetch(client, store).status == 200
    assert store.connections == 2


def test_one_that_was_idle_for_long_is_not_used(store: OtherStore) -> None:
    store.answer = lambda _asked: reply({})
    clock = [time.monotonic()]
    client = Client(clock=lambda: clock[0])
    fetch(client, store)
    clock[0] += lookup_http.IDLE
    fetch(client, store, seconds=100)
    assert store.connections == 2
    client.close()


def test_a_name_is_resolved_within_the_time_that_is_left(store: OtherStore) -> None:
    asked: list[tuple[str, int, float]] = []

    def resolve(host: str, port: int, seconds: float) -> list[tuple[Any, ...]]:
        asked.append((host, port, seconds))
        if len(asked) > 1:
            raise socket.gaierror(socket.EAI_AGAIN, "no nameserver has answered in time")
        return socket.getaddrinfo("127.0.0.1", port, 0, socket.SOCK_STREAM)

    store.answer = lambda _asked: Last(reply({}))
    port = int(store.url.rpartition(":")[2])
    client = Client(clock=lambda: 100.0, resolve=resolve)
    exchange = Exchange(f"http://upstream.example:{port}/", {}, None, deadline=103.0)
    assert client.exchange(exchange).status == 200
    with pytest.raises(LookupAwayError, match="no nameserver has answered in time"):
        client.exchange(exchange)
    assert asked == [("upstream.example", port, 3.0)] * 2
    client.close()


def test_an_answer_in_chunks_is_put_together(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: CHUNKED + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    assert fetch(client, store).body == b"abc"
    assert fetch(client, store).whole
    assert store.connections == 1


def test_one_without_a_length_is_not_known_to_be_whole(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: Last(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert fetch(client, store) == Reply(200, "", b"abc", whole=False)


def test_one_that_says_that_it_closes_is_read(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: Last(reply(b"abc", headers=("Connection: close",)))
    assert fetch(client, store).body == b"abc"
    assert fetch(client, store).body == b"abc"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        CHUNKED + b"9\r\nabc",
    ],
)
def test_an_answer_that_ends_early_is_none(store: OtherStore, client: Client, said: bytes) -> None:
    store.answer = lambda _asked: Last(said)
    with pytest.raises(LookupAwayError, match="before the answer was complete"):
        fetch(client, store)
    assert len(store.asked) == 1


def test_neither_is_one_that_is_reset(store: OtherStore, client: Client) -> None:
    store.answer = resets
    with pytest.raises(LookupAwayError, match="before the answer was complete"):
        fetch(client, store)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_nonsense(store: OtherStore, client: Client, said: bytes) -> None:
    store.answer = lambda _asked: Last(said)
    with pytest.raises(LookupAnswerError):
        fetch(client, store)


def test_what_is_packed_is_not_unpacked(store: OtherStore, client: Client) -> None:
    bomb = gzip.compress(b" " * (50 << 20))
    store.answer = lambda _asked: reply(bomb, headers=("Content-Encoding: gzip",))
    with pytest.raises(LookupAnswerError, match="compressed"):
        fetch(client, store)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(store: OtherStore) -> None:
    store.answer = lambda _asked: reply(b"a" * 101)
    with pytest.raises(LookupAnswerError, match="more than 100 bytes"):
        fetch(Client(body_max=100), store)


def test_neither_is_a_head_that_is_too_long(store: OtherStore) -> None:
    store.answer = lambda _asked: Last(b"HTTP/1.1 200 OK\r\n" + b"X: %s\r\n" % (b"a" * 60000) * 2)
    with pytest.raises(LookupAnswerError, match="more than 100 bytes"):
        fetch(Client(body_max=100), store)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n"),
        (CHUNKED, b"5\r\nabcde\r\n"),
    ],
)
def test_all_of_an_answer_has_to_come_in_time(
    store: OtherStore, client: Client, start: bytes, piece: bytes
) -> None:
    store.answer = lambda _asked: store.trickle(start, piece)
    began = time.monotonic()
    with pytest.raises(LookupAwayError, match="no answer in time"):
        fetch(client, store, seconds=0.3)
    assert 0.2 < time.monotonic() - began < 10


def test_a_redirection_is_not_followed(store: OtherStore, client: Client) -> None:
    store.answer = lambda _asked: reply({}, status=302, headers=(f"Location: {store.url}/z",))
    assert fetch(client, store).status == 302
    assert store.targets() == ["/x?y=%3A"]


def test_a_proxy_of_the_environment_is_not_used(
    store: OtherStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    store.answer = lambda _asked: reply({})
    client = Client()
    assert fetch(client, store).status == 200
    client.close()


def test_nobody_there_is_said_to_be_so(store: OtherStore, client: Client) -> None:
    store.stop()
    with pytest.raises(LookupAwayError, match="refused") as caught:
        fetch(client, store)
    assert caught.value.fields["whole"] is True


def test_a_certificate_is_checked(authority: Authority) -> None:
    with OtherStore(lambda _: reply({}), tls=authority.issue("localhost")) as store:
        with pytest.raises(LookupAwayError, match="not trusted"):
            fetch(Client(), store)
        context = ssl.create_default_context(cafile=str(authority.certificate))
        client = Client(context=context)
        assert fetch(client, store).status == 200
        assert store.asked[0].headers["host"] == store.url.removeprefix("https://")
        client.close()


@pytest.mark.parametrize("tls", [True, False])
def test_the_systems_authorities_are_read_once_and_for_https_alone(
    authority: Authority, store: OtherStore, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    read: list[str] = []

    def note() -> ssl.SSLContext:
        read.append("authorities")
        return ssl.create_default_context(cafile=str(authority.certificate))

    monkeypatch.setattr(lookup_http, "client_context", note)
    client = Client(tls=tls)
    assert len(read) == tls
    store.answer = lambda _asked: reply({})
    assert fetch(client, store).status == 200
    assert len(read) == tls
    with OtherStore(lambda _: reply({}), tls=authority.issue("localhost")) as secure:
        assert fetch(client, secure).status == 200
        assert fetch(client, secure).status == 200
    assert len(read) == 1
    client.close()


def test_and_its_name(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        OtherStore(lambda _: reply({}), tls=authority.issue("another.example.org")) as store,
        pytest.raises(LookupAwayError, match="not trusted"),
    ):
        fetch(Client(context=context), store)


def test_no_secret_is_in_a_repr_or_an_error(store: OtherStore, client: Client) -> None:
    exchange = Exchange("http://x", {"Authorization": SECRET}, SECRET.encode())
    assert SECRET not in repr(exchange)
    store.answer = lambda _asked: reply(SECRET.encode())
    assert SECRET not in repr(fetch(client, store))
    store.answer = lambda _asked: Last(SECRET.encode() + b"\r\n")
    with pytest.raises(StoreError) as caught:
        fetch(client, store)
    assert SECRET not in str(caught.value)
