"""The key: an IPv4 source address that identifies an endpoint and one of its addresses.

``0x80000000 | slot << 28 | VID << 16 | ofport``. Slot 0 and VID 0 give 128.0.x.y, the address of
the Dragonflow metadata specification ("Proposed Change": ``int(src_ip) <- in_port | 0x80000000``).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from dfmeta.exceptions import KeyRangeError
from dfmeta.model import OFPORT_MAX, Endpoint

BASE = 0x80000000
SLOT_SHIFT = 28
VID_SHIFT = 16
OFPORT_MASK = 0xFFFF
VID_MASK = 0x0FFF
VID_MAX = 4094
SLOTS = (0, 1, 2, 3, 4, 5, 7)
"""Slots in the order in which they are assigned. Slot 6 would be 224.0.0.0/4, multicast, which
Linux drops as martian; replies to the others were observed to arrive."""

_SLOT_MASK = 0x7
NEXT_HOP = "128.0.0.0"
"""Next hop on the host for all addresses behind tap-metadata. As a key, it would stand for OpenFlow
port 0, a number that no port has (OpenFlow 1.3.5, A.2.1)."""
PROBE_KEY = "128.0.255.253"
"""Source address of the daemon's own SYN. As a key, it would stand for OFPP_CONTROLLER (OpenFlow
1.3.5, A.2.1; its lowest 16 bits), a number that no guest's port has."""
NEXT_HOP_MAC = "02:64:66:6d:65:01"


class Keys(Protocol):
    """A key scheme: the source address that stands for an endpoint and one of its slots.

    The registry, its mirror in a worker and the builders of flows take a scheme as a parameter, so
    that a guest has the same key on the switch and at the proxy.
    """

    @property
    def slots(self) -> Sequence[int]:
        """Slots of an endpoint, in the order in which they are assigned."""
        ...

    def key_of(self, endpoint: Endpoint, slot: int) -> IPv4Address:
        """Return the source address that frames of *endpoint* in *slot* have towards the proxy.

        :raises KeyRangeError: for an endpoint or a slot that has no key.
        """
        ...

    def parse(self, address: IPv4Address | IPv6Address) -> tuple[Endpoint, int]:
        """Return the endpoint and the slot that *address* stands for.

        *address* is the source address of a peer. On tap-metadata, only dfmeta's own service flows
        can set one; the registry knows whether it stands for a known guest.

        :raises KeyRangeError: when *address* is not a key.
        """
        ...


class InPortKeys:
    """``identity_scheme = in_port``: the key contains the port's numbers; see the module."""

    slots: Sequence[int] = SLOTS

    def key_of(self, endpoint: Endpoint, slot: int) -> IPv4Address:
        """See :meth:`Keys.key_of`; keys that cannot be source addresses are refused as well."""
        if slot not in SLOTS:
            raise _refuse(endpoint, slot, "the slot is not one of those that Linux accepts")
        if not 1 <= endpoint.ofport <= OFPORT_MAX:
            raise _refuse(endpoint, slot, "the ofport is not that of an ordinary port")
        if not 0 <= endpoint.vid <= VID_MAX:
            raise _refuse(endpoint, slot, "the VID is not one that 802.1Q gives to a VLAN")
        number = BASE | slot << SLOT_SHIFT | endpoint.vid << VID_SHIFT | endpoint.ofport
        return IPv4Address(number)

    def parse(self, address: IPv4Address | IPv6Address) -> tuple[Endpoint, int]:
        """See :meth:`Keys.parse`."""
        number = int(address)
        endpoint = Endpoint(ofport=number & OFPORT_MASK, vid=number >> VID_SHIFT & VID_MASK)
        slot = number >> SLOT_SHIFT & _SLOT_MASK
        if not number & BASE or address.version != 4:
            raise _refuse(endpoint, slot, f"{address} is not an IPv4 address from 128.0.0.0 on")
        self.key_of(endpoint, slot)
        return endpoint, slot


IN_PORT: Final[Keys] = InPortKeys()
"""The key scheme of the specification."""


def _refuse(endpoint: Endpoint, slot: int, cause: str) -> KeyRangeError:
    return KeyRangeError(ofport=endpoint.ofport, vid=endpoint.vid, slot=slot, cause=cause)
