"""In a store of many hosts a guest should get what its address has a record for, or nothing."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventlet.event import Event

from dfmeta.errors import LookupAnswerError, StoreAwayError, StoreError
from dfmeta.http.limits import Limits
from dfmeta.proxy.addresses import AddressApplication, Addresses, AddressStore
from dfmeta.proxy.application import Application, AppSettings, guest_server
from dfmeta.proxy.rate import RateLimiter, RateSettings, Window
from dfmeta.proxy.tokens import KEY_BYTES, TokenMode, Tokens
from dfmeta.runtime.throttle import SharedComplaints
from dfmeta.store.db.record import Address, Kind, Record, parse_network
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.requests import TrustedProxies
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, Listener, let_hub_run, until
from tests.harness.records import push

FEW = Limits(connections_per_port=2, waiting_per_port=1, requests_per_port=2)
PROXY = "192.0.2.1"
HOSTNAME = "/latest/meta-data/hostname"
TOKEN = "/latest/api/token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds: 60"


class Reply:
    """A response, read off a connection; nothing behind it is.

    :param bodiless: to a HEAD, whose length is that of a body which does not come.
    """

    def __init__(self, sock: Any, *, bodiless: bool = False) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = sock.recv(1)
            if not piece:
                break
            head += piece
        first, *lines = head.decode().split("\r\n")[:-2] or [""]
        self.status = int(first.split()[1]) if first else 0
        """0: closed without an answer."""
        pairs = (line.split(": ", 1) for line in lines)
        self.headers = {name.lower(): value for name, value in pairs}
        length = 0 if bodiless else int(self.headers.get("content-length", 0))
        self.body = b""
        while left := length - len(self.body):
            self.body += sock.recv(left)


class World:
    """A store with two instances, and its guests' listener."""

    def __init__(self, folder: Path, *, limits: Limits = FEW, **options: Any) -> None:
        self.repository = Repository(f"sqlite:///{folder}/store.db")
        self.push(INSTANCE, "one", ["10.0.0.1", "2001:db8::1", "10.1.0.0/16"])
        self.push(OTHER_INSTANCE, "two", ["10.0.0.2", "10.1.2.0/24"])
        self.failure: StoreError | None = None
        self.gate: Event | None = None
        self.looked = 0
        self.listener = Listener()
        self.addresses = Addresses(self._find, TrustedProxies([parse_network("192.0.2.0/24")]))
        rate = options.pop("rate", RateSettings())
        application = Application(
            self.addresses,
            AddressStore(self.repository),
            AppSettings(**options),
            tokens=Tokens(bytes(KEY_BYTES)),
            rates=RateLimiter(rate),
            complaints=SharedComplaints(logging.getLogger("dfmeta.proxy")),
        )
        self.server = guest_server(
            [self.listener],
            self.addresses,
            AddressApplication(application, self.addresses, lambda: limits).answer,
            limits=limits,
            hold_timeout=5.0,
        )
        self.server.start()

    def stop(self) -> None:
        self.server.stop(0.0)
        self.repository.close()

    def push(self, record_id: str, hostname: str, networks: list[str], **options: Any) -> None:
        assert push(
            self.repository,
            Kind.METADATA,
            record_id,
            content={"hostname": hostname},
            networks=[parse_network(text) for text in networks],
            **options,
        )

    def _find(self, address: Address, _path: str) -> Record | None:
        self.looked += 1
        if self.gate is not None:
            self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return self.repository.find(address)

    def ask(self, peer: str, path: str = HOSTNAME, *headers: str, method: str = "GET") -> Reply:
        sock = self.listener.connect(peer)
        try:
            send(sock, path, *headers, method=method)
            return Reply(sock)
        finally:
            sock.close()

    def token(self, peer: str, *headers: str) -> Reply:
        return self.ask(peer, TOKEN, TTL, *headers, method="PUT")


def send(sock: Any, path: str, *headers: str, method: str = "GET", body: str = "") -> None:
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", "Host: metadata", *headers, *length, "", body]
    sock.sendall("\r\n".join(lines).encode())


def forwarded(*addresses: str) -> str:
    return f"X-Forwarded-For: {', '.join(addresses)}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    guests = World(tmp_path)
    yield guests
    guests.stop()
    guests.repository.close()


def test_a_guest_gets_the_record_of_its_address(world: World) -> None:
    for peer, hostname in (
        ("10.0.0.1", b"one"),
        ("::ffff:10.0.0.1", b"one"),
        ("2001:db8::1", b"one"),
        ("10.1.3.4", b"one"),
        ("10.0.0.2", b"two"),
        ("10.1.2.3", b"two"),
    ):
        reply = world.ask(peer)
        assert (reply.status, reply.body) == (200, hostname), peer
    assert world.looked == 6, "once for each request"


def test_an_address_without_a_record_is_404(world: World) -> None:
    for peer in ("10.0.0.3", "2001:db8::2", "::ffff:10.0.0.3"):
        for path in (HOSTNAME, "/", "/openstack", "/rubbish"):
            assert world.ask(peer, path).status == 404, (peer, path)
    assert world.token("10.0.0.3").status == 404
    world.push(INSTANCE, "one", ["fe80::1"])
    assert world.ask("fe80::1%eth0").status == 404
    assert world.ask("fe80::1").status == 200


def test_the_admin_sides_paths_are_404(world: World) -> None:
    for path in ("/metrics", "/healthz", "/version", "/device-metadata"):
        assert world.ask("10.0.0.1", path).status == 404, path
    assert world.looked == 0


def test_a_guest_cannot_name_another_address(world: World) -> None:
    for claimed in ("10.0.0.2", "192.0.2.1", "rubbish", "10.0.0.2:80"):
        assert world.ask("10.0.0.1", HOSTNAME, forwarded(claimed)).body == b"one", claimed
        assert world.ask("10.0.0.3", HOSTNAME, forwarded(claimed)).status == 404, claimed


def test_a_trusted_proxys_connection_has_many_guests(world: World) -> None:
    sock = world.listener.connect(PROXY)
    for guest in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1"):
        send(sock, HOSTNAME, forwarded("10.0.0.2", guest))
    replies = [Reply(sock) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 404, 200]
    assert [replies[n].body for n in (0, 1, 3)] == [b"one", b"two", b"one"]


def test_proxy_without_forwarded_for_gets_its_own_record(world: World) -> None:
    lines = forwarded("10.0.0.2"), forwarded("10.0.0.1", "192.0.2.2")
    assert world.ask(PROXY, HOSTNAME, *lines).body == b"one", "several lines are one list"
    assert world.ask(PROXY).status == 404
    world.push(INSTANCE, "proxy", [PROXY])
    assert world.ask(PROXY).body == b"proxy"


def test_a_malformed_list_is_refused_and_the_next_request_is_answered(world: World) -> None:
    sock = world.listener.connect(PROXY)
    send(sock, HOSTNAME, forwarded("10.0.0.1:4711"))
    send(sock, HOSTNAME, forwarded("10.0.0.1"), method="HEAD")
    send(sock, HOSTNAME, forwarded("[::1]"), method="HEAD")
    send(sock, HOSTNAME, forwarded("10.0.0.1"))
    replies = [Reply(sock, bodiless=bodiless) for bodiless in (False, True, True, False)]
    assert [reply.status for reply in replies] == [400, 200, 400, 200]
    assert (b"10.0.0.1" in replies[0].body, replies[3].body) == (False, b"one")
    assert world.looked == 2


# Limits


def test_connections_of_a_guest_are_limited_and_a_proxys_are_not(world: World) -> None:
    kept = [world.listener.connect("10.0.0.2") for _ in range(6)]
    until(lambda: len(world.server.descriptors()) == 3, "three connections")
    let_hub_run()
    assert len(world.server.descriptors()) == 3
    proxys = [world.listener.connect(PROXY) for _ in range(6)]
    for sock in proxys:
        send(sock, HOSTNAME, forwarded("10.0.0.1"))
    assert [Reply(sock).body for sock in proxys] == [b"one"] * 6
    for sock in (*kept, *proxys):
        sock.close()


def test_requests_of_a_guest_behind_a_proxy_are_limited(world: World) -> None:
    world.gate = Event()
    socks = [world.listener.connect(PROXY) for _ in range(5)]
    for sock in socks[:4]:
        send(sock, "/openstack/latest/user_data", forwarded("10.0.0.1"))
    send(socks[4], HOSTNAME, forwarded("10.0.0.2"))
    until(lambda: world.looked == 3, "three requests to be with the store")
    let_hub_run()
    assert world.looked == 3
    world.gate.send()
    assert [Reply(sock).status for sock in socks] == [404, 404, 404, 404, 200]


def test_request_without_a_slot_in_time_is_out_of_time(world: World) -> None:
    world.gate = Event()
    socks = [world.listener.connect(PROXY) for _ in range(2)]
    for sock in socks:
        send(sock, HOSTNAME, forwarded("10.0.0.1"))
    until(lambda: world.looked == 2, "two requests to be with the store")
    assert world.ask(PROXY, HOSTNAME, forwarded("10.0.0.1")).status == 503
    world.gate.send()
    assert [Reply(sock).status for sock in socks] == [200, 200]


def test_rates_are_for_each_guests_address(tmp_path: Path) -> None:
    window = Window(1, 1000.0)
    rate = RateSettings(enabled=True, base=window, burst=window, delay_max=0.0, tolerated=0)
    world = World(tmp_path, rate=rate)
    clients = ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"]
    replies = [world.ask(PROXY, HOSTNAME, forwarded(guest)) for guest in clients]
    assert [reply.status for reply in replies] == [200, 429, 200, 429]
    assert world.ask("10.0.0.2").status == 429
    world.stop()


# Tokens and passwords


def test_token_is_valid_for_each_address_of_the_record(world: World) -> None:
    given = world.token("10.0.0.1")
    shown = f"X-aws-ec2-metadata-token: {given.body.decode()}"
    assert given.status == 200
    assert world.ask("2001:db8::1", HOSTNAME, shown).body == b"one"
    assert world.ask("10.0.0.2", HOSTNAME, shown).status == 401


def test_a_record_or_the_configuration_may_require_tokens(world: World, tmp_path: Path) -> None:
    world.push(INSTANCE, "one", ["10.0.0.1"], http_tokens="required")
    assert world.ask("10.0.0.1").status == 401
    shown = f"X-aws-ec2-metadata-token: {world.token('10.0.0.1').body.decode()}"
    assert world.ask("10.0.0.1", HOSTNAME, shown).status == 200
    assert world.ask("10.0.0.2").status == 200
    strict = World(tmp_path, http_tokens=TokenMode.REQUIRED)
    assert [strict.ask("10.0.0.2").status, strict.ask("10.0.0.3").status] == [401, 401]
    strict.stop()


def test_a_forwarded_request_gets_no_token(world: World) -> None:
    for peer in ("10.0.0.1", PROXY):
        assert world.token(peer, forwarded("10.0.0.1")).status == 403


# The database


def test_guest_gets_503_while_the_database_is_away(world: World) -> None:
    world.failure = StoreAwayError(cause="db.example.org: no answer within 5 s")
    reply = world.ask("10.0.0.1")
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    assert world.ask("10.0.0.1", "/openstack/2018-08-27/user_data").status == 0
    assert world.token("10.0.0.1").status == 503
    world.failure = None
    assert world.ask("10.0.0.1").body == b"one"


def test_a_malformed_upstream_answer_is_a_bad_gateway(world: World) -> None:
    world.failure = LookupAnswerError(upstream="https://other.example.org", cause="no JSON")
    assert world.ask("10.0.0.1").status == 502
    assert world.ask("10.0.0.1", "/openstack/2018-08-27/user_data").status == 502


def test_database_fault_is_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.failure = StoreAwayError(cause="db.example.org: no answer within 5 s")
    for guest in range(1, 30):
        assert world.ask(f"10.0.0.{guest}").status == 503
    (line,) = caplog.messages
    assert "db.example.org: no answer within 5 s" in line
    assert "10.0.0.1" in line
