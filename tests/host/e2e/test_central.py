"""``dfmeta-store`` on a network: the address of a guest, or a trusted proxy, names its record."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.agent import ADMIN_PORT, ask
from tests.harness.central import GUEST_PORT, Central
from tests.harness.guest import Reply, uuid_of
from tests.harness.netns import Namespace, veth
from tests.harness.poll import wait_for

STORE, STORE6 = "10.0.255.254", "2001:db8::ffff"
ONE, TWO = uuid_of("instance one"), uuid_of("instance two")
HOSTNAME = "/latest/meta-data/hostname"


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

    def ask(self, name: str, path: str = HOSTNAME, **options: Any) -> Reply:
        """A request of that guest's; ``store`` and ``source`` are addresses."""
        store = options.pop("store", STORE)
        return ask(self.guests[name], (store, GUEST_PORT), path, **options)

    def connect(self, name: str) -> socket.socket:
        """A connection of that guest's."""
        return self.guests[name].connect(STORE, GUEST_PORT)


@pytest.fixture(scope="module")
def _one_network() -> Iterator[Network]:
    with ExitStack() as stack:
        network = Network(stack)
        yield network
        if network.central.running:
            network.central.stop()


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


def test_a_record_is_that_of_the_address_or_the_one_a_trusted_proxy_names(network: Network) -> None:
    assert network.ask("one", source="10.0.0.1").text == "one"
    assert network.ask("one", source="2001:db8::1", store=STORE6).text == "one"
    # Of two blocks that contain it the smaller one counts.
    assert network.ask("one", source="10.0.1.9").text == "one"
    assert network.ask("two").text == "two"
    network.central.push(TWO, "two", "10.0.0.2")
    assert network.ask("stranger").status == 404
    for forged in ("10.0.0.2", "10.0.0.3, 10.0.0.2", "not an address"):
        assert network.ask("one", headers=forwarded(forged)).text == "one", forged
    named = {"10.0.0.1": "one", "10.0.0.1, 10.0.0.2": "two", "10.0.0.2, 2001:db8::1": "one"}
    for value, hostname in named.items():
        assert network.ask("proxy", headers=forwarded(value)).text == hostname, value
    assert network.ask("proxy", headers=forwarded("10.0.0")).status == 400
    assert network.ask("one", "/metrics").status == 404
    assert network.central.admin(HOSTNAME).status == 404


def pushed(record_id: str, hostname: str, *addresses: str) -> bytes:
    """The body of a push."""
    body = {"id": record_id, "ipAddresses": addresses, "metadata": {"hostname": hostname}}
    return json.dumps(body).encode()


def test_requests_that_have_begun_are_answered_at_sigterm(network: Network) -> None:
    body = pushed(TWO, "late", "10.0.0.2")
    head = f"POST {{}} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    here = network.central.namespace
    with here.connect("127.0.0.1", ADMIN_PORT) as admin, network.connect("one") as guest:
        for sock, path in ((admin, "/device-metadata"), (guest, "/openstack/latest/password")):
            sock.sendall(head.format(path).encode() + body[:10])
        wait_for(lambda: network.central.metrics()["dfmeta_open_connections"] == 1, "the guest's")
        network.central.signal(signal.SIGTERM)
        wait_for(lambda: "ends" in network.central.log().splitlines()[-1], "it to be told")
        for sock in (guest, admin):
            sock.sendall(body[10:])
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert network.central.wait() == 0
    network.central.start()
    assert network.ask("two").text == "late"
    assert network.ask("one", "/openstack/latest/password").body == body
