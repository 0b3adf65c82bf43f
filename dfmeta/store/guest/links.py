"""A guest's network as values, written in Nova's form and cloud-init's. Pure functions.

Names and types are those of Nova (nova/virt/netutils.py and
https://docs.openstack.org/nova/latest/user/metadata.html). cloud-init reads the same file with its
``convert_net_json`` (cloudinit/sources/helpers/openstack.py). The results of that function
determine which links are possible here.

cloud-init's network configuration, version 2, is for NoCloud
(https://docs.cloud-init.io/en/latest/reference/network-config-format-v2.html). There, a device is
found by its MAC, and keeps its name unless another device is on it: cloud-init's renderers take the
key of a bond's member or of a VLAN's parent for its name.

Trust: values come from a document, where they may be of any type; the caller has checked each one.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any, Final, Literal

from dfmeta.store.db.record import Address, Network

STATIC: Final = {4: "ipv4", 6: "ipv6"}
"""Type of a network with a static address, by IP version."""
DYNAMIC: Final = ("ipv4_dhcp", "ipv6_dhcp", "ipv6_slaac", "ipv6_dhcpv6-stateless")
DYNAMIC_STATEFUL: Final = "ipv6_dhcpv6-stateful"
DHCP6: Final = ("ipv6_dhcp", DYNAMIC_STATEFUL)
"""Types with which a link accepts router advertisements beside a static address."""
SLAAC: Final = ("ipv6_slaac", "ipv6_dhcpv6-stateless")
BOND: Final = {
    "bond_mode": "mode",
    "bond_miimon": "mii-monitor-interval",
    "bond_xmit_hash_policy": "transmit-hash-policy",
    "bond_lacp_rate": "lacp-rate",
}
"""Parameters of a bond in ``network_data.json`` → their names in cloud-init's version 2."""

_DEVICES: Final = {"phy": "ethernets", "bond": "bonds", "vlan": "vlans"}
"""Type of a link → the member with such devices in cloud-init's version 2."""

Interface = IPv4Interface | IPv6Interface


class UnfitError(ValueError):
    """``network_data.json`` cannot express the network, or the network has an unknown form."""


@dataclass(frozen=True, slots=True)
class GuestRoute:
    """A network and the gateway to it."""

    to: Network
    via: Address

    @property
    def is_default(self) -> bool:
        """Whether it is a default route."""
        return self.to.prefixlen == 0


@dataclass(slots=True, kw_only=True)
class Link:
    """A network device of the guest, with its addresses."""

    id: str
    kind: Literal["phy", "bond", "vlan"]
    mac: str
    """Lower case."""
    name: str = ""
    """Name that the guest gives to the device; empty: the kernel or cloud-init chooses it."""
    mtu: int | None = None
    addresses: list[Interface] = field(default_factory=list)
    routes: list[GuestRoute] = field(default_factory=list)
    dynamic: list[str] = field(default_factory=list)
    """Types of networks that give the guest an address."""
    dns: list[Address] = field(default_factory=list)
    advertisements: bool | None = None
    """Whether it accepts router advertisements; None: the guest decides."""
    members: tuple[str, ...] = ()
    """Ids of a bond's links."""
    bond: Mapping[str, str | int] = field(default_factory=dict)
    """Parameters of a bond, as members of its link."""
    below: str = ""
    """Id of the link that a VLAN is on."""
    vlan: int = 0


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """All devices of a guest."""

    links: Sequence[Link]
    dns: Sequence[Address] = ()
    """Name servers of the guest, in addition to those of its links."""

    def check(self) -> None:
        """Check that the guest can tell the devices apart, and gets an address.

        :raises UnfitError: it cannot, or gets none.
        """
        macs = [link.mac for link in self.links if link.kind == "phy"]
        ids = [link.id for link in self.links]
        names = [link.name or link.id for link in self.links]
        if any(len({*texts}) != len(texts) for texts in (macs, ids, names)):
            raise UnfitError("two links have the same id, name or MAC")
        if not any(link.addresses or link.dynamic for link in self.links):
            raise UnfitError("no link has an address")


def network_data(guest: GuestNetwork) -> dict[str, Any]:
    """Return the content of ``network_data.json``.

    :raises UnfitError: the file cannot express the links.
    """
    links = guest.links
    networks = [item for link in links for item in _networks(link)]
    for number, item in enumerate(networks):
        item["id"] = item["network_id"] = f"network{number}"
    servers = [server for link in links for server in link.dns]
    return {
        "links": [_link(link, links) for link in links],
        "networks": networks,
        "services": _services([*servers, *guest.dns]),
    }


def with_dhcp(mac: str) -> dict[str, Any]:
    """Return the content of ``network_data.json`` for one device that asks DHCP over IPv4."""
    return network_data(GuestNetwork([Link(id="nic0", kind="phy", mac=mac, dynamic=[DYNAMIC[0]])]))


def _link(link: Link, links: Sequence[Link]) -> dict[str, Any]:
    """Return a link. The member ``name`` is not Nova's; cloud-init accepts it."""
    entry: dict[str, Any] = {"id": link.id, "type": link.kind, "ethernet_mac_address": link.mac}
    if link.kind == "bond":
        entry |= {"bond_links": list(link.members), **link.bond}
        _check_below(link.members, links, "phy")
    if link.kind == "vlan":
        entry |= {"vlan_id": link.vlan, "vlan_link": link.below, "vlan_mac_address": link.mac}
        _check_below([link.below], links, "phy", "bond")
    if link.mtu:
        entry["mtu"] = link.mtu
    if link.name:
        entry["name"] = link.name
    return entry


def _check_below(ids: Sequence[str], links: Sequence[Link], *kinds: str) -> None:
    possible = {link.id for link in links if link.kind in kinds}
    if not ids or not possible.issuperset(ids):
        raise UnfitError("a link is on an unknown link")


def _networks(link: Link) -> list[dict[str, Any]]:
    """Return a link's networks, static ones first: the last one that sets whether router
    advertisements are accepted is decisive for cloud-init."""
    routes: list[list[dict[str, str]]] = [[] for _ in link.addresses]
    for route in link.routes:
        routes[_next_to(route, link.addresses)].append(_route(route))
    _check_advertisements(link)
    static: list[dict[str, Any]] = [
        {
            "type": STATIC[entry.version],
            "ip_address": str(entry.ip),
            "netmask": str(entry.netmask),
            "routes": led,
        }
        for entry, led in zip(link.addresses, routes, strict=True)
    ]
    common = {"link": link.id, "services": _services(link.dns)}
    return [{**entry, **common} for entry in (*static, *({"type": kind} for kind in link.dynamic))]


def _next_to(route: GuestRoute, addresses: Sequence[Interface]) -> int:
    """Return the index of the address with the route's gateway in its network."""
    for number, address in enumerate(addresses):
        same = route.via.version == route.to.version == address.version
        # An IPv6 router may be known only by its link-local address (RFC 4861).
        neighbour = route.via.version == 6 and route.via.is_link_local
        if same and (neighbour or route.via in address.network):
            return number
    raise UnfitError("a gateway is in none of the networks")


def _check_advertisements(link: Link) -> None:
    """Check that the guest would accept router advertisements, or ignore them, as the link says.

    It ignores them beside a static IPv6 address: without a default route it would be cut off.
    """
    static = any(address.version == 6 for address in link.addresses)
    out = any(route.is_default and route.to.version == 6 for route in link.routes)
    stateful = any(kind in DHCP6 for kind in link.dynamic)
    slaac = any(kind in SLAAC for kind in link.dynamic)
    if static and slaac:
        raise UnfitError("a link has SLAAC and a static IPv6 address")
    if link.advertisements is None:
        fits = stateful or not static or out
    elif link.advertisements:
        fits = stateful or slaac
    else:
        fits = static and not stateful
    if not fits:
        raise UnfitError("it cannot express the router advertisements of a link")


def _route(route: GuestRoute) -> dict[str, str]:
    return {
        "network": str(route.to.network_address),
        "netmask": str(route.to.netmask),
        "gateway": str(route.via),
    }


def _services(servers: Iterable[Address]) -> list[dict[str, str]]:
    return [{"type": "dns", "address": str(server)} for server in dict.fromkeys(servers)]


def interface(text: object, mask: object = None) -> Interface:
    """Return an address with its prefix.

    :param text: ``10.0.0.5/24``, or ``10.0.0.5`` if there is a *mask*.
    :param mask: a netmask, or a prefix length; None: the text has it.
    :raises UnfitError: it is not an address with a prefix length.
    """
    if not isinstance(text, str) or isinstance(mask, bool) or ("/" in text) == (mask is not None):
        raise UnfitError("not an address with a prefix length")
    try:
        if isinstance(mask, str) and ":" in mask:
            # The standard library does not know netmasks of IPv6.
            bits = f"{int(ipaddress.IPv6Address(mask)):0128b}"
            if "01" in bits:
                raise UnfitError("not a netmask")
            mask = bits.count("1")
        parsed = ipaddress.ip_interface(text if mask is None else f"{text}/{mask}")
    except ValueError as error:
        raise UnfitError("not an address with a prefix length") from error
    if getattr(parsed, "scope_id", None):
        raise UnfitError("an address with a zone is valid on one host only")
    return parsed


def network(text: object, mask: object = None) -> Network:
    """Return a network; see :func:`interface`."""
    return interface(text, mask).network


def address(text: object) -> Address:
    """Return an address without a prefix.

    :raises UnfitError: it is not an address.
    """
    if not isinstance(text, str) or "%" in text:
        raise UnfitError("not an address")
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise UnfitError("not an address") from error


def version2(guest: GuestNetwork) -> dict[str, Any]:
    """Return the configuration of a guest's network, with at least one link.

    Name servers of the guest are those of its first link. SLAAC, for which version 2 has no word,
    is to accept router advertisements. cloud-init 22.4 leaves out the MAC of a bond or VLAN.
    """
    first, *_rest = guest.links
    links = {link.id: link for link in guest.links}
    names = {link.id: link.name or link.id for link in guest.links}
    below = {name for link in guest.links for name in (*link.members, link.below)}
    config: dict[str, Any] = {"version": 2}
    for link in guest.links:
        device: dict[str, Any] = {}
        parent = link.members[0] if link.members else link.below
        if link.kind == "phy":
            device["match"] = {"macaddress": link.mac}
            if link.name or link.id in below:
                device["set-name"] = names[link.id]
        elif link.mac != links[parent].mac:
            device["macaddress"] = link.mac
        if link.kind == "bond":
            device["interfaces"] = [names[member] for member in link.members]
            device["parameters"] = {BOND[name]: value for name, value in link.bond.items()}
        if link.kind == "vlan":
            device |= {"id": link.vlan, "link": names[link.below]}
        devices = config.setdefault(_DEVICES[link.kind], {})
        devices[names[link.id]] = device | _addresses(link, guest.dns if link is first else ())
    return config


def _addresses(link: Link, dns: Iterable[Address]) -> dict[str, Any]:
    kinds = {*link.dynamic}
    advertisements = True if kinds & {*SLAAC} else link.advertisements
    servers = [*map(str, dict.fromkeys((*link.dns, *dns)))]
    gateways: dict[str, str] = {}
    routes = []
    for route in link.routes:
        name = f"gateway{route.to.version}"
        # cloud-init 22.4 reads a route to ::/0 as one to ::/64.
        if route.is_default and name not in gateways:
            gateways[name] = str(route.via)
        else:
            routes.append({"to": str(route.to), "via": str(route.via)})
    members: dict[str, Any] = {
        "mtu": link.mtu,
        "dhcp4": DYNAMIC[0] in kinds or None,
        "dhcp6": bool(kinds & {*DHCP6}) or None,
        "accept-ra": advertisements,
        "addresses": [*map(str, link.addresses)] or None,
        **gateways,
        "routes": routes or None,
        "nameservers": {"addresses": servers} if servers else None,
    }
    return {name: value for name, value in members.items() if value is not None}
