"""tap-metadata's host side should be put back, at the same cost however large the host is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import IPv4Address
from typing import Any

import pytest
from pyroute2.netlink import nlmsg_base

from dfmeta.exceptions import HostError
from dfmeta.host.changes import Changes
from dfmeta.host.conntrack import read_conntrack
from dfmeta.host.device import disable_tx_checksum, driver_of, held_addresses
from dfmeta.host.host_facts import read_host
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.inspect import checks_limits
from dfmeta.inspect.finding import Status
from tests.harness.guest import METADATA_IP
from tests.harness.netns import Namespace
from tests.harness.ovs import UNPACKED
from tests.harness.poll import wait_for

DEVICE = "tap-metadata"
RULE_FROM = f"rule add from {METADATA_IP} lookup 2 pref 32764"
ALL = [
    "up",
    f"address {METADATA_IP}/32",
    "neighbour 128.0.0.0",
    "route in table 2",
    "rule 32764",
    "rule 32765",
]
MANY = 150
TRACKED = (
    "add table ip t; add chain ip t o { type filter hook output priority 0; }; "
    "add rule ip t o ct state new accept; "
    "add chain ip t i { type filter hook input priority 0; policy drop; }"
)
"""A packet filter that has the kernel track what leaves, and lets nothing of it in."""
FURTHER = 1000
"""Connections above the room of the table."""
LARGE: dict[str, Callable[[int], str]] = {
    "routes": lambda n: f"route add 198.18.{n}.0/24 via 10.0.0.2 dev up0",
    "rules": lambda n: f"rule add from 198.18.{n}.0/24 lookup 77 pref 1000",
    "addresses": lambda n: f"addr add 198.19.{n}.1/32 dev up0",
    "neighbours": lambda n: f"neigh add 10.0.1.{n + 1} lladdr 02:00:00:00:00:01 dev up0",
    "links": lambda n: f"link add l{n}a type veth peer name l{n}b",
}


@pytest.fixture
def host() -> Iterator[Namespace]:
    with Namespace("side") as namespace:
        # Else the end of duplicate address detection, seconds later, is a change as well.
        namespace.setting("net/ipv6/conf/default/disable_ipv6", "1")
        for name in (DEVICE, "up0"):
            namespace.ip(f"link add {name} type veth peer name of-{name[:9]}")
        namespace.ip("addr add 10.0.0.1/8 dev up0", "link set up0 up", "link set of-up0 up")
        yield namespace


@pytest.fixture
def side(host: Namespace) -> HostSide:
    made = HostSide(Wanted(DEVICE, IPv4Address(METADATA_IP), 2))
    assert ensure(host, made) == ALL
    return made


@pytest.fixture
def take(host: Namespace, side: HostSide) -> Iterator[Callable[[], bool]]:
    """Takes the changes of that host, which has become quiet."""
    del side
    with closing(Changes(table=2)) as changes:
        with host.inside():
            index = socket.if_nametoindex(DEVICE)
            assert changes.take(index), "what was before is not known"
        # The kernel tells of the carrier, which the peer's end lacks, up to a second late.
        shown = f"link show {DEVICE}"
        wait_for(lambda: "state LOWERLAYERDOWN" in host.ip(shown), "the device's carrier")
        wait_for(lambda: not changes.take(index), "what the device's start still brings")
        yield lambda: changes.take(index)


def ensure(host: Namespace, side: HostSide) -> list[str]:
    with host.inside():
        return side.ensure()


@pytest.mark.parametrize("kind", LARGE)
def test_a_look_reads_as_much_on_a_large_host(
    host: Namespace, side: HostSide, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    decode = nlmsg_base.decode

    def count(message: Any) -> None:
        read.append(message)
        decode(message)

    assert ensure(host, side) == []
    monkeypatch.setattr(nlmsg_base, "decode", count)
    assert ensure(host, side) == []
    before, read[:] = len(read), []
    host.ip(*map(LARGE[kind], range(MANY)))
    assert ensure(host, side) == []
    assert len(read) == before > 0


@pytest.mark.parametrize(
    ("removal", "done"),
    [
        # With a device's last address the kernel takes its neighbours and routes.
        (f"addr del {METADATA_IP}/32 dev {DEVICE}", ALL[1:4]),
        (f"neigh del 128.0.0.0 dev {DEVICE}", ALL[2:3]),
        (f"neigh change 128.0.0.0 dev {DEVICE} lladdr 02:00:00:00:00:02", ALL[2:3]),
        (f"neigh change 128.0.0.0 dev {DEVICE} nud reachable", ALL[2:3]),
        ("route flush table 2", ALL[3:4]),
        (f"route replace default dev {DEVICE} table 2", ALL[3:4]),
        ("rule del pref 32764", ALL[4:5]),
        ("rule del pref 32765", ALL[5:6]),
    ],
)
def test_what_others_remove_is_put_back(
    host: Namespace, side: HostSide, removal: str, done: list[str]
) -> None:
    host.ip(removal)
    assert ensure(host, side) == done
    assert ensure(host, side) == []
    with host.inside():
        found = read_host(DEVICE, METADATA_IP, table=2)
    assert (found.up, found.route, found.neighbour, found.way_back) == (True, True, True, DEVICE)
    assert all(rule.there for rule in found.rules)


@pytest.mark.parametrize(
    "change",
    [
        "link set tap-metadata down",
        "link del tap-metadata",
        f"addr del {METADATA_IP}/32 dev tap-metadata",
        "addr add 10.9.9.9/32 dev up0",
        "neigh del 128.0.0.0 dev tap-metadata",
        "route flush table 2",
        "rule del pref 32764",
        "rule del pref 32765",
    ],
)
def test_the_kernel_tells_of_each_change(
    host: Namespace, side: HostSide, take: Callable[[], bool], change: str
) -> None:
    assert ensure(host, side) == []
    assert not take(), "a look that has nothing to do is no change"
    host.ip(change)
    assert take()
    assert not take()


@pytest.mark.parametrize(
    "change",
    [
        "link set up0 down",
        "link add one type veth peer name two; link del one",
        "neigh add 10.0.1.1 lladdr 02:00:00:00:00:01 dev up0",
        "route add 198.18.0.0/24 via 10.0.0.2 dev up0",
        "route add 198.18.0.0/24 via 10.0.0.2 dev up0 table 3",
        "route add 198.18.0.0/24 via 10.0.0.2 dev up0 table 1002",
        "addr add fe80::7/64 dev up0 nodad",
    ],
)
def test_changes_of_others_do_not_count(
    host: Namespace, take: Callable[[], bool], change: str
) -> None:
    host.sysctl(**{"net.ipv6.conf.up0.disable_ipv6": 0})
    take()
    host.ip(*change.split("; "))
    assert not take()
    host.ip("rule add from 198.18.0.0/24 lookup 77 pref 1000")
    assert take()


@pytest.mark.parametrize(("table", "other"), [(2, 3), (254, 2), (1002, 2)])
def test_the_routes_of_one_table_count(host: Namespace, table: int, other: int) -> None:
    with closing(Changes(table)) as changes:
        with host.inside():
            index = socket.if_nametoindex(DEVICE)
            assert changes.take(index)
        host.ip(f"route add 198.18.0.0/24 via 10.0.0.2 dev up0 table {other}")
        assert not changes.take(index)
        host.ip(f"route add 198.18.0.0/24 via 10.0.0.2 dev up0 table {table}")
        assert changes.take(index)


def test_another_index_is_a_change_and_its_messages_count(
    host: Namespace, take: Callable[[], bool]
) -> None:
    assert not take()
    with closing(Changes(table=2)) as changes, host.inside():
        first, second = (socket.if_nametoindex(name) for name in (DEVICE, "up0"))
        assert [changes.take(index) for index in (first, first, second, second)] == [
            *(True, False, True, False)
        ]
        host.ip("link set up0 down")
        assert changes.take(second)
        host.ip(f"link set {DEVICE} down")
        assert not changes.take(second)


def test_more_changes_than_the_socket_holds_are_one(
    host: Namespace, take: Callable[[], bool]
) -> None:
    host.ip(*(LARGE["rules"](n) for n in range(MANY)))
    assert take()
    assert not take()


def test_all_of_it_is_put_back_with_the_device(host: Namespace, side: HostSide) -> None:
    host.ip(f"link set {DEVICE} down")
    # The kernel takes the route and the next hop along; the address and the rules stay.
    assert ensure(host, side) == ["up", "neighbour 128.0.0.0", "route in table 2"]
    host.ip(f"link del {DEVICE}")
    with pytest.raises(HostError, match="there is no such device"):
        ensure(host, side)
    host.ip(f"link add {DEVICE} type veth peer name of-tap")
    assert ensure(host, side) == ALL[:4]


def test_a_route_of_anothers_table_is_none_of_ours(host: Namespace, side: HostSide) -> None:
    host.ip("route flush table 2", f"route add default via 128.0.0.0 dev {DEVICE} onlink table 3")
    assert ensure(host, side) == ["route in table 2"]


def test_a_rule_that_an_operator_has_made_is_taken_for_it(host: Namespace, side: HostSide) -> None:
    host.ip("rule del pref 32764", RULE_FROM)
    assert ensure(host, side) == []
    assert host.ip("rule").count(METADATA_IP) == 1


def test_removal_leaves_none_of_it_and_all_else(host: Namespace, side: HostSide) -> None:
    host.ip("rule add from 198.18.0.0/24 lookup 2 pref 32764", f"{RULE_FROM} protocol static")
    with host.inside():
        assert side.remove() == ["rule 32764", "rule 32764", "rule 32765", "route in table 2"]
        assert side.remove() == []
    assert METADATA_IP not in host.ip("rule")
    assert "198.18.0.0/24" in host.ip("rule")
    host.ip(f"link del {DEVICE}")
    with host.inside():
        assert side.remove() == []


@pytest.mark.parametrize("lost", ["at once", "after a look at its routes"])
def test_a_device_that_goes_during_the_removal_is_no_fault(
    host: Namespace, side: HostSide, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """As tap-meta does, which Open vSwitch removes a moment after its row."""
    with host.inside():
        index = socket.if_nametoindex(DEVICE)
    host.ip(f"link del {DEVICE}")
    monkeypatch.setattr(socket, "if_nametoindex", lambda _name: index)
    if lost != "at once":
        monkeypatch.setattr(HostSide, "_routes", lambda *_args: [side.wanted.next_hop])
    with host.inside():
        assert side.remove(device_stays=True) == ["rule 32764", "rule 32765"]


def test_the_hosts_addresses_are_those_of_all_its_devices(host: Namespace, side: HostSide) -> None:
    host.ip("link set up0 down", "addr add 128.0.0.9/32 dev up0", "addr add 10.1.1.1/8 dev lo")
    host.ip("addr add 128.0.0.8/32 dev lo label lo:1")
    ensure(host, side)
    known = {"127.0.0.1", "10.0.0.1", "10.1.1.1", "128.0.0.8", "128.0.0.9", METADATA_IP}
    assert side.addresses() == set(map(IPv4Address, known))
    host.ip("addr del 128.0.0.9/32 dev up0")
    host.ip(*(f"addr add 198.19.0.{n}/32 dev lo" for n in range(200)))
    with host.inside():
        assert len(held_addresses()) == len(known) - 1 + 200


def test_checksum_offload_is_turned_off_again_and_said_once(host: Namespace) -> None:
    for _ in range(2):
        host.run(["ethtool", "-K", DEVICE, "tx", "on"])
        with host.inside():
            assert disable_tx_checksum(DEVICE)
            assert not disable_tx_checksum(DEVICE)
    assert "tx-checksumming: off" in host.run(["ethtool", "-k", DEVICE]).stdout


def test_the_driver_of_a_device_is_told(host: Namespace) -> None:
    host.ip("tuntap add tap0 mode tap")
    with host.inside():
        assert [driver_of(name) for name in (DEVICE, "tap0", "lo", "none0")] == [
            *("veth", "tun", "", ""),
        ]


def test_offload_of_a_device_that_is_gone_is_an_error(host: Namespace) -> None:
    with host.inside(), pytest.raises(HostError, match="TX checksum"):
        disable_tx_checksum("nothing0")


def test_a_table_of_conntrack_that_is_full_is_told_from_one_that_is_used(host: Namespace) -> None:
    host.run([str(UNPACKED / "usr/sbin/nft"), TRACKED])
    with host.inside():
        before = read_conntrack("127.0.1.1", 9)
        assert (before.count, before.guests, before.evicted) == (0, 0, 0)
        assert before.room, "this machine sets no limit: it has no table to fill"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for sent in range(before.room + FURTHER):
                net, port = divmod(sent, 65_535)
                sender.sendto(b"", (f"127.0.{net >> 8}.{net & 255}", port + 1))
                if sent == FURTHER:
                    used = read_conntrack("127.0.0.0", 9)
        full = read_conntrack("127.0.0.0", 9)
    assert (used.count, used.guests, used.evicted, used.dropped) == (FURTHER + 1, 0, 0, 0)
    assert checks_limits.conntrack(used, rate=1000).status is Status.OK
    assert full.evicted > 0
    finding = checks_limits.conntrack(full, rate=1000)
    assert finding.status is Status.WRONG
    assert f"{full.count} of {full.room} entries of conntrack are taken" in finding.text
    assert f"{full.evicted} unanswered connections were evicted" in finding.text
