"""Read a guest's network: cloud-init's versions 1 and 2, Nova's network_data, Equinix Metal's form.

Pure functions. An unknown member is refused: a link that lacks one of its properties would be wrong
(see :class:`~dfmeta.store.guest.links.UnfitError`).

Sources: https://docs.cloud-init.io/en/latest/reference/network-config-format-v1.html and -v2.html,
https://docs.openstack.org/nova/latest/user/metadata.html, and specification 003. Trust: a document
comes from the operator; its values may be of any type.
"""

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

from dfmeta.model import MTU, VID_MAX
from dfmeta.store.db.record import Address, Network
from dfmeta.store.guest.links import (
    BOND,
    DYNAMIC,
    DYNAMIC_STATEFUL,
    STATIC,
    GuestNetwork,
    GuestRoute,
    Interface,
    Link,
    UnfitError,
    address,
    interface,
    network,
    network_data,
)
from dfmeta.store.guest.values import text_of

MODES: Final = (
    *("balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb"),
    "balance-alb",
)
"""Modes of bonds, by the kernel's numbers (Documentation/networking/bonding.rst)."""

_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_DEFAULT: Final[dict[int, Network]] = {4: IPv4Network("0.0.0.0/0"), 6: IPv6Network("::/0")}
_DHCP: Final = {"dhcp": DYNAMIC[0], "dhcp4": DYNAMIC[0], "dhcp6": DYNAMIC[1]}
_DYNAMIC: Final = _DHCP | {kind: kind for kind in (*DYNAMIC[2:], DYNAMIC_STATEFUL)}
"""Types of subnets in version 1 → Nova's types of networks."""
_IP: Final = (
    *("dhcp4", "dhcp6", "addresses", "gateway4", "gateway6", "routes", "nameservers", "mtu"),
    *("accept-ra", "optional"),
)
"""Members of all devices in version 2."""
_BOND: Final = {
    **{text: name for name, text in BOND.items()},
    "miimon": "bond_miimon",
    "xmit-hash-policy": "bond_xmit_hash_policy",
}
"""Names of a bond's parameters in both versions → their names in the link."""
_ABOVE: Final = {"bond": 1, "vlan": 2}
"""Type of a link of Nova's → order in which links can be read."""


def derived(given: object) -> dict[str, Any] | None:
    """Return ``network_data.json`` made of a network in any form; None if that has less than a
    guest needs, or more than the file can express."""
    try:
        return network_data(read(given))
    except UnfitError:
        return None


def read(given: object) -> GuestNetwork:
    """Return the devices of a network in any form.

    :raises UnfitError: it has less than a guest needs, or unknown members.
    """
    config = _members(given)
    if has_version(config):
        guest = _version1(config) if config["version"] == 1 else GuestNetwork(_version2(config))
    elif "version" in config:
        raise UnfitError("unknown version")
    else:
        guest = _nova(config) if "links" in config else GuestNetwork(_equinix(config))
    guest.check()
    return guest


def has_version(config: Mapping[str, Any]) -> bool:
    """Return whether a network has the form of cloud-init's version 1 or 2."""
    version = config.get("version")
    return type(version) is int and version in (1, 2)


def _version2(config: Mapping[str, Any]) -> list[Link]:
    config = _members(config, "version", "renderer", "ethernets", "bonds", "vlans")
    links: dict[str, Link] = {}
    for name, device in _members(config.get("ethernets", {})).items():
        device = _members(device, "match", "set-name", *_IP)
        mac = _mac(_members(device.get("match", {}), "macaddress").get("macaddress"))
        links[name] = Link(id=_id(name), kind="phy", mac=mac, name=_name(device.get("set-name")))
        _configure2(links[name], device)
    for name, device in _members(config.get("bonds", {})).items():
        device = _members(device, "interfaces", "parameters", "macaddress", *_IP)
        members = _texts(device.get("interfaces"))
        links[name] = _bond(
            name, members, device.get("parameters", {}), device.get("macaddress"), links
        )
        _configure2(links[name], device)
    for name, device in _members(config.get("vlans", {})).items():
        device = _members(device, "id", "link", "macaddress", *_IP)
        links[name] = _vlan(
            name, device.get("link"), device.get("id"), device.get("macaddress"), links
        )
        _configure2(links[name], device)
    return list(links.values())


def _configure2(link: Link, device: Mapping[str, Any]) -> None:
    link.mtu = _number(device.get("mtu"), MTU)
    link.advertisements = _flag(device.get("accept-ra"))
    link.dynamic = [_DHCP[name] for name in ("dhcp4", "dhcp6") if _flag(device.get(name))]
    link.addresses = [interface(text) for text in _list(device.get("addresses"))]
    # Search domains are omitted: the file has no place for them.
    servers = _members(device.get("nameservers", {}), "addresses", "search")
    link.dns = [address(text) for text in _list(servers.get("addresses"))]
    for version, name in ((4, "gateway4"), (6, "gateway6")):
        if name in device:
            link.routes.append(GuestRoute(_DEFAULT[version], address(device[name])))
    for given in _list(device.get("routes")):
        route = _members(given, "to", "via")
        via = address(route.get("via"))
        to = route.get("to")
        to = _DEFAULT[via.version] if to == "default" else network(to)
        link.routes.append(GuestRoute(to, via))


def _version1(config: Mapping[str, Any]) -> GuestNetwork:
    links: dict[str, Link] = {}
    servers: list[Address] = []
    routes: list[GuestRoute] = []
    for given in _list(_members(config, "version", "config").get("config")):
        item = _members(given)
        match item.pop("type", None):
            case "nameserver":
                item = _members(item, "address", "search", "interface")
                servers += [address(text) for text in _one_or_more(item.get("address"))]
            case "route":
                routes.append(_route1(item))
            case kind:
                link = _link1(str(kind), item, links)
                links[link.id] = link
    for route in routes:
        _next_to(route, links).routes.append(route)
    return GuestNetwork(list(links.values()), servers)


def _link1(kind: str, item: Mapping[str, Any], links: Mapping[str, Link]) -> Link:
    extra = {
        "physical": (),
        "bond": ("bond_interfaces", "params"),
        "vlan": ("vlan_link", "vlan_id"),
    }.get(kind)
    if extra is None:
        raise UnfitError("unknown type")
    item = _members(item, "name", "mac_address", "mtu", "subnets", "accept-ra", *extra)
    name, mac = _name(item.get("name")), item.get("mac_address")
    if name in links:
        raise UnfitError("two links have one name")
    if kind == "bond":
        members = _texts(item.get("bond_interfaces"))
        link = _bond(name, members, item.get("params", {}), mac, links)
    elif kind == "vlan":
        link = _vlan(name, item.get("vlan_link"), item.get("vlan_id"), mac, links)
    else:
        link = Link(id=_id(name), kind="phy", mac=_mac(mac), name=name)
    link.mtu = _number(item.get("mtu"), MTU)
    link.advertisements = _flag(item.get("accept-ra"))
    for subnet in _list(item.get("subnets")):
        _configure1(link, _members(subnet))
    return link


def _configure1(link: Link, subnet: dict[str, Any]) -> None:
    kind = subnet.pop("type", None)
    if not isinstance(kind, str):
        raise UnfitError("a subnet has no type")
    static = ("address", "netmask", "gateway", "routes") if kind.startswith("static") else ()
    subnet = _members(subnet, "dns_nameservers", "dns_search", *static)
    link.dns += [address(text) for text in _one_or_more(subnet.get("dns_nameservers"))]
    if kind in ("static", "static6"):
        link.addresses.append(interface(subnet.get("address"), subnet.get("netmask")))
        if "gateway" in subnet:
            via = address(subnet["gateway"])
            link.routes.append(GuestRoute(_DEFAULT[via.version], via))
        link.routes += [_route1(_members(route)) for route in _list(subnet.get("routes"))]
    elif kind in _DYNAMIC:
        link.dynamic.append(_DYNAMIC[kind])
    elif kind != "manual":
        raise UnfitError("unknown type of a subnet")


def _route1(route: Mapping[str, Any]) -> GuestRoute:
    route = _members(route, "destination", "network", "netmask", "prefix", "gateway")
    to = [route[name] for name in ("destination", "network") if name in route]
    masks = [route[name] for name in ("netmask", "prefix") if name in route]
    if len(to) != 1 or len(masks) > 1:
        raise UnfitError("a route has no destination, or two")
    return GuestRoute(network(to[0], *masks), address(route.get("gateway")))


def _next_to(route: GuestRoute, links: Mapping[str, Link]) -> Link:
    for link in links.values():
        if any(route.via in candidate.network for candidate in link.addresses):
            return link
    raise UnfitError("a gateway is in none of the networks")


def _nova(config: Mapping[str, Any]) -> GuestNetwork:
    """Return the links of Nova's network_data, in which a link may stand before the one below it.

    As for cloud-init, a device with a static IPv6 address takes router advertisements only beside
    a dynamic one.
    """
    links: dict[str, Link] = {}
    given = [_members(entry) for entry in _list(config.get("links"))]
    for entry in sorted(given, key=lambda entry: _ABOVE.get(str(entry.get("type")), 0)):
        name, mac = _id(entry.get("id")), entry.get("ethernet_mac_address")
        match entry.get("type"):
            case "bond":
                how = {key: entry[key] for key in entry.keys() - {"bond_links"} if "bond_" in key}
                link = _bond(name, _texts(entry.get("bond_links")), how, mac, links)
            case "vlan":
                mac = entry.get("vlan_mac_address")
                link = _vlan(name, entry.get("vlan_link"), entry.get("vlan_id"), mac, links)
            case _:
                link = Link(id=name, kind="phy", mac=_mac(mac), name=_name(entry.get("name")))
        link.mtu = _number(entry.get("mtu"), MTU)
        links[name] = link
    for entry in map(_members, _list(config.get("networks"))):
        if (target := links.get(_id(entry.get("link")))) is None:
            raise UnfitError("a network is on an unknown link")
        _configure_nova(target, entry)
    for link in links.values():
        six = [kind for kind in link.dynamic if kind != DYNAMIC[0]]
        if six or any(entry.version == 6 for entry in link.addresses):
            link.advertisements = bool(six)
    return GuestNetwork(list(links.values()), _servers(config.get("services")))


def _configure_nova(link: Link, entry: Mapping[str, Any]) -> None:
    kind = entry.get("type")
    link.dns += _servers(entry.get("services"))
    if kind in STATIC.values():
        link.addresses.append(interface(entry.get("ip_address"), entry.get("netmask")))
        link.routes += [_route1(_members(route)) for route in _list(entry.get("routes"))]
    elif kind in (*DYNAMIC, DYNAMIC_STATEFUL):
        link.dynamic.append(str(kind))
    else:
        raise UnfitError("unknown type of a network")


def _servers(services: object) -> list[Address]:
    given = [_members(service) for service in _list(services)]
    return [address(service.get("address")) for service in given if service.get("type") == "dns"]


def _equinix(given: Mapping[str, Any]) -> list[Link]:
    """Return the links of Equinix Metal's form: one NIC, or a bond of all NICs, has all addresses.

    Members that do not concern addresses are ignored.
    """
    links: dict[str, Link] = {}
    bonds: set[str] = set()
    for entry in map(_members, _list(given.get("interfaces"))):
        name = _name(entry.get("name"))
        links[name] = Link(id=_id(name), kind="phy", mac=_mac(entry.get("mac")))
        bonds.add(_name(entry.get("bond")))
    bond = bonds.pop() if len(bonds) == 1 else ""
    if len(links) != len(_list(given.get("interfaces"))) or (not bond and len(links) != 1):
        raise UnfitError("it does not say which NIC has the addresses")
    top = next(iter(links.values()))
    if bond:
        bonding = _members(given.get("bonding", {}))
        mode = _number(bonding.get("mode"), (0, len(MODES) - 1))
        how = {"mode": MODES[mode]} if mode is not None else {}
        top = _bond(bond, list(links), how, bonding.get("mac"), links)
        links[top.id] = top
    _address(top, [_members(entry) for entry in _list(given.get("addresses"))])
    return list(links.values())


def _address(link: Link, addresses: list[dict[str, Any]]) -> None:
    """Add addresses and their routes to a link. In each family, the default gateway is the first
    public one, or the first one if none is public; the others lead to their network's block."""
    default: set[int] = set()
    for entry in sorted(addresses, key=lambda entry: entry.get("public") is not True):
        if entry.get("enabled") is False:
            continue
        parsed = _masked(entry)
        link.addresses.append(parsed)
        if "gateway" not in entry:
            continue
        via, block = address(entry["gateway"]), _members(entry.get("parent_block", {}))
        if parsed.version not in default:
            default.add(parsed.version)
            link.routes.append(GuestRoute(_DEFAULT[parsed.version], via))
        elif block:
            wider = network(block.get("network"), block.get("cidr", block.get("netmask")))
            link.routes += [GuestRoute(wider, via)] if wider != parsed.network else []


def _masked(entry: Mapping[str, Any]) -> Interface:
    """Return the address of an entry; if it has its mask twice, both have to be the same."""
    interfaces = {
        interface(entry.get("address"), entry[name])
        for name in ("cidr", "netmask")
        if name in entry
    }
    if len(interfaces) != 1:
        raise UnfitError("no prefix length, or two")
    return interfaces.pop()


def _bond(
    name: str, members: list[str], parameters: object, mac: object, links: Mapping[str, Link]
) -> Link:
    """Return a bond. Without a MAC of its own, it has its first member's, as in the kernel."""
    how: dict[str, str | int] = {}
    for key, value in _members(parameters).items():
        parameter = _BOND.get(key.replace("_", "-").removeprefix("bond-"))
        if parameter is None:
            raise UnfitError("unknown parameter of a bond")
        how[parameter] = _milliseconds(value) if parameter == "bond_miimon" else _id(value)
    first = links.get(members[0]) if members else None
    if first is None or how.get("bond_mode") not in MODES:
        raise UnfitError("a bond has no member, or no known mode")
    bond_mac = first.mac if mac is None else _mac(mac)
    return Link(id=_id(name), kind="bond", mac=bond_mac, members=tuple(members), bond=how)


def _vlan(name: str, below: object, vlan: object, mac: object, links: Mapping[str, Link]) -> Link:
    """Return a VLAN. Without a MAC of its own, it has that of the link below, as in the kernel."""
    parent, number = links.get(_id(below)), _number(vlan, (1, VID_MAX))
    if parent is None or number is None:
        raise UnfitError("a VLAN has no link below, or no number")
    vlan_mac = parent.mac if mac is None else _mac(mac)
    return Link(id=_id(name), kind="vlan", mac=vlan_mac, below=parent.id, vlan=number)


def _members(value: object, *names: str) -> dict[str, Any]:
    """Return an object without its members that are null.

    :param names: the members that it may have; none: it may have any.
    :raises UnfitError: it is not an object, or has other members.
    """
    if not isinstance(value, dict):
        raise UnfitError("not an object")
    members = {name: member for name, member in value.items() if member is not None}
    if names and not members.keys() <= set(names):
        raise UnfitError("unknown members")
    return members


def _list(value: object) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise UnfitError("not a list")
    return value or []


def _one_or_more(value: object) -> list[Any]:
    return [value] if isinstance(value, str) else _list(value)


def _texts(value: object) -> list[str]:
    return [_id(text) for text in _list(value)]


def _id(value: object) -> str:
    if not text_of(value) or text_of(value) != value:
        raise UnfitError("not a name")
    return str(value)


def _name(value: object) -> str:
    """Return a name that a device can have; empty for None."""
    if value is not None and not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise UnfitError("not a name of a device")
    return value or ""


def _mac(value: object) -> str:
    if not isinstance(value, str) or not _MAC.fullmatch(value.lower()):
        raise UnfitError("not a MAC address")
    return value.lower()


def _number(value: object, bounds: tuple[int, int]) -> int | None:
    if value is not None and not (type(value) is int and bounds[0] <= value <= bounds[1]):
        raise UnfitError("not a number in the allowed range")
    return value


def _milliseconds(value: object) -> int:
    text = str(value).removesuffix("ms")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,6}", text):
        raise UnfitError("not a number of milliseconds")
    return int(text)


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise UnfitError("neither true nor false")
    return value
