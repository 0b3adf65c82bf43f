"""Connections to Nova: kept while they are sound, trusted when they show that Nova is there."""

import socket as real_socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket

from dfmeta.errors import BackendUnreachableError
from dfmeta.http.pool import PooledServer
from dfmeta.model import HttpHost
from dfmeta.proxy.backends import nova
from dfmeta.runtime import clock
from tests.core.unit.nova_support import OTHER, PASSWORD, Counted, answering, ask
from tests.core.unit.support import INSTANCE, until
from tests.core.unit.upstream import OK, Asked, Upstream, server_context
from tests.harness.certificates import Authority


@pytest.fixture
def listening() -> Iterator[Any]:
    """A listener that nobody attends: connections come to be, and nothing is ever said."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


@pytest.fixture
def secure(upstreams: Any, authority: Authority) -> Callable[..., Upstream]:
    """Servers for 127.0.0.1, localhost and ::1 that want a certificate of their clients."""

    def start(*args: Any, **options: Any) -> Upstream:
        pair = authority.issue("localhost", "127.0.0.1", "::1")
        context = server_context(pair, authority.certificate)
        return upstreams(*args, context=context, **options)  # type: ignore[no-any-return]  # a fixture

    return start


@pytest.fixture
def trusting(backend: Any, authority: Authority) -> Callable[..., Any]:
    pair = authority.issue("compute-1")

    def build(*hosts: Upstream | HttpHost, **options: Any) -> Any:
        return backend(
            *hosts,
            **{
                "protocol": "https",
                "ca_cert": str(authority.certificate),
                "client_cert": str(pair.certificate),
                "client_key": str(pair.key),
                **options,
            },
        )

    return build


Pair = tuple[Callable[..., Upstream], Callable[..., Any]]


@pytest.fixture(params=["http", "https"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Servers, and backends that trust them: without TLS or over TLS."""
    names = ("upstreams", "backend") if request.param == "http" else ("secure", "trusting")
    return tuple(map(request.getfixturevalue, names))


def heard(asking: nova.NovaBackend) -> None:
    """Wait until the kept connection has something to read, be it its end."""
    (connection,) = asking._servers[0]._pool.of(INSTANCE)
    until(lambda: connection._poll.poll(0), "what the server has sent")


def host_of(sock: Any) -> HttpHost:
    return HttpHost("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize("how", ["closed", "stray"])
def test_ended_or_readable_kept_connection_is_not_used(pair: Pair, how: str) -> None:
    start, build = pair
    server = start()
    asking = build(server)
    ask(asking)
    if how == "closed":
        server.connections[0].shutdown(real_socket.SHUT_RDWR)
    else:
        server.connections[0].sendall(answering("200 OK", b"for another guest"))
    heard(asking)
    counted, retries = Counted("connections"), Counted("retries")
    assert ask(asking).body == b"{}"
    assert len(server.connections) == 2
    assert counted.grown() == {"stale": 1, "opened": 1}
    assert retries.grown() == {}


def test_late_bytes_of_a_connection_reach_no_other_instance(pair: Pair) -> None:
    start, build = pair
    server = start()
    asking = build(server)
    ask(asking)

    def script(_request: Asked) -> bytes:
        server.connections[0].sendall(answering("200 OK", b"a second answer for the first"))
        return OK

    server.script = script
    assert ask(asking, identity=OTHER).body == b"{}"
    server.script = lambda _request: OK
    heard(asking)
    assert ask(asking).body == b"{}"


def test_bytes_behind_an_answer_end_its_connection(upstream: Upstream, backend: Any) -> None:
    upstream.script = lambda _request: OK + answering("200 OK", b"for somebody else")
    asking = backend(upstream)
    assert [ask(asking).body for _ in range(3)] == [b"{}"] * 3
    assert len(upstream.connections) == 3


def test_stale_kept_connection_is_retried_without_a_pause(pair: Pair) -> None:
    start, build = pair
    server = start()
    asking = build(server)
    ask(asking)

    def script(_request: Asked) -> bytes | None:
        if len(server.connections) == 2:
            return OK
        server.connections[-1].shutdown(real_socket.SHUT_RDWR)
        return None

    server.script = script
    retries, begun = Counted("retries"), clock.now()
    assert ask(asking).status == 200
    assert clock.now() == begun
    assert len(server.asked) == 3
    assert retries.grown() == {"stale": 1}


def test_get_goes_over_a_kept_connection_and_a_password_does_not(pair: Pair) -> None:
    start, build = pair
    server = start()
    asking = build(server)
    for _ in range(3):
        assert ask(asking).body == b"{}"
    assert len(server.connections) == 1
    for _ in range(2):
        ask(asking, PASSWORD)
    assert len(server.connections) == 3
    assert [request.body for request in server.asked] == [b""] * 3 + [b"cipher"] * 2


def test_a_reset_is_not_the_end_of_a_body(upstream: Upstream, backend: Any) -> None:
    linger = struct.pack("ii", 1, 0)

    def script(_request: Asked) -> bytes | None:
        served = upstream.connections[-1]
        served.sendall(b"HTTP/1.1 200 OK\r\n\r\nas far as it c")
        if len(upstream.asked) < 3:
            served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return None

    upstream.script = script
    assert ask(backend(upstream)).body == b"as far as it c"
    assert len(upstream.asked) == 3


def test_zone_of_an_address_is_not_sent() -> None:
    server = PooledServer(HttpHost("fe80::1%eth0", 80))
    assert server.name == b"[fe80::1]:80"


def test_over_tls_an_ipv6_address_and_a_name_serve(secure: Any, trusting: Any) -> None:
    assert ask(trusting(secure(address="::1"))).status == 200
    assert ask(trusting(HttpHost("localhost", secure().host.port))).status == 200


def test_over_tls_an_end_without_the_closing_alert_is_no_end(secure: Any, trusting: Any) -> None:
    server = secure()

    def script(_request: Asked) -> bytes | None:
        served = server.connections[-1]
        served.sendall(b"HTTP/1.1 200 OK\r\n\r\nas far as it c")
        if len(server.asked) < 3:
            served.shutdown(real_socket.SHUT_RDWR)
        else:
            served.unwrap().close()
        return None

    server.script = script
    assert ask(trusting(server)).body == b"as far as it c"
    assert len(server.asked) == 3


@pytest.mark.usefixtures("one_round")
@pytest.mark.parametrize("request_", [None, PASSWORD], ids=["GET", "POST"])
def test_unknown_ca_is_refused(upstreams: Any, trusting: Any, tmp_path: Any, request_: Any) -> None:
    pair = Authority(tmp_path, "stranger").issue("127.0.0.1")
    server = upstreams(context=server_context(pair))
    with pytest.raises(BackendUnreachableError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        ask(trusting(server), request_)
    assert caught.value.remedy.startswith("Set auth_ca_cert to the authority")
    assert server.asked == []
    assert ask(trusting(server, insecure=True), request_).status == 200


@pytest.mark.usefixtures("one_round")
def test_certificate_is_in_time(upstreams: Any, trusting: Any, authority: Authority) -> None:
    for name, expired, cause, remedy in (
        ("127.0.0.1", True, "certificate has expired", "Renew Nova's certificate"),
        ("127.0.0.2", False, "IP address mismatch", "Set nova_metadata_host to a name"),
    ):
        server = upstreams(context=server_context(authority.issue(name, expired=expired)))
        with pytest.raises(BackendUnreachableError, match=cause) as caught:
            ask(trusting(server))
        assert caught.value.remedy.startswith(remedy)
        assert server.asked == []


@pytest.mark.usefixtures("one_round")
def test_handshake_that_hangs_costs_one_request_its_time(
    listening: Any, secure: Any, trusting: Any
) -> None:
    server = secure()
    asking = eventlet.spawn(ask, trusting(host_of(listening)))
    with listening.accept()[0] as served:
        until(lambda: served.recv(1, real_socket.MSG_PEEK), "the client's hello")
        assert ask(trusting(server)).status == 200
        assert not asking.dead
        with pytest.raises(BackendUnreachableError, match="no connection within") as caught:
            asking.wait()
    assert "no firewall" in caught.value.remedy


def test_unsent_password_goes_to_the_next(listening: Any, secure: Any, trusting: Any) -> None:
    server = secure()
    asking = eventlet.spawn(ask, trusting(host_of(listening), server), PASSWORD)
    with listening.accept()[0] as served:
        until(lambda: served.recv(1, real_socket.MSG_PEEK), "the client's hello")
        assert asking.wait().status == 200
    assert [request.body for request in server.asked] == [b"cipher"]
