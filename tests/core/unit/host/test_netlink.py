"""The host's side of the packet path is what was asked for, and the rest of the host stays."""

import errno
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from dfmeta.errors import HostError
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.host import ipv6, netlink, rtnetlink
from dfmeta.host.netlink import HostSide, WantedSide, has_next_hop
from dfmeta.host.rtnetlink import Rtnetlink
from dfmeta.identity.key import NEXT_HOP6
from tests.core.unit.host.kernel import MAC, OTHER, TAP, Kernel, Object
from tests.harness.tier import CLOCK

DEVICES = {"tap-metadata": TAP, "eth0": OTHER}
WANTED = WantedSide("tap-metadata", IPv4Address("169.254.169.254"), 2)
WANTED6 = WantedSide("tap-metadata", IPv6Address("fd00::1"), 2, IPV6, NEXT_HOP6)
MAIN = replace(WANTED, network=IPv4Network("198.18.0.0/15"))
MAIN6 = replace(WANTED6, network=IPv6Network("fd00:1::/64"))


@pytest.fixture(autouse=True)
def host(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the model for what is read without netlink, too."""
    held = tmp_path / "if_inet6"
    held.write_text(
        "fe800000000000000000000000000001 05 40 20 80 tap-metadata\n"
        "fe800000000000000000000000000002 06 40 20 80 eth0\n"
        "fd000000000000000000000000000003 05 40 00 80 tap-metadata\n"
    )
    monkeypatch.setattr(socket, "if_nametoindex", index_of)
    monkeypatch.setattr(netlink, "is_up", lambda device: kernel.up[device])
    monkeypatch.setattr(netlink, "held_addresses", lambda: kernel.addresses4)
    monkeypatch.setattr(ipv6, "_ADDRESSES", held)
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path)


def index_of(device: str) -> int:
    if device not in DEVICES:
        raise OSError(errno.ENODEV, "no such device")
    return DEVICES[device]


def objects_of(wanted: WantedSide) -> dict[str, dict[Object, Object]]:
    """Return what the kernel has of dfmeta for a wanted state."""
    family, address, table = wanted.family, str(wanted.address), wanted.table
    route: Object = (table, None, 0)
    rules = [
        (family.af, 32764, address, family.bits, None, table),
        (family.af, 32765, None, 0, wanted.device, table),
    ]
    if wanted.network is not None:
        route = (254, str(wanted.network.network_address), wanted.network.prefixlen)
        rules = []
    flags = 0x202 if family is IPV6 else None
    return {
        "address": {(family.af, TAP, family.bits, address): (flags,)},
        "neighbour": {(family.af, TAP, wanted.next_hop): (MAC, 0x80)},
        "route": {(family.af, *route): (TAP, wanted.next_hop, 4, 1280)},
        "rule": dict.fromkeys(rules, ()),
    }


def both(
    first: dict[str, dict[Object, Object]], other: dict[str, dict[Object, Object]]
) -> dict[str, dict[Object, Object]]:
    return {name: {**objects, **other[name]} for name, objects in first.items()}


def steps(wanted: WantedSide) -> list[str]:
    """Return the descriptions of all changes, without that of the device's state."""
    prefix = "" if wanted.family is IPV4 else "IPv6 "
    rules = [f"{prefix}rule 32764", f"{prefix}rule 32765"] if wanted.network is None else []
    return [
        f"address {wanted.address}/{wanted.family.bits}",
        f"neighbour {wanted.next_hop}",
        f"{prefix}route in table {2 if wanted.network is None else 254}",
        *rules,
    ]


@pytest.fixture(params=[WANTED, WANTED6, MAIN, MAIN6], ids=["4", "6", "main4", "main6"])
def wanted(request: pytest.FixtureRequest) -> WantedSide:
    return request.param


@pytest.fixture
def generated(kernel: Kernel) -> Iterator[None]:
    """Have the addresses that the kernel generates for devices that come up."""
    for index in (TAP, OTHER):
        kernel.add("address", 10, index, 64, f"fe80::{index - 4}", value=(None,))
    kernel.add("address", 10, TAP, 64, "fd00::3", value=(None,))
    return iter(())


def test_missing_objects_are_made_and_stay_as_they_are(kernel: Kernel, wanted: WantedSide) -> None:
    others, side = kernel.state(), HostSide(wanted)
    assert side.ensure() == ["up", *steps(wanted)]
    assert kernel.state() == both(others, objects_of(wanted))
    assert kernel.up["tap-metadata"]
    kernel.requests.clear()
    assert side.ensure() == []
    added = [request for request in kernel.requests if request.startswith("add")]
    assert added == [], "the kernel announces an address that is added again"


def test_objects_with_other_contents_are_replaced(kernel: Kernel, wanted: WantedSide) -> None:
    side = HostSide(wanted)
    side.ensure()
    complete = kernel.state()
    for name, former in (
        ("neighbour", ("02:00:00:00:00:07", 0x80)),
        ("neighbour", (MAC, 4)),
        ("route", (TAP, None, 0, 0)),
        ("route", (TAP, wanted.next_hop, 4, 0)),
        ("route", (TAP, wanted.next_hop, 4, 1500)),
    ):
        (key,) = objects_of(wanted)[name]
        kernel.objects[name][key] = former
        (step,) = side.ensure()
        assert name in step
        assert kernel.state() == complete, former


def test_the_route_of_another_device_in_the_main_table_stays(kernel: Kernel) -> None:
    for wanted in (MAIN, MAIN6):
        (key,) = objects_of(wanted)["route"]
        kernel.add("route", *key, value=(OTHER, None, 0, 0))
        with pytest.raises(HostError) as caught:
            HostSide(wanted).ensure()
        assert f"the host has another route to {wanted.network}" in str(caught.value)
        assert f"`ip route show {wanted.network}`" in caught.value.remedy
        assert kernel.objects["route"][key] == (OTHER, None, 0, 0)


def test_a_generated_address_of_the_device_is_removed(kernel: Kernel, generated: None) -> None:
    del generated
    assert "no address fe80::1" in HostSide(WANTED6).ensure()
    others = [key[-1] for key in kernel.objects["address"] if key[2] == 64]
    assert others == ["fe80::2", "fd00::3"]


def test_version_4_leaves_generated_addresses(kernel: Kernel, generated: None) -> None:
    del generated
    HostSide(WANTED).ensure()
    assert (10, TAP, 64, "fe80::1") in kernel.objects["address"]


def test_settings_are_made_for_version_6_alone_and_before_the_device_is_up(tmp_path: Path) -> None:
    file = tmp_path / "conf/tap-metadata/accept_ra"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    assert HostSide(WANTED).settle() == []
    assert file.read_text() == "1\n"
    assert HostSide(WANTED6).ensure() == ["accept_ra 0", "up", *steps(WANTED6)]
    assert file.read_text() == "0\n"


def test_addresses_are_those_of_the_host_in_one_family(kernel: Kernel) -> None:
    for wanted, addresses in (
        (WANTED, kernel.addresses4),
        (WANTED6, {IPv6Address(text) for text in ("fe80::1", "fe80::2", "fd00::3")}),
    ):
        side = HostSide(wanted)
        assert side.addresses() == {wanted.address}, "before the first check"
        side.ensure()
        assert side.addresses() == addresses


def test_removal_leaves_the_rest_of_the_host(kernel: Kernel, wanted: WantedSide) -> None:
    others, side = kernel.state(), HostSide(wanted)
    side.ensure()
    kept = {name: objects_of(wanted)[name] for name in ("address", "neighbour")}
    prefix = "" if wanted.family is IPV4 else "IPv6 "
    removed = [f"{prefix}rule 32764", f"{prefix}rule 32765"] if wanted.network is None else []
    removed.append(f"{prefix}route in table {wanted.route_table}")
    assert side.remove() == removed
    assert kernel.state() == both(others, {**kept, "route": {}, "rule": {}})
    with_device = [f"neighbour {wanted.next_hop}", f"address {wanted.address}/{wanted.family.bits}"]
    assert side.remove(device_stays=True) == with_device
    assert kernel.state() == others
    assert side.remove(device_stays=True) == []


def test_removal_takes_the_rules_of_an_earlier_table_and_address(kernel: Kernel) -> None:
    for wanted, former in ((WANTED, "169.254.0.9"), (WANTED6, "fd00::9")):
        others = kernel.state()
        af, bits = wanted.family.af, wanted.family.bits
        kernel.add("rule", af, 32765, None, 0, "tap-metadata", 300)
        kernel.add("rule", af, 32764, former, bits, None, 300)
        kernel.add("rule", af, 32764, str(wanted.address), bits, None, 2)
        others["rule"][af, 32764, former, bits - 8, None, 300] = ()
        others["rule"][af, 1, former, bits, None, 300] = ()
        others["rule"][af, 32764, str(wanted.address), bits, None, 3] = ()
        kernel.objects["rule"].update(others["rule"])
        kernel.add("rule", af, 52, former, bits, None, 300)
        kernel.add("rule", af, 52, None, 0, "tap-metadata", 300)
        names = [step.removeprefix("IPv6 ") for step in HostSide(wanted).remove()]
        tables_last = ["rule 52", "rule 32764", "rule 32764", "rule 52", "rule 32765"]
        assert names == tables_last, "those that name the tables are last"
        assert kernel.state() == others


def test_only_rules_stay_without_a_device(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    HostSide(WANTED).ensure()
    monkeypatch.delitem(DEVICES, "tap-metadata")
    assert HostSide(WANTED).remove(device_stays=True) == ["rule 32764", "rule 32765"]
    with pytest.raises(HostError, match="there is no such device"):
        HostSide(WANTED).ensure()


def test_a_kernel_without_version_6_has_nothing_to_remove(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    HostSide(WANTED6).ensure()
    HostSide(WANTED).ensure()
    monkeypatch.setattr(ipv6, "SYSCTL", tmp_path / "none")
    kernel.changes.clear()
    assert HostSide(WANTED6).remove() == []
    assert kernel.changes == []
    assert HostSide(WANTED).remove() == ["rule 32764", "rule 32765", "route in table 2"]


@pytest.mark.parametrize("wanted", [WANTED, WANTED6], ids=["4", "6"])
def test_rules_move_before_those_of_others_and_back(kernel: Kernel, wanted: WantedSide) -> None:
    others, side = kernel.state(), HostSide(wanted)
    side.ensure()
    complete = kernel.state()
    at_rest = objects_of(wanted)["rule"]
    taker: Object = (wanted.family.af, 5270, None, 0, None, 52)
    kernel.add("rule", *taker)
    selectors = (f"from {wanted.address}", "oif tap-metadata")
    label = "" if wanted.family is IPV4 else "IPv6 "
    assert side.lead() == [
        f"{label}rule 5269 {selector} before '5270: from all lookup 52'" for selector in selectors
    ]
    assert at_rest.keys().isdisjoint(kernel.objects["rule"])
    assert side.lead() == []
    assert not side.is_late
    moved = kernel.state()
    assert HostSide(wanted).lead() == [], "another run leaves them there"
    del kernel.objects["rule"][taker]
    assert side.lead() == [], "it may come again at once"
    CLOCK.advance(netlink.CALM + 1)
    assert side.lead() == [f"{label}rule 32764", f"{label}rule 32765"]
    assert kernel.state() == complete
    kernel.objects = moved
    assert len([step for step in HostSide(wanted).remove() if "rule 5269" in step]) == 2
    del kernel.objects["rule"][taker]
    assert kernel.objects["rule"] == others["rule"]


@pytest.mark.parametrize("wanted", [WANTED, MAIN6], ids=["4", "main6"])
def test_undo_removes_moved_rules_of_this_run(kernel: Kernel, wanted: WantedSide) -> None:
    others, side = kernel.state(), HostSide(wanted)
    side.ensure()
    taker: Object = (wanted.family.af, 5270, None, 0, None, 52)
    kernel.add("rule", *taker)
    assert side.lead()
    side.undo()
    del kernel.objects["rule"][taker]
    assert kernel.state() == others
    HostSide(wanted).ensure()
    kernel.add("rule", *taker)
    later = HostSide(wanted)
    later.lead()
    complete = kernel.state()
    later.undo()
    expected = complete if wanted.network is None else kernel.state()
    assert kernel.state() == expected, "rules of an earlier run serve its guests"


def test_rival_rule_is_logged_once(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    side = HostSide(WANTED)
    side.ensure()
    moves = 0
    for priority in range(30000, 29900, -2):
        kernel.objects["rule"] = {
            key: () for key in kernel.objects["rule"] if key[-1] != 52 or key[0] != 2
        }
        kernel.add("rule", 2, priority, None, 0, None, 52)
        CLOCK.advance(1)
        moves += bool(side.lead())
    assert side.is_late
    assert 8 < moves < 16, "each pause is longer than the one before"
    (record,) = caplog.records
    assert "from all lookup 52' of another program" in record.getMessage()


def test_undo_removes_what_the_side_has_made(kernel: Kernel, wanted: WantedSide) -> None:
    others, side = kernel.state(), HostSide(wanted)
    made = side.ensure()
    assert side.undo() == made[::-1]
    assert kernel.state() == others
    assert not kernel.up["tap-metadata"]
    assert side.undo() == []


def test_undo_leaves_what_was_there_before(kernel: Kernel, wanted: WantedSide) -> None:
    HostSide(wanted).ensure()
    complete, side = kernel.state(), HostSide(wanted)
    assert side.ensure() == []
    assert side.undo() == []
    assert kernel.state() == complete
    (key,) = objects_of(wanted)["route"]
    del kernel.objects["route"][key]
    side.ensure()
    # The kernel takes the route of an address along.
    del kernel.objects["route"][key]
    assert side.undo() == []


def test_a_former_configuration_leaves_what_the_new_one_needs(kernel: Kernel) -> None:
    for wanted in (WANTED, WANTED6):
        prefix = "" if wanted.family is IPV4 else "IPv6 "
        address = type(wanted.address)(int(wanted.address) + 7)
        for former, removed in (
            (wanted, []),
            (
                replace(wanted, table=300),
                [f"{prefix}rule 32764", f"{prefix}rule 32765", f"{prefix}route in table 300"],
            ),
            (
                replace(wanted, address=address),
                [f"{prefix}rule 32764", f"address {address}/{wanted.family.bits}"],
            ),
            (MAIN if wanted is WANTED else MAIN6, [f"{prefix}route in table 254"]),
        ):
            others = kernel.state()
            HostSide(former).ensure()
            HostSide(wanted).ensure()
            assert HostSide(former).remove(device_stays=True, keep=wanted) == removed
            assert kernel.state() == both(others, objects_of(wanted))
            kernel.objects = others


def test_of_a_former_device_only_rules_are_left(kernel: Kernel) -> None:
    former = replace(WANTED, device="gone", address=IPv4Address("169.254.0.9"))
    HostSide(WANTED).ensure()
    kernel.add("address", 2, TAP, 32, "169.254.0.9", value=(None,))
    complete = kernel.state()
    kernel.add("rule", 2, 32765, None, 0, "gone", 2)
    assert HostSide(former).remove(device_stays=True, keep=WANTED) == ["rule 32765"]
    assert kernel.state() == complete


def test_a_refusal_names_the_object(kernel: Kernel) -> None:
    for request, error in (
        ("link", "up"),
        ("add address", "address 169.254.169.254/32"),
        ("add neighbour", "neighbour 128.0.0.0"),
        ("add route", "route in table 2"),
        ("add rule", "rule 32764"),
        ("get neighbour", "reading the network configuration"),
        ("get route", "reading the network configuration"),
    ):
        kernel.refused = {request: errno.EPERM}
        with pytest.raises(HostError) as caught:
            HostSide(WANTED).ensure()
        assert error in str(caught.value), request
        kernel.refused = {}
    kernel.refused = {"add route": errno.EPERM}
    with pytest.raises(HostError) as caught:
        HostSide(MAIN).ensure()
    assert "another route" not in str(caught.value)


def test_a_removal_that_the_kernel_refuses_is_no_removal(kernel: Kernel) -> None:
    HostSide(WANTED).ensure()
    for code in (errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.ENODEV):
        names = ("rule", "route", "neighbour", "address")
        kernel.refused = {f"del {name}": code for name in names}
        assert HostSide(WANTED).remove(device_stays=True) == [], "it is gone already"
    for name in names:
        kernel.refused = {f"del {name}": errno.EPERM}
        with pytest.raises(HostError, match=name):
            HostSide(WANTED).remove(device_stays=True)


def test_host_without_rtnetlink_is_error(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    del kernel

    def refuse() -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(rtnetlink, "_open", refuse)
    for call in (HostSide(WANTED).ensure, HostSide(WANTED).remove, HostSide(WANTED).undo):
        with pytest.raises(HostError, match="reading the network configuration"):
            call()


def test_a_next_hop_that_cannot_be_read_is_an_error(kernel: Kernel) -> None:
    with Rtnetlink() as ipr:
        assert not has_next_hop(ipr, TAP)
        kernel.refused = {"get neighbour": errno.ENODEV}
        with pytest.raises(NetlinkError):
            has_next_hop(ipr, TAP)
