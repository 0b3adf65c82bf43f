"""Write a guest's network as cloud-init's network configuration, version 2. Pure functions.

For NoCloud, where the document has another form of it. A device is found by its MAC, and keeps its
name unless another device is on it: cloud-init's renderers take the key of a bond's member or of a
VLAN's parent for its name.

Source: https://docs.cloud-init.io/en/latest/reference/network-config-format-v2.html. Trust: see
:mod:`dfmeta.store.guest.links`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dfmeta.store.db.networks import Address
from dfmeta.store.guest.links import BOND, DHCP6, DYNAMIC, SLAAC, GuestNetwork, Link

_KINDS: Final = {"phy": "ethernets", "bond": "bonds", "vlan": "vlans"}


def version2(guest: GuestNetwork) -> dict[str, Any]:
    """Return the configuration of a guest's network, with at least one link.

    Name servers of the guest are those of its first link. SLAAC, for which version 2 has no word,
    is to accept router advertisements. cloud-init 22.4 leaves out the MAC of a bond or VLAN.
    """
    first, *_rest = guest.links
    links = {link.id: link for link in guest.links}
    names = {link.id: link.name or link.id for link in guest.links}
    below = {one for link in guest.links for one in (*link.members, link.below)}
    found: dict[str, Any] = {"version": 2}
    for link in guest.links:
        one: dict[str, Any] = {}
        parent = link.members[0] if link.members else link.below
        if link.kind == "phy":
            one["match"] = {"macaddress": link.mac}
            if link.name or link.id in below:
                one["set-name"] = names[link.id]
        elif link.mac != links[parent].mac:
            one["macaddress"] = link.mac
        if link.kind == "bond":
            one["interfaces"] = [names[member] for member in link.members]
            one["parameters"] = {BOND[name]: value for name, value in link.bond.items()}
        if link.kind == "vlan":
            one |= {"id": link.vlan, "link": names[link.below]}
        devices = found.setdefault(_KINDS[link.kind], {})
        devices[names[link.id]] = one | _addresses(link, guest.dns if link is first else ())
    return found


def _addresses(link: Link, dns: Iterable[Address]) -> dict[str, Any]:
    kinds = {*link.dynamic}
    advertisements = True if kinds & {*SLAAC} else link.advertisements
    servers = [str(one) for one in dict.fromkeys((*link.dns, *dns))]
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
        "addresses": [str(one) for one in link.addresses] or None,
        **gateways,
        "routes": routes or None,
        "nameservers": {"addresses": servers} if servers else None,
    }
    return {name: value for name, value in members.items() if value is not None}
