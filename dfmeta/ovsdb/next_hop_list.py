"""Reads guest next hops: from a port's row in OVSDB, and from Neutron's DHCP ports. Pure.

Trust: the host's operator writes the key, and Neutron the addresses of DHCP ports. A wrong value
costs the entry only. An entry is refused if an answer for its address could harm the guest or could
never be of use:

- The service's own address has an answer already.
- No host is reached by a multicast, broadcast, loopback or unspecified address (RFC 1122, 3.2.1.3),
  and an ARP answer for one would be believed.
- A MAC of a group, or of zeros, is no host's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.model import NextHop

KEY: Final = "dfmeta-next-hops"
"""Key in ``external_ids`` of a guest's Interface row: its guest next hops."""
MOST: Final = 8
"""Maximum number of guest next hops of a port; each has a flow."""
SHOWN: Final = 40
"""Maximum number of characters of a wrong entry that a fault shows."""
NEUTRON: Final = "neutron"
_SEPARATORS: Final = re.compile(r"[\s,]+")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_UNSPECIFIED: Final = IPv4Network("0.0.0.0/8")
_BROADCAST: Final = IPv4Address("255.255.255.255")


def parse(text: str) -> tuple[tuple[NextHop, ...], tuple[str, ...]]:
    """Read the value of :data:`KEY`: ``IP`` or ``IP=MAC``, separated by spaces or commas.

    :return: the guest next hops in their order, and a fault for each wrong entry.
    """
    hops: dict[str, NextHop] = {}
    faults: list[str] = []
    for entry in filter(None, _SEPARATORS.split(text)):
        ip, has_mac, mac = entry.partition("=")
        cause = wrong_ip(ip) or (wrong_mac(mac.lower()) if has_mac else "")
        if not cause and ip in hops:
            cause = "the address is there twice"
        if not cause and len(hops) == MOST:
            cause = f"a port may have {MOST} guest next hops"
        if cause:
            faults.append(_fault(entry, cause))
        else:
            hops[ip] = NextHop(ip, mac.lower())
    return tuple(hops.values()), tuple(faults[:MOST])


def wrong_ip(text: str) -> str:
    """Return why *text* cannot be the address of a guest next hop; empty if it can."""
    try:
        ip = IPv4Address(text)
    except ValueError:
        return "it is not an IPv4 address"
    if text == METADATA_IP:
        return "it is the address of the service"
    kinds = {
        "an unspecified address": ip in _UNSPECIFIED,
        "a loopback address": ip.is_loopback,
        "a multicast address": ip.is_multicast,
        "the broadcast address": ip == _BROADCAST,
    }
    return next((f"it is {kind}" for kind, applies in kinds.items() if applies), "")


def wrong_mac(text: str) -> str:
    """Return why *text* cannot be the MAC of a guest next hop; empty if it can."""
    if not _MAC.fullmatch(text):
        return "its MAC is not of the form 02:00:00:00:00:01"
    octets = bytes.fromhex(text.replace(":", ""))
    if octets[0] & 1 or not any(octets):
        return "its MAC is not that of a host"
    return ""


def of_dhcp_ports(rows: Iterable[Mapping[str, Any]]) -> tuple[NextHop, ...]:
    """Return the guest next hops of a network, from its DHCP ports as Neutron returns them.

    They are sorted, so that the same ports always give the same value. Invalid ones are left out.
    """
    hops = {}
    for row in rows:
        mac = str(row.get("mac_address") or "").lower()
        for ip in fixed_ips(row):
            if not wrong_ip(ip):
                hops[ip] = NextHop(ip, "" if wrong_mac(mac) else mac, NEUTRON)
    return tuple(hops[ip] for ip in sorted(hops, key=IPv4Address))


def fixed_ips(row: Mapping[str, Any]) -> list[str]:
    """Return the IPv4 addresses of a port as Neutron returns it."""
    found = []
    listed = row.get("fixed_ips")
    for one in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            found.append(str(IPv4Address(str(one.get("ip_address")))))
    return found


def _fault(entry: str, cause: str) -> str:
    cut = "..." if len(entry) > SHOWN else ""
    return f"external_ids:{KEY} has {entry[:SHOWN]!r}{cut}: {cause}"
