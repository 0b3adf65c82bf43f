"""Reads an address back from a flow: the inverse of
:func:`dfmeta.flows.integration_bridge.address_flows`.

Only this module knows which fields and actions of a flow contain its endpoint, its key and the
guest's addresses. The switch reports the flow, and any program of the host may have added it with
dfmeta's cookie: an invalid value is left out.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dfmeta.errors import KeyRangeError
from dfmeta.flows import openflow
from dfmeta.flows.family import Family, family_of
from dfmeta.flows.pipeline import Purpose
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint, GuestAddress, NextHop


@dataclass(frozen=True, slots=True)
class FlowAddress:
    """The endpoint and the address that a flow serves."""

    endpoint: Endpoint | None = None
    """Derived from the match alone: only this endpoint can have a flow with that match."""
    key: str = ""
    """Key in the form of the flow; empty if the flow does not belong to one address."""
    slot: int | None = None
    """None when the flow has no key, or a key of another endpoint."""
    mac: str = ""
    """The guest's own MAC; empty in a flow without it."""
    ip: IPv4Address | IPv6Address | None = None
    """The guest's own IP address; None in a flow without it."""
    service: IPv6Address | None = None
    """Address of the service that an IPv6 address uses; None in a flow without it."""

    @property
    def address(self) -> GuestAddress | None:
        """The guest's own addresses, or None when the flow does not have all of them."""
        if not self.mac or self.ip is None or (self.ip.version == 6) != (self.service is not None):
            return None
        return GuestAddress(self.mac, self.ip, self.service)


NONE = FlowAddress()
FOUND: Final = "switch"
"""Source of a guest next hop that is known from a flow alone."""
_TO_SERVICE: Final = frozenset(
    {
        Purpose.GUEST_HTTP,
        Purpose.GUEST_SYN,
        Purpose.GUEST_FRAGMENT,
        Purpose.ADDRESS,
        Purpose.META_TO_PROXY,
    }
)
_VERSIONS: Final[Mapping[openflow.Value | None, int]] = {
    openflow.ETH_TYPE_IP: 4,
    openflow.ETH_TYPE_ARP: 4,
    openflow.ETH_TYPE_IPV6: 6,
}
"""EtherType → version of IP."""


def read_address(flow: openflow.Flow, keys: Keys = IN_PORT) -> FlowAddress:
    """Return endpoint, key, slot and address of *flow*, as far as it has them.

    :param keys: key scheme of the flow.
    """
    family, purpose = family_of(version_of(flow) or 4), flow.purpose
    endpoint, label, key = openflow.comes_in_at(flow), "", None
    match purpose:
        case Purpose.REPLY:
            label, key = _mac(flow.field("eth_dst")), flow.field(family.destination)
        case Purpose.META_REPLY:
            key = flow.field(family.destination)
        case Purpose.KEY_ARP | Purpose.KEY_ND | Purpose.META_KEY_ARP | Purpose.META_KEY_ND:
            key = flow.field(family.target)
        case Purpose.ADDRESS:
            label, key = _mac(_set(flow, "eth_src")), _set(flow, family.source)
        case Purpose.META_SOURCE:
            label = _mac(flow.field("eth_src"))
        case _ if purpose is Purpose.FROM_TAP or purpose.is_meta:
            return NONE
        case _:
            return FlowAddress(endpoint)
    owner: Endpoint | None = None
    slot: int | None = None
    if label:
        owner, slot, key = _labelled(label, keys, family)
    elif isinstance(key, str):
        owner, slot = _parsed(key, keys, labelled=purpose.is_meta)
    else:
        return FlowAddress(endpoint) if purpose is Purpose.ADDRESS else NONE
    if purpose is Purpose.ADDRESS:
        # After a restart the owner of a label is not known yet: the flow itself shows it.
        if owner != endpoint and not (label and owner is None):
            slot = None
        mac, ip = _mac(flow.field("eth_src")), _ip(flow.field(family.source))
        service = _service(flow.field(family.destination))
        return FlowAddress(endpoint, key, slot, mac, ip, service)
    slot = slot if owner is not None else None
    if purpose is not Purpose.REPLY:
        return FlowAddress(owner, key, slot)
    mac, ip = _mac(_set(flow, "eth_dst")), _ip(_set(flow, family.destination))
    service = _service(_set(flow, family.source)) if not label else None
    return FlowAddress(owner, key, slot, mac, ip, service)


def _labelled(label: str, keys: Keys, family: Family) -> tuple[Endpoint | None, int | None, str]:
    """Return the owner, the slot and the key of a label, as far as it has them.

    The label of a slot of the other version of IP has none.
    """
    owner_and_slot = keys.labelled(label)
    if owner_and_slot is None:
        return None, None, ""
    endpoint, slot = owner_and_slot
    key = keys.key_of(endpoint or Endpoint(0), slot)
    return (endpoint, slot, str(key)) if key.version == family.version else (None, None, "")


def version_of(flow: openflow.Flow) -> int | None:
    """Return the version of IP that *flow* belongs to; None when it belongs to no version."""
    return _VERSIONS.get(flow.field("eth_type"))


def read_service(flow: openflow.Flow) -> str:
    """Return the address of the service that *flow* matches, or restores in an answer.

    Empty for a flow that does not depend on that address, and for one with an invalid value.
    """
    family = family_of(version_of(flow) or 4)
    if flow.purpose in (Purpose.REPLY, Purpose.META_REPLY):
        address = _ip(_set(flow, family.source))
    elif flow.purpose in (Purpose.GUEST_ARP, Purpose.GUEST_ND, Purpose.SERVICE_ND):
        address = _ip(flow.field(family.target))
    elif flow.purpose in _TO_SERVICE:
        address = _ip(flow.field(family.destination))
    else:
        address = None
    return str(address) if address is not None else ""


def read_next_hop(flow: openflow.Flow) -> NextHop | None:
    """Return the guest next hop of *flow*; None for a flow without one.

    Its source is that of a next hop whose flow an earlier run has left on the switch.
    """
    if flow.purpose is not Purpose.GUEST_NEXT_HOP:
        return None
    ip, mac = _ip(flow.field("arp_tpa")), _set(flow, "arp_sha")
    if not isinstance(ip, IPv4Address) or not int(ip) or not isinstance(mac, str):
        return None
    return NextHop(str(ip), mac, FOUND)


def _parsed(key: str, keys: Keys, *, labelled: bool = False) -> tuple[Endpoint | None, int | None]:
    """Return the owner and the slot of a key, which may be any text.

    :param labelled: whether the form of the flow is that of a scheme with labels. A flow of the
        other form is left over from another scheme, whose range of keys may overlap with this one.
    """
    try:
        endpoint, slot = keys.parse(ip_address(key))
    except (KeyRangeError, ValueError):
        return None, None
    return (endpoint, slot) if (keys.label(slot) is not None) is labelled else (None, None)


def _set(flow: openflow.Flow, field: str) -> int | str | None:
    """Return the value that the flow sets *field* to; None if it does not, or more than once."""
    values = [
        action.value
        for action in flow.actions
        if isinstance(action, openflow.SetField) and action.field == field
    ]
    return values[0] if len(values) == 1 else None


def _mac(value: openflow.Value | None) -> str:
    return value if isinstance(value, str) else ""


def _ip(value: openflow.Value | None) -> IPv4Address | IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ip_address(value) if isinstance(value, str) else None
    return None


def _service(value: openflow.Value | None) -> IPv6Address | None:
    ip = _ip(value)
    return ip if isinstance(ip, IPv6Address) else None
