"""A guest's network as values, and as Nova's ``network_data.json``. Pure functions.

Names and types are those of Nova (nova/virt/netutils.py and
https://docs.openstack.org/nova/latest/user/metadata.html). cloud-init takes the same file with its
``convert_net_json`` (cloudinit/sources/helpers/openstack.py): what that makes of a link says what a
link may be here.

Trust: values come from a document of any types; the caller has checked each.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any, Final, Literal

from dfmeta.store.db.networks import Address, Network

STATIC: Final = {4: "ipv4", 6: "ipv6"}
"""Type of a network with an address of its own, by the version of IP."""
DYNAMIC: Final = ("ipv4_dhcp", "ipv6_dhcp", "ipv6_slaac", "ipv6_dhcpv6-stateless")
DYNAMIC_STATEFUL: Final = "ipv6_dhcpv6-stateful"
DHCP6: Final = ("ipv6_dhcp", DYNAMIC_STATEFUL)
"""Those of a link that takes router advertisements beside an address of its own."""
SLAAC: Final = ("ipv6_slaac", "ipv6_dhcpv6-stateless")

Interface = IPv4Interface | IPv6Interface


class UnfitError(ValueError):
    """The network is one that ``network_data.json`` cannot say, or not in a form that is known."""


@dataclass(frozen=True, slots=True)
class Route:
    """A network that a gateway leads to."""

    to: Network
    via: Address

    @property
    def is_default(self) -> bool:
        """Whether it leads everywhere."""
        return self.to.prefixlen == 0


@dataclass(slots=True, kw_only=True)
class Link:
    """A device of the guest's, with its addresses."""

    id: str
    kind: Literal["phy", "bond", "vlan"]
    mac: str
    """Lower case."""
    name: str = ""
    """The guest is to give it that name; empty: it has the kernel's, or cloud-init's."""
    mtu: int | None = None
    addresses: list[Interface] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    dynamic: list[str] = field(default_factory=list)
    """Types of networks that give the guest an address."""
    dns: list[Address] = field(default_factory=list)
    advertisements: bool | None = None
    """Whether it takes routers' advertisements; None: as it likes."""
    members: tuple[str, ...] = ()
    """Ids of a bond's links."""
    bond: Mapping[str, str | int] = field(default_factory=dict)
    """Members of a bond's link that say how it works."""
    below: str = ""
    """Id of the link that a VLAN is on."""
    vlan: int = 0


def network_data(links: Sequence[Link], dns: Iterable[Address] = ()) -> dict[str, Any]:
    """Return links as ``network_data.json`` has them.

    :param dns: name servers of the guest, beside those of its links.
    :raises UnfitError: it cannot say them.
    """
    phys = [link.mac for link in links if link.kind == "phy"]
    if len({link.id for link in links}) != len(links) or len(set(phys)) != len(phys):
        raise UnfitError("two links are one")
    networks = [one for link in links for one in _networks(link)]
    for number, one in enumerate(networks):
        one["id"] = one["network_id"] = f"network{number}"
    if not networks:
        raise UnfitError("no link has an address")
    servers = [one for link in links for one in link.dns]
    return {
        "links": [_link(link, links) for link in links],
        "networks": networks,
        "services": _services([*servers, *dns]),
    }


def _link(link: Link, links: Sequence[Link]) -> dict[str, Any]:
    """Return a link. Nova has no member ``name``, and cloud-init takes one."""
    found: dict[str, Any] = {"id": link.id, "type": link.kind, "ethernet_mac_address": link.mac}
    if link.kind == "bond":
        found |= {"bond_links": list(link.members), **link.bond}
        _check_below(link.members, links, "phy")
    if link.kind == "vlan":
        found |= {"vlan_id": link.vlan, "vlan_link": link.below, "vlan_mac_address": link.mac}
        _check_below([link.below], links, "phy", "bond")
    if link.mtu:
        found["mtu"] = link.mtu
    if link.name:
        found["name"] = link.name
    return found


def _check_below(ids: Sequence[str], links: Sequence[Link], *kinds: str) -> None:
    known = {link.id for link in links if link.kind in kinds}
    if not ids or not known.issuperset(ids):
        raise UnfitError("a link is on one that is not there")


def _networks(link: Link) -> list[dict[str, Any]]:
    """Return a link's networks, static ones first: cloud-init goes by the last one that says
    whether routers' advertisements are taken."""
    routes: list[list[dict[str, str]]] = [[] for _ in link.addresses]
    for route in link.routes:
        routes[_next_to(route, link.addresses)].append(_route(route))
    _check_advertisements(link)
    static: list[dict[str, Any]] = [
        {
            "type": STATIC[one.version],
            "ip_address": str(one.ip),
            "netmask": str(one.netmask),
            "routes": led,
        }
        for one, led in zip(link.addresses, routes, strict=True)
    ]
    common = {"link": link.id, "services": _services(link.dns)}
    return [{**one, **common} for one in (*static, *({"type": kind} for kind in link.dynamic))]


def _next_to(route: Route, addresses: Sequence[Interface]) -> int:
    """Return the index of the address that a route's gateway is a neighbour of."""
    for number, address in enumerate(addresses):
        same = route.via.version == route.to.version == address.version
        # A router of IPv6 may be known by the address that it has on the link alone (RFC 4861).
        neighbour = route.via.version == 6 and route.via.is_link_local
        if same and (neighbour or route.via in address.network):
            return number
    raise UnfitError("a gateway is in none of the networks")


def _check_advertisements(link: Link) -> None:
    """See that the guest takes routers' advertisements, or not, as the link says.

    It takes none beside an IPv6 address of its own: with no route out it would be cut off.
    """
    static = any(address.version == 6 for address in link.addresses)
    out = any(route.is_default and route.to.version == 6 for route in link.routes)
    stateful = any(kind in DHCP6 for kind in link.dynamic)
    slaac = any(kind in SLAAC for kind in link.dynamic)
    if static and slaac:
        raise UnfitError("an IPv6 address stands beside SLAAC")
    if link.advertisements is None:
        fits = stateful or not static or out
    elif link.advertisements:
        fits = stateful or slaac
    else:
        fits = static and not stateful
    if not fits:
        raise UnfitError("it cannot say of routers' advertisements what the link says")


def _route(route: Route) -> dict[str, str]:
    return {
        "network": str(route.to.network_address),
        "netmask": str(route.to.netmask),
        "gateway": str(route.via),
    }


def _services(servers: Iterable[Address]) -> list[dict[str, str]]:
    return [{"type": "dns", "address": str(one)} for one in dict.fromkeys(servers)]


def interface(text: object, mask: object = None) -> Interface:
    """Return an address with its prefix.

    :param text: ``10.0.0.5/24``, or without a prefix where *mask* has it.
    :param mask: a netmask, or a prefix' length; None: there is none.
    :raises UnfitError: it is no such address.
    """
    if not isinstance(text, str) or isinstance(mask, bool) or ("/" in text) == (mask is not None):
        raise UnfitError("no address with a prefix")
    try:
        if isinstance(mask, str) and ":" in mask:
            # The standard library knows no netmask of IPv6.
            bits = f"{int(ipaddress.IPv6Address(mask)):0128b}"
            if "01" in bits:
                raise UnfitError("no netmask")
            mask = bits.count("1")
        found = ipaddress.ip_interface(text if mask is None else f"{text}/{mask}")
    except ValueError as error:
        raise UnfitError("no address with a prefix") from error
    if getattr(found, "scope_id", None):
        raise UnfitError("a zone means something on one host alone")
    return found


def network(text: object, mask: object = None) -> Network:
    """Return a network; see :func:`interface`."""
    return interface(text, mask).network


def address(text: object) -> Address:
    """Return an address without a prefix.

    :raises UnfitError: it is none.
    """
    if not isinstance(text, str) or "%" in text:
        raise UnfitError("no address")
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise UnfitError("no address") from error
