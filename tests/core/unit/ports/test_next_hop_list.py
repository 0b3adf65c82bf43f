"""Guest next hops should be read from any text, and a wrong entry should cost itself alone."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.model import NextHop, PortState
from dfmeta.ports.next_hop_list import KEY, MOST, SHOWN, fixed_ips, of_dhcp_ports, parse
from dfmeta.ports.vif import InterfaceRow, vifs
from tests.core.unit.support import GUEST_MAC, INSTANCE

MAC = "fa:16:3e:00:00:02"
HOP = NextHop("10.0.0.2", MAC)


def test_entries_are_separated_by_spaces_or_commas() -> None:
    first, other = NextHop("10.0.0.2"), NextHop("10.0.0.3")
    for text, hops in (
        ("", ()),
        (" , ", ()),
        ("10.0.0.2", (first,)),
        (f"10.0.0.2={MAC}", (HOP,)),
        (f"10.0.0.2={MAC.upper()}", (HOP,)),
        (f"10.0.0.2={MAC},10.0.0.3", (HOP, other)),
        (f"  10.0.0.3 \n, 10.0.0.2={MAC} ", (other, HOP)),
    ):
        assert parse(text) == (hops, ()), text


WRONG_ENTRIES = [
    ("nonsense", "not an IPv4 address"),
    ("10.0.0", "not an IPv4 address"),
    ("fe80::1", "not an IPv4 address"),
    ("169.254.169.254", "the address of the service"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("127.0.0.1", "loopback"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("255.255.255.255", "broadcast"),
    ("10.0.0.3=", "not of the form"),
    ("10.0.0.3=fa:16:3e:00:00", "not of the form"),
    ("10.0.0.3=fa-16-3e-00-00-02", "not of the form"),
    ("10.0.0.3=01:00:5e:00:00:01", "not that of a host"),
    ("10.0.0.3=00:00:00:00:00:00", "not that of a host"),
    ("10.0.0.3=ff:ff:ff:ff:ff:ff", "not that of a host"),
    ("10.0.0.2", "twice"),
]


def test_a_wrong_entry_is_named_with_its_cause() -> None:
    for entry, cause in WRONG_ENTRIES:
        hops, (fault,) = parse(f"10.0.0.2={MAC} {entry}")
        assert hops == (HOP,), entry
        assert fault.startswith(f"external_ids:{KEY} has {entry!r}: ")
        assert cause in fault
    _hops, (fault,) = parse("x" * 1000)
    assert f"'{'x' * SHOWN}'...: " in fault


def test_a_port_has_a_bounded_number_of_them_and_of_faults() -> None:
    hops, faults = parse(" ".join(f"10.0.0.{n}" for n in range(1, 3 * MOST)))
    assert [one.ip for one in hops] == [f"10.0.0.{n}" for n in range(1, MOST + 1)]
    assert len(faults) == MOST
    assert all(f"{MOST} guest next hops" in one for one in faults)


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    hops, faults = parse(text)
    assert len(hops) <= MOST
    assert all(str(IPv4Address(one.ip)) == one.ip for one in hops)
    assert all(len(one) < 200 for one in faults)


def test_a_port_has_those_of_its_row_and_a_wrong_one_does_not_stop_it() -> None:
    ids = {"vm-uuid": INSTANCE, "attached-mac": GUEST_MAC, KEY: f"10.0.0.2={MAC} x"}
    (port,) = vifs(InterfaceRow("row", "tap1", ofport=(5,), external_ids=ids))
    assert (port.state, port.next_hops) == (PortState.SERVED, (HOP,))
    assert len(port.next_hop_faults) == 1


# Neutron's DHCP ports


def dhcp(mac: Any, *ips: Any) -> dict[str, Any]:
    return {"mac_address": mac, "fixed_ips": [{"ip_address": ip} for ip in ips]}


def test_each_ipv4_address_of_a_dhcp_port_is_one() -> None:
    rows = [dhcp("FA:16:3E:00:00:03", "10.0.0.30", "fd00::3", "10.0.0.9"), dhcp(MAC, "10.0.0.2")]
    assert of_dhcp_ports(rows) == (
        NextHop("10.0.0.2", MAC, "neutron"),
        NextHop("10.0.0.9", "fa:16:3e:00:00:03", "neutron"),
        NextHop("10.0.0.30", "fa:16:3e:00:00:03", "neutron"),
    )
    assert of_dhcp_ports(reversed(rows)) == of_dhcp_ports(rows)


def test_an_address_that_can_be_no_next_hop_is_left_out() -> None:
    rows = [dhcp(MAC, "169.254.169.254", "224.0.0.1"), dhcp("nonsense", "10.0.0.2"), {}]
    assert of_dhcp_ports(rows) == (NextHop("10.0.0.2", "", "neutron"),)
    for fixed in (None, 5, "10.0.0.2", [None], [{"ip_address": []}], [{}]):
        assert fixed_ips({"fixed_ips": fixed}) == []
