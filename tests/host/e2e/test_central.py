"""``dfmeta-store`` should give each address its own record, and nobody a word in that."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.agent import ADMIN_PORT, Answer, ask
from tests.harness.central import GUEST_PORT, Central
from tests.harness.guest import uuid_of
from tests.harness.netns import Namespace, veth
from tests.harness.poll import wait_for

STORE, STORE6 = "10.0.255.254", "2001:db8::ffff"
ONE, TWO = uuid_of("instance one"), uuid_of("instance two")
HOSTNAME = "/latest/meta-data/hostname"
TOKEN = "/latest/api/token"
TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
PLACES = 16
"""Connections of one address that are served at a time."""
PLAIN = b"GET /latest/meta-data/hostname HTTP/1.1\r\nHost: metadata\r\n\r\n"


class Network:
    """The service and its guests, each in a namespace, on one bridge."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._store = stack.enter_context(Namespace("store"))
        self._store.ip(
            "link add br0 type bridge",
            "link set br0 up",
            f"address add {STORE}/16 dev br0",
            f"address add {STORE6}/64 dev br0 nodad",
        )
        self.guests: dict[str, Namespace] = {}
        for number, name in enumerate(("one", "two", "proxy", "stranger"), 1):
            self._add(name, number)
        self.central = stack.enter_context(Central(namespace=self._store))

    def _add(self, name: str, number: int) -> None:
        guest = self.guests[name] = self._stack.enter_context(Namespace(name))
        veth(self._store, f"to-{name}", guest, "eth0")
        self._store.ip(f"link set to-{name} master br0")
        guest.ip(
            f"address add 10.0.0.{number}/16 dev eth0",
            f"address add 10.0.{number}.9/16 dev eth0",
            f"address add 2001:db8::{number}/64 dev eth0 nodad",
        )

    def ask(self, name: str, path: str = HOSTNAME, **options: Any) -> Answer:
        """A request of that guest's; ``store`` and ``source`` are addresses."""
        store = options.pop("store", STORE)
        return ask(self.guests[name], (store, GUEST_PORT), path, **options)

    def connect(self, name: str) -> socket.socket:
        """A connection of that guest's."""
        return self.guests[name].connect(STORE, GUEST_PORT, timeout=10)


@pytest.fixture(scope="module")
def _one_network() -> Iterator[Network]:
    with ExitStack() as stack:
        one = Network(stack)
        yield one
        if one.central.running:
            one.central.stop()


@pytest.fixture
def network(_one_network: Network) -> Network:
    """The network with a service that knows two of its guests, as every test finds it.

    A test may stop it, and has to where it has configured it otherwise.
    """
    central = _one_network.central
    central.configure({"store": {"trusted_proxies": "10.0.0.3, 2001:db8::3"}})
    central.push(ONE, "one", "10.0.0.1", "10.0.1.0/24", "2001:db8::1")
    central.push(TWO, "two", "10.0.0.2", "10.0.0.0/16", "2001:db8::2")
    if not central.running:
        central.start()
    return _one_network


def forwarded(value: str) -> dict[str, str]:
    return {"X-Forwarded-For": value}


# Clients


@pytest.mark.parametrize(
    ("source", "store", "hostname"),
    [
        ("10.0.0.1", STORE, "one"),
        ("2001:db8::1", STORE6, "one"),
        # Of two blocks that contain it the smaller one counts.
        ("10.0.1.9", STORE, "one"),
    ],
)
def test_a_guest_is_known_by_its_address(
    network: Network, source: str, store: str, hostname: str
) -> None:
    answer = network.ask("one", source=source, store=store)
    assert (answer.status, answer.text) == (200, hostname)
    assert network.ask("two").text == "two"


def test_an_address_without_a_record_gets_nothing(network: Network) -> None:
    network.central.push(TWO, "two", "10.0.0.2")
    assert network.ask("stranger").status == 404
    assert network.ask("stranger", "/openstack").status == 404
    assert network.ask("stranger", TOKEN, method="PUT", headers=TTL).status == 404


def test_a_guest_cannot_name_another_by_a_header(network: Network) -> None:
    for claimed in ("10.0.0.2", "10.0.0.3, 10.0.0.2", "not an address"):
        assert network.ask("one", headers=forwarded(claimed)).text == "one"


def test_a_trusted_proxy_names_its_guests(network: Network) -> None:
    asked = {"10.0.0.1": "one", "10.0.0.1, 10.0.0.2": "two", "10.0.0.2, 2001:db8::1": "one"}
    for value, hostname in asked.items():
        assert network.ask("proxy", headers=forwarded(value)).text == hostname
    # From another address than the trusted one it is a guest like any other.
    answer = network.ask("proxy", headers=forwarded("10.0.0.1"), source="10.0.3.9")
    assert answer.text == "two"


@pytest.mark.parametrize("value", ["10.0.0.1:80", "[2001:db8::1]", "fe80::1%eth0", "10.0.0", ""])
def test_a_trusted_proxy_has_to_name_an_address(network: Network, value: str) -> None:
    assert network.ask("proxy", headers=forwarded(value)).status == 400


def test_whom_to_trust_can_be_changed_while_it_runs(network: Network) -> None:
    assert network.ask("proxy", headers=forwarded("10.0.0.1")).text == "one"
    network.central.configure({"store": {"trusted_proxies": ""}})
    network.central.signal(signal.SIGHUP)
    wait_for(
        lambda: network.ask("proxy", headers=forwarded("10.0.0.1")).text == "two",
        "the proxy to be trusted no more",
    )
    network.central.configure({"store": {"trusted_proxies": "10.0.0.300"}})
    network.central.signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded" in network.central.log(), "a wrong value to be refused")
    assert network.ask("one").text == "one"
    network.central.stop()


# What is asked


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/version", "/healthz", "/healthz/readiness", "/records"),
        f"/device-metadata/{ONE}",
    ],
)
def test_guests_have_no_admin_side(network: Network, path: str) -> None:
    assert network.ask("one", path).status == 404
    assert network.ask("one", path, method="DELETE").status == 404


def test_the_admin_side_has_no_guests(network: Network) -> None:
    assert network.central.admin(HOSTNAME).status == 404
    assert network.central.admin("/healthz").json() == {"status": "UP"}
    assert network.central.admin("/version").status == 200


def test_a_token_outlives_the_process_and_is_one_records_alone(network: Network) -> None:
    token = network.ask("one", TOKEN, method="PUT", headers=TTL).text
    shown = {"X-aws-ec2-metadata-token": token}
    network.central.stop()
    network.central.start()
    assert network.ask("one", headers=shown, source="10.0.1.9").text == "one"
    assert network.ask("two", headers=shown).status == 401
    assert network.ask("proxy", headers={**shown, **forwarded("10.0.0.1")}).text == "one"


@pytest.mark.parametrize("name", ["one", "proxy"])
def test_no_token_is_given_through_a_proxy(network: Network, name: str) -> None:
    headers = {**TTL, **forwarded("10.0.0.1")}
    assert network.ask(name, TOKEN, method="PUT", headers=headers).status == 403


def test_what_is_no_strict_http_is_refused(network: Network) -> None:
    for request in (
        PLAIN.replace(b"\r\n", b"\n"),
        PLAIN.replace(b"/latest", b"http://x/latest"),
        PLAIN.replace(b"Host", b"Content-Length: 1\r\nContent-Length: 1\r\nHost"),
    ):
        with network.connect("one") as sock:
            sock.sendall(request)
            assert sock.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_requests_that_come_together_are_answered_in_their_order(network: Network) -> None:
    with network.connect("one") as sock:
        sock.sendall(PLAIN * 3 + PLAIN.replace(b"Host", b"Connection: close\r\nHost"))
        data = b""
        while piece := sock.recv(65536):
            data += piece
    assert data.count(b"HTTP/1.1 200 OK") == 4
    assert data.count(b"\r\n\r\none") == 4


def test_guests_that_are_slow_or_greedy_keep_nobody_waiting(network: Network) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(network.connect("two")) for _ in range(64)]
        for sock in slow:
            sock.sendall(PLAIN[:20])
        assert network.ask("one").text == "one"
        # The last one that has a place: it gets no answer before its time for a head is over.
        assert not select.select([slow[PLACES - 1]], [], [], 0)[0], "that one was waited for"
        counted = network.central.metrics()
        assert counted['dfmeta_limits_hit_total{limit="connections_per_port"}'] >= 64 - PLACES


# The admin side


def pushed(record_id: str, hostname: str, *addresses: str) -> bytes:
    """The body of a push."""
    body = {"id": record_id, "ipAddresses": addresses, "metadata": {"hostname": hostname}}
    return json.dumps(body).encode()


def test_what_is_pushed_is_there_at_once(network: Network) -> None:
    body = pushed(ONE, "pushed", "10.0.0.1")
    answer = network.central.admin("/device-metadata", method="POST", body=body)
    assert (answer.status, answer.body) == (200, b"")
    assert network.ask("one").text == "pushed"
    assert network.central.admin(f"/api/v1/device-metadata/{ONE}").json() == {"hostname": "pushed"}
    # Its other address is the block's now.
    assert network.ask("one", source="10.0.1.9").text == "two"
    assert network.central.admin(f"/device-metadata/{ONE}", method="DELETE").status == 200
    assert network.ask("one").text == "two"


def test_other_hosts_get_an_admin_side_with_tokens_alone(network: Network) -> None:
    network.central.stop()
    reachable = {"df_metadata": {"admin_listen": f"{STORE}:{ADMIN_PORT}"}}
    with Central(reachable, namespace=network.central.namespace) as other:
        other.start(wait=False)
        assert other.wait(20) == 2
        assert "[df_metadata] admin_listen" in other.log().splitlines()[-1]
        other.configure({"store": {"token_file": other.folder / "tokens"}})
        token = other.ctl("token", "create", "--scope", "write").strip()
        other.start()
        body = pushed(ONE, "one", "10.0.0.1")
        refused = other.admin("/device-metadata", method="POST", body=body)
        assert refused.status == 401
        headers = {"Authorization": f"Bearer {token}"}
        answer = other.admin("/device-metadata", method="POST", body=body, headers=headers)
        assert answer.status == 200
        assert network.ask("one").text == "one"
        other.stop()
        assert token not in other.log()
        audit = re.findall(r"(INFO|WARNING) \S+ Audit: POST /device-metadata, (.*)", other.log())
        assert audit == [
            ("WARNING", f"instance unknown, by an unknown client from {STORE}: 401"),
            ("INFO", f"instance {ONE}, by token token-1 from {STORE}: 200"),
        ]


def test_requests_that_have_begun_are_answered_at_sigterm(network: Network) -> None:
    body = pushed(TWO, "late", "10.0.0.2")
    head = f"POST {{}} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    here = network.central.namespace
    with (
        here.connect("127.0.0.1", ADMIN_PORT, timeout=10) as admin,
        network.connect("one") as guest,
    ):
        for sock, path in ((admin, "/device-metadata"), (guest, "/openstack/latest/password")):
            sock.sendall(head.format(path).encode() + body[:10])
        wait_for(lambda: network.central.metrics()["dfmeta_open_connections"] == 1, "the guest's")
        network.central.signal(signal.SIGTERM)
        wait_for(lambda: "ends" in network.central.log().splitlines()[-1], "it to be told")
        for sock in (guest, admin):
            sock.sendall(body[10:])
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert network.central.wait(5) == 0
    network.central.start()
    assert network.ask("two").text == "late"
    assert network.ask("one", "/openstack/latest/password").body == body


# Its life


def test_it_ends_at_once_when_nothing_runs(network: Network) -> None:
    with network.connect("one") as idle:
        idle.sendall(PLAIN)
        assert idle.recv(4096)
        network.central.signal(signal.SIGTERM)
        assert network.central.wait(2) == 0
    assert "Traceback" not in network.central.log()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"store": {"guest_listen": "192.0.2.1:8080"}}, "guest_listen"),
        ({"store": {"guest_listen": f"127.0.0.1:{ADMIN_PORT}"}}, "guest_listen"),
        ({"store": {"trusted_proxies": "proxy.example.org"}}, "trusted_proxies"),
        ({"store": {"connection": "mysql://localhost/x"}}, "connection"),
        ({"df_metadata": {"refuse_forwarded": True}}, "refuse_forwarded"),
        ({"df_metadata": {"state_path": "/proc/nowhere"}}, "/proc/nowhere"),
    ],
)
def test_what_cannot_work_is_one_clear_line(
    network: Network, options: dict[str, dict[str, object]], word: str
) -> None:
    network.central.stop()
    with Central(namespace=network.central.namespace) as other:
        other.configure({"store": {"trusted_proxies": "10.0.0.3"}})
        other.configure(options)
        other.start(wait=False)
        try:
            assert other.wait(20) == 2
        except subprocess.TimeoutExpired:
            pytest.fail(f"it runs: {other.log()}")
        last = other.log().splitlines()[-1]
        assert last.startswith("dfmeta-store: ")
        assert word in last
        assert "Traceback" not in other.log()


def test_without_guest_listen_there_is_the_admin_side_alone(network: Network) -> None:
    network.central.stop()
    with Central({"store": {"guest_listen": ""}}, namespace=network.central.namespace) as other:
        other.start()
        with pytest.raises(OSError, match="refused"):
            ask(other.namespace, ("127.0.0.1", GUEST_PORT), "/")
        other.stop()


def test_a_second_one_on_the_same_address_ends(network: Network) -> None:
    with Central(namespace=network.central.namespace) as other:
        other.start(wait=False)
        assert other.wait(20) == 2
        assert "admin_listen" in other.log().splitlines()[-1]
    assert network.ask("one").text == "one"
