"""A family should have the kernel's own numbers, and all of the host's side should go by it."""

from __future__ import annotations

import socket
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.exceptions import HostError
from dfmeta.flows.classify import guest_syn
from dfmeta.flows.family import FAMILIES, IPV4, IPV6, Family, family_of
from dfmeta.flows.flow import Output
from dfmeta.flows.pipeline import PORT_IN_PORT
from dfmeta.flows.service import first_syn
from dfmeta.host import ipv6, netlink
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.model import Endpoint
from tests.core.unit.support import TAP6

ADDRESS, HOP = IPv4Address("169.254.169.254"), "192.0.2.7"
ADDRESS6, HOP6 = IPv6Address("fd00::1"), "fe80::7"
WANTED = {IPV4: Wanted("lo", ADDRESS, 2, IPV4, HOP), IPV6: Wanted("lo", ADDRESS6, 2, IPV6, HOP6)}
OTHER = {IPV4: IPv4Address("192.0.2.1"), IPV6: IPv6Address("fd00::2")}


class Asked:
    """A routing socket that notes the family, and the lengths of prefixes, that it is asked for."""

    def __init__(self) -> None:
        self.families: list[int] = []
        self.bits: list[int] = []
        self.hops: list[str] = []
        self.flags: list[int] = []

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def addr(self, _command: str, **request: Any) -> None:
        self.bits.append(request["prefixlen"])
        self.flags.append(request.get("flags", 0))

    def rule(self, _command: str, **request: Any) -> None:
        self.families.append(request["family"])
        self.bits += [request["src_len"]] if "src_len" in request else []

    def rules(self, family: int) -> list[Any]:
        self.families.append(family)
        return []

    def neigh(self, command: str, **request: Any) -> list[Any]:
        self.families.append(request["family"])
        self.hops.append(request["dst"])
        return [SimpleNamespace(get_attr=lambda _name: "")] if command == "get" else []

    def route(self, _command: Any, **request: Any) -> list[Any]:
        self.families.append(request["family"])
        self.hops += [request["gateway"]] if "gateway" in request else []
        return []


FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda one: f"IPv{one.version}")


@FAMILY
def test_a_familys_numbers_are_the_kernels_and_its_flows_match_its_own_fields(
    family: Family,
) -> None:
    af, zero = {IPV4: (socket.AF_INET, IPv4Address(0)), IPV6: (socket.AF_INET6, IPv6Address(0))}[
        family
    ]
    assert (family.af, family.bits, family.version) == (af, zero.max_prefixlen, zero.version)
    assert family_of(zero.version) is family
    service = TAP6.service(family.version)
    key = TAP6.keys.probe_key(family.version)
    request = family.guest_request(Endpoint(13), TAP6.mac, service.guest_ips[0])
    assert request.field(family.asked) == service.guest_ips[0]
    assert (request.field("in_port"), request.field("vlan_vid")) == (13, 0)
    answer = family.key_request(key, TAP6.mac)
    assert answer.field(family.asked) == key
    assert answer.actions[-1] == Output(PORT_IN_PORT)
    syn = guest_syn(Endpoint(13), service.guest_ips[0], family, meter=None)
    assert syn.field(family.destination) == service.guest_ips[0]
    assert syn.field("eth_type") == family.eth_type
    assert first_syn(Endpoint(13), family, meter=None).field(family.source) is None


@FAMILY
def test_the_hosts_side_is_of_its_family_alone(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, settled = Asked(), list[str]()
    monkeypatch.setattr(netlink, "Rtnetlink", lambda: asked)
    monkeypatch.setattr(ipv6, "settle", lambda device: settled.append(device) or [])
    wanted = WANTED[family]
    side = HostSide(wanted)
    assert f"address {wanted.address}/{family.bits}" in side.ensure()
    side.remove(device_stays=True)
    side.remove_former(replace(wanted, table=3, address=OTHER[family]))
    assert set(asked.families) == {int(family.af)}
    assert set(asked.bits) == {family.bits}
    assert set(asked.hops) == {wanted.next_hop}
    # IFA_F_NODAD and IFA_F_NOPREFIXROUTE: a tentative address takes no listener.
    assert asked.flags[0] == (0x202 if family is IPV6 else 0)
    assert settled == (["lo"] if family is IPV6 else [])


def test_a_device_that_is_missing_is_named() -> None:
    with pytest.raises(HostError, match="no such device"):
        HostSide(Wanted("nowhere", ADDRESS, 2)).ensure()
