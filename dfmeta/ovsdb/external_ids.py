"""Values of a port's external_ids: instance, project, name, Meta addresses and next hops. Pure.

Trust: the host's operator and programs write the keys, and Neutron the addresses of DHCP ports. A
wrong next hop costs the entry only. One is refused if an answer for its address could harm the
guest or could never be of use:

- The service's own address has an answer already.
- No host is reached by a multicast, broadcast, loopback or unspecified address (RFC 1122, 3.2.1.3),
  and an ARP answer for one would be believed.
- A MAC of a group, or of zeros, is no host's.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final
from uuid import UUID

from dfmeta import errors, model
from dfmeta.flows.pipeline import METADATA_IP

NAME_MAX: Final = 255
_PROJECT: Final = re.compile(r"[\x21-\x7e]{1,255}")
META_KEYS: Final = model.MetaIds("dfmeta-meta-ip", "dfmeta-meta-mac", "dfmeta-meta-ip6")
"""Keys in ``external_ids`` of a guest's Interface row."""
PROVIDER_IDS: Final = ("provider_ip", "provider_mac")
"""Keys in ``other_config`` of a guest's Port row that Neutron's metadata_path writes."""
NEXT_HOPS_KEY: Final = "dfmeta-next-hops"
"""Key in ``external_ids`` of a guest's Interface row: its guest next hops."""
NEXT_HOPS_MAX: Final = 8
"""Maximum number of guest next hops of a port; each has a flow."""
NEUTRON: Final = "neutron"
_SEPARATORS: Final = re.compile(r"[\s,]+")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_UNSPECIFIED: Final = IPv4Network("0.0.0.0/8")
_BROADCAST: Final = IPv4Address("255.255.255.255")


def instance_of(text: str) -> str:
    """Return an instance id in canonical form; empty when *text* is not a UUID."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return ""


def project_of(text: str) -> str:
    """Return a project id that is valid in an HTTP header; empty when *text* is not valid."""
    stripped = text.strip()
    return stripped if _PROJECT.fullmatch(stripped) else ""


def name_of(text: str) -> str:
    """Return a name on one line, without control characters: its owner may have chosen any text."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * NAME_MAX])
    return " ".join(printable.split())[:NAME_MAX]


def southbound_of(external_ids: Mapping[str, str]) -> str:
    """Return the address of OVN's southbound database in that column of Open_vSwitch, or ``""``.

    A chassis may have one of its own (ovn-controller(8), ``ovn-remote-<system-id>``).
    """
    own = external_ids.get(f"ovn-remote-{external_ids.get('system-id', '')}")
    return "".join((own or external_ids.get("ovn-remote", "")).split())


def own_ids(external_ids: Mapping[str, str]) -> model.MetaIds:
    """Return the Meta addresses that dfmeta has written into the row of a port.

    Trust: as :func:`ids_of`.
    """
    return model.MetaIds(*(external_ids.get(key, "").strip() for key in META_KEYS))


def ids_of(external_ids: Mapping[str, str], other_config: Mapping[str, str]) -> model.MetaIds:
    """Return the Meta addresses in the rows of a port: dfmeta's, else metadata_path's.

    Trust: programs of the host have written them; they may be stale, doubled or invalid.
    """
    written = own_ids(external_ids)
    if written.ip:
        return written
    ip, mac = (other_config.get(key, "").strip() for key in PROVIDER_IDS)
    return written._replace(ip=ip, mac=mac)


def parse_next_hops(text: str) -> tuple[tuple[model.NextHop, ...], tuple[str, ...]]:
    """Read the value of :data:`NEXT_HOPS_KEY`: ``IP`` or ``IP=MAC``, separated by spaces or commas.

    :return: the guest next hops in their order, and a fault for each wrong entry.
    """
    hops: dict[str, model.NextHop] = {}
    faults: list[str] = []
    for entry in filter(None, _SEPARATORS.split(text)):
        ip, has_mac, mac = entry.partition("=")
        cause = wrong_ip(ip) or (wrong_mac(mac.lower()) if has_mac else "")
        if not cause and ip in hops:
            cause = "the address is there twice"
        if not cause and len(hops) == NEXT_HOPS_MAX:
            cause = f"a port may have {NEXT_HOPS_MAX} guest next hops"
        if cause:
            faults.append(_fault(entry, cause))
        else:
            hops[ip] = model.NextHop(ip, mac.lower())
    return tuple(hops.values()), tuple(faults[:NEXT_HOPS_MAX])


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


def of_dhcp_ports(rows: Iterable[Mapping[str, Any]]) -> tuple[model.NextHop, ...]:
    """Return the guest next hops of a network, from its DHCP ports as Neutron returns them.

    They are sorted, so that the same ports always give the same value. Invalid ones are left out.
    """
    hops = {}
    for row in rows:
        mac = str(row.get("mac_address") or "").lower()
        for ip in fixed_ips(row):
            if not wrong_ip(ip):
                hops[ip] = model.NextHop(ip, "" if wrong_mac(mac) else mac, NEUTRON)
    return tuple(hops[ip] for ip in sorted(hops, key=IPv4Address))


def fixed_ips(row: Mapping[str, Any]) -> list[str]:
    """Return the IPv4 addresses of a port as Neutron returns it."""
    addresses = []
    listed = row.get("fixed_ips")
    for fixed_ip in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            addresses.append(str(IPv4Address(str(fixed_ip.get("ip_address")))))
    return addresses


def _fault(entry: str, cause: str) -> str:
    return f"external_ids:{NEXT_HOPS_KEY} has {errors.short(entry)!r}: {cause}"
