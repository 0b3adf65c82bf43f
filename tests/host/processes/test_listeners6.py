"""A guest should be answered over IPv6 as over IPv4, by its port: in network namespaces."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import eventlet
import eventlet.green.socket
import pytest

from dfmeta import hub
from dfmeta.cmd.proxy import Proxy
from dfmeta.model import Endpoint, GuestAddress
from dfmeta.proxy.sockets import confine, listen
from dfmeta.registry import Registry
from dfmeta.wiring.layout import keys_of
from tests.core.unit.support import AMPLE, GUEST_MAC, Load, port, until
from tests.harness.netns import Namespace, veth

TAP = "tap-metadata"
HOSTS = {4: "169.254.169.254", 6: "fd00:a9fe:a9fe:a9fe::a9fe"}
PREFIX = "fd00:abcd:1:2::/64"
OWN = {4: IPv4Address("10.0.0.5"), 6: IPv6Address("fe80::f816:3eff:fe00:1")}
HERE, STRANGER = Endpoint(13), Endpoint(14)
NUMBER = 18080
GET = b"GET /nowhere HTTP/1.1\r\nHost: [fe80::a9fe:a9fe%25eth0]:80\r\n\r\n"

Connect = Callable[[int, Endpoint], Any]


class World:
    """A host with tap-metadata and its listeners, and a network behind it with the keys."""

    def __init__(
        self, load: Load, tmp_path: Path, workers: int, *, use: contextlib.ExitStack
    ) -> None:
        options = {"state_path": tmp_path, "backend": "store", "proxy_workers": workers}
        conf = load(**options, key_prefix6=PREFIX, store__connection=f"sqlite:///{tmp_path}/db")
        keys = keys_of(conf)
        self.registry = Registry(keys=keys)
        self.registry.set_port(port())
        self.slots = {}
        for version, service in ((4, None), (6, IPv6Address("fe80::a9fe:a9fe"))):
            learned = self.registry.learn(HERE, GuestAddress(GUEST_MAC, OWN[version], service), 0)
            assert learned is not None
            self.slots[version] = learned.slot
        self._keys = keys
        self.host, self.guests = (use.enter_context(Namespace(one)) for one in ("host", "guests"))
        self.make_device()
        with self.host.inside():
            self.sockets = {
                version: listen(TAP, ip_address(host), NUMBER) for version, host in HOSTS.items()
            }
        self.proxy = Proxy(conf, self.registry)
        self.engine = self.proxy.serve(self.sockets)
        until(lambda: self.engine.serving, "the proxy to serve")

    def make_device(self) -> None:
        """Create tap-metadata with all that it needs."""
        veth(self.host, TAP, self.guests, "eth0")
        for version, host in HOSTS.items():
            bits, network = (32, "128.0.0.0/16") if version == 4 else (128, PREFIX)
            self.host.ip(
                f"address add {host}/{bits} dev {TAP} {'nodad' if version == 6 else ''}",
                f"route add {network} dev {TAP}",
            )
            self.guests.ip(
                f"route replace {host}/{bits} dev eth0",
                *(
                    f"address add {self._keys.key_of(one, self.slots[version])}/{bits} dev eth0 "
                    + ("nodad" if version == 6 else "")
                    for one in (HERE, STRANGER)
                ),
            )

    def connect(self, version: int, endpoint: Endpoint = HERE) -> Any:
        """A connection from a key."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with self.guests.inside():
            sock = eventlet.green.socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(AMPLE)
        sock.bind((str(self._keys.key_of(endpoint, self.slots[version])), 0))
        sock.connect((HOSTS[version], NUMBER))
        return sock

    def bound(self) -> int:
        """How many connections are bound to the device; ss names a device that exists."""
        return self.host.run(["ss", "-tnH"]).stdout.count(f"%{TAP}:")


@pytest.fixture(params=[0, 2], ids=["in the daemon", "two workers"])
def world(request: pytest.FixtureRequest, load: Load, tmp_path: Path) -> Iterator[World]:
    with contextlib.ExitStack() as use:
        one = World(load, tmp_path, request.param, use=use)
        yield one
        hub.VITAL.release()
        one.engine.stop(0.5)


def ask(sock: Any) -> bytes:
    """Ask, and read the head of the answer."""
    sock.sendall(GET)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            break
        data += piece
    return data.partition(b"\r\n")[0]


def test_each_ip_version_is_answered_by_the_guests_port(world: World) -> None:
    answered = {version: ask(world.connect(version)) for version in HOSTS}
    assert answered == dict.fromkeys(HOSTS, b"HTTP/1.1 404 Not Found")
    assert all(world.connect(version, STRANGER).recv(1) == b"" for version in HOSTS)
    place = world.proxy.listeners
    assert place is not None
    assert place.port == NUMBER
    assert 0 not in (place.inode, place.inode6)
    assert place.inode != place.inode6


def test_open_connections_outlive_a_device_that_is_created_again(world: World) -> None:
    kept = {version: world.connect(version) for version in HOSTS}
    answers = [ask(sock) for sock in kept.values()]
    world.host.ip(f"link delete {TAP}")
    world.make_device()
    with world.host.inside():
        index = socket.if_nametoindex(TAP)
    for sock in world.sockets.values():
        confine(sock, index)
    world.engine.rebind()
    until(lambda: world.bound() == 2, "the connections to be bound to the device")
    for sock in kept.values():
        assert ask(sock) in answers
    assert [ask(world.connect(version)) for version in HOSTS] == answers
