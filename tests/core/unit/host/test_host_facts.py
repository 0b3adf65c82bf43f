"""What commands read of the host is what the kernel has."""

import errno
from dataclasses import replace
from ipaddress import IPv4Network, ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest

from dfmeta.errors import HostError
from dfmeta.flows.family import IPV6
from dfmeta.host import host_facts
from dfmeta.host.host_facts import HostFacts, LimitFacts, RuleFact, read_host
from dfmeta.host.listeners import TcpListener
from dfmeta.identity.key import NEXT_HOP6
from tests.core.unit.host.kernel import MAC, OTHER, TAP, Kernel

ADDRESS, ADDRESS6 = "169.254.169.254", "fd00::1"
LISTENER = TcpListener(ip_address(ADDRESS), 80, 7)
LISTENER6 = TcpListener(ip_address(ADDRESS6), 80, 8)
KEY = "128.0.0.1"
"""The key of the first port, and the source of the daemon's own SYN."""


@pytest.fixture(autouse=True)
def host(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have the whole side of version 4; return the folder of the settings."""
    kernel.add("address", 2, TAP, 32, ADDRESS, value=(None,))
    kernel.add("address", 10, TAP, 128, ADDRESS6, value=(None,))
    kernel.add("rule", 2, 32764, ADDRESS, 32, None, 2)
    kernel.add("rule", 2, 32765, None, 0, "tap-metadata", 2)
    kernel.add("route", 2, 2, None, 0, value=(TAP, "128.0.0.0", 4, 1280))
    kernel.add("neighbour", 2, TAP, "128.0.0.0", value=(MAC, 0x80))
    kernel.ways = {KEY: TAP}
    for name, value in {
        "core/somaxconn": 4096,
        "ipv4/tcp_syncookies": 1,
        "ipv4/neigh/default/gc_thresh3": 1024,
        "ipv4/ip_local_port_range": "32768\t60999",
        "ipv4/conf/all/rp_filter": 1,
        "ipv4/conf/tap-metadata/rp_filter": 2,
        "ipv4/conf/all/arp_ignore": 1,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    monkeypatch.setattr(host_facts, "tcp_listeners", lambda: [LISTENER, LISTENER6])
    monkeypatch.setattr(host_facts, "tx_checksum", lambda _device: False)
    monkeypatch.setattr(host_facts, "_NET", tmp_path)
    return tmp_path


def read(device: str = "tap-metadata", **how: Any) -> HostFacts:
    address = ADDRESS6 if how.get("family") is IPV6 else ADDRESS
    facts = read_host(device, address, table=2, **how)
    assert facts.limits.neighbours >= 0
    return replace(facts, limits=replace(facts.limits, neighbours=0))


WHOLE = HostFacts(
    up=True,
    carrier=True,
    addresses=(
        ("eth0", ip_interface("10.0.0.1/24")),
        ("tap-metadata", ip_interface(f"{ADDRESS}/32")),
    ),
    rules=(RuleFact(f"from {ADDRESS}", 32764, True), RuleFact("oif tap-metadata", 32765, True)),
    route=True,
    neighbour=True,
    way_back="tap-metadata",
    rp_filter=(1, 2),
    arp_ignore=1,
    tx_checksum=False,
    listeners=(LISTENER,),
    limits=LimitFacts(4096, 1, 0, 1024, 28232),
)


def test_a_whole_side_is_read(kernel: Kernel) -> None:
    del kernel
    assert read() == WHOLE


def test_each_missing_part_is_seen(kernel: Kernel, host: Path) -> None:
    first, second = WHOLE.rules
    changes: list[tuple[str, tuple[object, ...], dict[str, Any]]] = [
        (
            "rule",
            (2, 32764, ADDRESS, 32, None, 2),
            {"rules": (replace(first, present=False), second)},
        ),
        (
            "rule",
            (2, 32765, None, 0, "tap-metadata", 2),
            {"rules": (first, replace(second, present=False))},
        ),
        ("route", (2, 2, None, 0), {"route": False}),
        ("neighbour", (2, TAP, "128.0.0.0"), {"neighbour": False}),
        ("address", (2, TAP, 32, ADDRESS), {"addresses": WHOLE.addresses[:1]}),
    ]
    for name, key, change in changes:
        value = kernel.objects[name].pop(key)
        assert read() == replace(WHOLE, **change), name
        kernel.objects[name][key] = value
    for flags, up, carrier in ((0x1043, True, False), (0x11042, False, True)):
        kernel.links[TAP] = ("tap-metadata", flags)
        assert read() == replace(WHOLE, up=up, carrier=carrier)
    (host / "ipv4/neigh/default/gc_thresh3").unlink()
    (host / "ipv4/conf/all/arp_ignore").unlink()
    assert (read().limits.neighbours_max, read().arp_ignore) == (None, 0)


def test_without_the_device_the_rest_is_read(kernel: Kernel) -> None:
    del kernel
    facts = read("nowhere")
    assert (facts.up, facts.carrier, facts.route, facts.neighbour) == (None, False, False, False)
    assert (facts.tx_checksum, facts.rp_filter) == (None, (1, 0))
    assert facts.addresses == WHOLE.addresses


def test_the_way_back_is_that_of_a_key_that_the_host_does_not_have(kernel: Kernel) -> None:
    kernel.add("address", 2, OTHER, 32, KEY, value=(None,))
    kernel.ways = {KEY: 1, "144.0.0.1": OTHER}
    assert read().way_back == "eth0"
    kernel.ways = {}
    assert read().way_back == "Network is unreachable"


def test_a_route_of_the_main_table_needs_no_rules(kernel: Kernel) -> None:
    network = IPv4Network("198.18.0.0/15")
    assert not read(network=network).route
    kernel.add("route", 2, 254, "198.18.0.0", 15, value=(TAP, "128.0.0.0", 4, 1280))
    facts = read(network=network)
    assert (facts.route, facts.rules) == (True, ())


def test_version_6_has_its_own_objects(kernel: Kernel) -> None:
    facts = read(family=IPV6)
    assert (facts.route, facts.neighbour) == (False, False)
    assert ("tap-metadata", ip_interface(f"{ADDRESS6}/128")) in facts.addresses
    kernel.add("route", 10, 2, None, 0, value=(TAP, NEXT_HOP6, 4, 1280))
    kernel.add("neighbour", 10, TAP, NEXT_HOP6, value=(MAC, 0x80))
    facts = read(family=IPV6)
    assert (facts.route, facts.neighbour, facts.rp_filter) == (True, True, (0, 0))


def test_offload_is_unknown_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
        monkeypatch.setattr(host_facts, "tx_checksum", refuse(code))
        assert read().tx_checksum is None
    monkeypatch.setattr(host_facts, "tx_checksum", refuse(errno.EIO))
    with pytest.raises(HostError, match="reading the host's network"):
        read()


def test_a_kernel_that_refuses_is_an_error(kernel: Kernel) -> None:
    kernel.refused = {"get rule": errno.EPERM}
    with pytest.raises(HostError, match="reading the host's network on tap-metadata"):
        read()


def refuse(code: int) -> object:
    def call(_device: str) -> bool:
        raise OSError(code, "refused")

    return call
