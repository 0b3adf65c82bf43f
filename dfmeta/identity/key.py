"""The key: a source address that identifies an endpoint and one of its addresses.

IPv4: ``0x80000000 | slot << 28 | VID << 16 | ofport``. Slot 0 and VID 0 give 128.0.x.y, the address
of the Dragonflow metadata specification ("Proposed Change": ``int(src_ip) <- in_port |
0x80000000``).

IPv6: a /64 of unique local addresses (RFC 4193), with the interface id ``slot (16 bits) | VID (16)
| ofport (32)``, slots from 1. Slot 0 is left for the host's own address. The prefix of the
specification, fe80:ffff:a9fe:a9fe::/64, is not used: Linux binds a connection with a link-local
peer to the index of the device, and no such connection survives a tap-metadata that is created
again.

The slots of an endpoint have one sequence of numbers for both versions: 0 to 7 are IPv4's, and
:data:`SLOT6` + n is slot n of IPv6.

Meta IPs are the key scheme ``identity_scheme = meta_ip`` (specification 001). Each address of a
guest has a number that is unique on the host, and the number gives its Meta IP, the key by which
the proxy knows it, and its Meta MAC, by which the bridges know it. For a
``provider_cidr`` of N addresses:

========================  ===================================  =============================
number                    Meta IP                              Meta MAC
========================  ===================================  =============================
0                         none: source of the daemon's probe   ``provider_base_mac``
1                         none: the gateway, tap-meta itself   ``provider_base_mac`` + 1
2 to N - 2                that address of ``provider_cidr``    ``provider_base_mac`` + number
N - 1                     none: the host's next hop            none
N + 2 to 2N - 2           ``key_prefix6`` and number - N       ``provider_base_mac`` + number
2N - 1                    none: the IPv6 probe                 ``provider_base_mac`` + number
========================  ===================================  =============================

So the network, broadcast and gateway addresses are no guest's, and no Meta MAC exists twice. The
owners of numbers are known to the registry, and in a worker to its mirror.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from dfmeta import errors, model

BASE = 0x80000000
SLOT_SHIFT = 28
VID_SHIFT = 16
OFPORT_MASK = 0xFFFF
VID_MASK = 0x0FFF
SLOTS = (0, 1, 2, 3, 4, 5, 7)
"""Slots of IPv4 in the order in which they are assigned. Slot 6 would be 224.0.0.0/4, multicast,
which Linux drops as martian; replies to the others were observed to arrive."""
SLOT6: Final = 16
"""Number of an IPv6 slot minus the slot in its key."""
SLOTS6: Final = tuple(range(SLOT6 + 1, SLOT6 + 17))
"""Slots of IPv6 in the order in which they are assigned."""
PREFIX6: Final = IPv6Network("fd00:a9fe:a9fe:a9fe::/64")

_NETWORK4: Final = IPv4Network((BASE, 1))
_SLOT_MASK = 0x7
_SLOT6_SHIFT = 48
_VID6_SHIFT = 32
_OFPORT6_MASK = 0xFFFFFFFF
_VID6_MASK = 0xFFFF
_SLOT6_MASK = 0xFFFF
_CONTROLLER = 0xFFFFFFFD
"""OFPP_CONTROLLER (OpenFlow 1.3.5, A.2.1), a number that no guest's port has."""
NEXT_HOP = "128.0.0.0"
"""Next hop on the host for all IPv4 addresses behind tap-metadata. As a key, it would stand for
OpenFlow port 0, a number that no port has (OpenFlow 1.3.5, A.2.1)."""
NEXT_HOP6: Final = "fe80::64:66ff:fe6d:6501"
"""Next hop on the host for all IPv6 addresses behind tap-metadata. It is link-local, made from
:data:`NEXT_HOP_MAC` (RFC 4291, appendix A): Linux looks up any other next hop in the main table and
refuses it (EINVAL) if a route there, such as one to fd00::/8, covers it by another device."""
PROBE_KEY = "128.0.255.253"
"""Source address of the daemon's own SYN. As a key, it would stand for OFPP_CONTROLLER (OpenFlow
1.3.5, A.2.1; its lowest 16 bits), a number that no guest's port has."""
NEXT_HOP_MAC = "02:64:66:6d:65:01"


class Keys:
    """A key scheme: the source address that stands for an endpoint and one of its slots.

    The registry, its mirror in a worker and the builders of flows take a scheme as a parameter, so
    that a guest has the same key on the switch and at the proxy. This class is the one of
    ``identity_scheme = in_port``: the key contains the port's numbers; see the module.

    :param prefix6: ``[df_metadata] key_prefix6``, a /64.
    """

    def __init__(self, prefix6: IPv6Network = PREFIX6) -> None:
        self.prefix6 = prefix6
        self._base6 = int(prefix6.network_address)
        self._slots: Mapping[int, Sequence[int]] = {4: SLOTS, 6: SLOTS6}

    def slots(self, version: int) -> Sequence[int]:
        """Return the slots of an endpoint for one version of IP, in the order of assignment."""
        return self._slots[version]

    def key_of(self, endpoint: model.Endpoint, slot: int) -> IPv4Address | IPv6Address:
        """Return the source address that frames of *endpoint* in *slot* have towards the proxy.

        :raises KeyRangeError: for an endpoint or a slot that has no key that can be a source
            address.
        """
        _check(endpoint, slot)
        if slot > SLOT6:
            return self._key6(slot - SLOT6, endpoint.vid, endpoint.ofport)
        number = BASE | slot << SLOT_SHIFT | endpoint.vid << VID_SHIFT | endpoint.ofport
        return IPv4Address(number)

    def parse(self, address: IPv4Address | IPv6Address) -> tuple[model.Endpoint, int]:
        """Return the endpoint and the slot that *address* stands for.

        *address* is the source address of a peer. On tap-metadata, only dfmeta's own service flows
        can set one; the registry knows whether it stands for a known guest.

        :raises KeyRangeError: when *address* is not a key.
        """
        number = int(address)
        if address.version == 6:
            vid = number >> _VID6_SHIFT & _VID6_MASK
            endpoint = model.Endpoint(number & _OFPORT6_MASK, vid)
            slot = SLOT6 + (number >> _SLOT6_SHIFT & _SLOT6_MASK)
            if not self.covers(address):
                raise _refuse(endpoint, slot, f"{address} is not in {self.prefix6}")
        else:
            endpoint = model.Endpoint(number & OFPORT_MASK, number >> VID_SHIFT & VID_MASK)
            slot = number >> SLOT_SHIFT & _SLOT_MASK
            if not number & BASE:
                raise _refuse(endpoint, slot, f"{address} is not an address from 128.0.0.0 on")
        _check(endpoint, slot)
        return endpoint, slot

    def number_of(self, address: IPv4Address | IPv6Address) -> int | None:
        """Return the slot in a key, whether or not the key is in use; None for another address."""
        try:
            return self.parse(address)[1]
        except errors.KeyRangeError:
            return None

    def shown(self, slot: int) -> int:
        """Return the number of a slot as listings show it: the number within its version of IP."""
        return slot_in_key(slot)

    def covers(self, address: IPv4Address | IPv6Address) -> bool:
        """Return whether *address* is in the range of the keys of its version, used or not."""
        return address in self.network(address.version)

    def network(self, version: int) -> IPv4Network | IPv6Network:
        """Return the network with all keys of its version, for rules of packet filters."""
        return _NETWORK4 if version == 4 else self.prefix6

    def next_hop(self, version: int) -> str:
        """Return the host's next hop for all keys of that version; it is no guest's key."""
        return NEXT_HOP if version == 4 else NEXT_HOP6

    def probe_key(self, version: int) -> str:
        """Return the source address of the daemon's own SYN in that version; no guest's key."""
        return PROBE_KEY if version == 4 else str(self._key6(1, 0, _CONTROLLER))

    def probe_label(self, version: int) -> str | None:
        """Return the label of the daemon's own SYN in that version; see :meth:`label`."""
        return None

    def label(self, slot: int) -> str | None:
        """Return the MAC that stands for *slot* between two bridges; None: there is one bridge."""
        return None

    def labelled(self, mac: str) -> tuple[model.Endpoint | None, int] | None:
        """Return the owner and the slot of a label; the owner is None if it is not known.

        :return: None for a MAC that is not a label of a guest's slot.
        """
        return None

    def own(self, endpoint: model.Endpoint, slot: int) -> None:
        """Note that *endpoint* has *slot*, where the number alone does not show it."""

    def disown(self, endpoint: model.Endpoint, slot: int) -> None:
        """Undo :meth:`own`, unless another endpoint has *slot* by now."""

    def _key6(self, slot: int, vid: int, ofport: int) -> IPv6Address:
        return IPv6Address(self._base6 | slot << _SLOT6_SHIFT | vid << _VID6_SHIFT | ofport)


def slot_in_key(slot: int) -> int:
    """Return the number of a slot within its key: the number that listings show."""
    return slot - SLOT6 if slot > SLOT6 else slot


IN_PORT: Final = Keys()
"""The key scheme with the default prefix for IPv6."""


def _check(endpoint: model.Endpoint, slot: int) -> None:
    if slot not in SLOTS and slot not in SLOTS6:
        raise _refuse(endpoint, slot, "the slot is not one of those that Linux accepts")
    if not 1 <= endpoint.ofport <= model.OFPORT_MAX:
        raise _refuse(endpoint, slot, "the ofport is not that of an ordinary port")
    if not 0 <= endpoint.vid <= model.VID_MAX:
        raise _refuse(endpoint, slot, "the VID is not one that 802.1Q gives to a VLAN")


def _refuse(endpoint: model.Endpoint, slot: int, cause: str) -> errors.KeyRangeError:
    return errors.KeyRangeError(ofport=endpoint.ofport, vid=endpoint.vid, slot=slot, cause=cause)


GATEWAY: Final = 1
"""Number of the gateway's addresses, those of tap-meta."""
PROBE: Final = 0
"""Number of the source address of the daemon's own SYN over IPv4."""
_FIRST: Final = 2
_OCTETS: Final = 6
_MOST: Final = {4: 8, 6: 16}
"""Version of IP → addresses of one endpoint that have a Meta IP at a time."""


class MetaKeys(Keys):
    """The key scheme of Meta IPs.

    :param cidr: ``[METADATA] provider_cidr``.
    :param prefix6: ``[df_metadata] key_prefix6``, a /64.
    :param base_mac: ``[METADATA] provider_base_mac``; its last bits are 0.
    """

    def __init__(self, cidr: IPv4Network, prefix6: IPv6Network, base_mac: str) -> None:
        super().__init__(prefix6)
        self.cidr = cidr
        self._size = size = cidr.num_addresses
        self._slots = {4: range(_FIRST, size - 1), 6: range(size + _FIRST, 2 * size - 1)}
        self._base = int(base_mac.replace(":", ""), 16)
        self.owners: dict[int, model.Endpoint] = {}
        """Number → the endpoint that has it, or had it a moment ago; see :meth:`own`."""

    def most(self, version: int) -> int:
        """Return how many addresses of one endpoint may have a number at a time."""
        return _MOST[version]

    def key_of(self, endpoint: model.Endpoint, slot: int) -> IPv4Address | IPv6Address:
        """See :meth:`Keys.key_of`; the key depends on the number alone."""
        if slot in self.slots(4):
            return self.cidr[slot]
        if slot in self.slots(6):
            return self.prefix6[slot - self._size]
        raise errors.KeyRangeError(
            ofport=endpoint.ofport,
            vid=endpoint.vid,
            slot=slot,
            cause=f"no address of {self.cidr} or {self.prefix6} belongs to that number",
        )

    def number_of(self, address: IPv4Address | IPv6Address) -> int | None:
        """See :meth:`Keys.number_of`."""
        network = self.network(address.version)
        number = int(address) - int(network.network_address)
        number += self._size if address.version == 6 else 0
        return number if number in self.slots(address.version) else None

    def shown(self, slot: int) -> int:
        """See :meth:`Keys.shown`."""
        return slot % self._size

    def parse(self, address: IPv4Address | IPv6Address) -> tuple[model.Endpoint, int]:
        """See :meth:`Keys.parse`; a number without an owner is refused."""
        number = self.number_of(address)
        owner = self.owners.get(number) if number is not None else None
        if number is None or owner is None:
            raise errors.KeyRangeError(
                ofport=0, vid=0, slot=number, cause=f"{address} is not a Meta IP in use"
            )
        return owner, number

    def network(self, version: int) -> IPv4Network | IPv6Network:
        """See :meth:`Keys.network`."""
        return self.cidr if version == 4 else self.prefix6

    def next_hop(self, version: int) -> str:
        """See :meth:`Keys.next_hop`."""
        return str(self.cidr[-1]) if version == 4 else NEXT_HOP6

    def gateway(self, version: int) -> str:
        """Return the address of tap-meta, at which the proxy listens."""
        return str(self.cidr[GATEWAY] if version == 4 else self.prefix6[GATEWAY])

    def probe_number(self, version: int) -> int:
        """Return the number of the daemon's own SYN in that version; no guest's."""
        return PROBE if version == 4 else 2 * self._size - 1

    def probe_key(self, version: int) -> str:
        """See :meth:`Keys.probe_key`."""
        if version == 4:
            return str(self.cidr[PROBE])
        return str(self.prefix6[self.probe_number(6) - self._size])

    def probe_label(self, version: int) -> str:
        """See :meth:`Keys.probe_label`."""
        return self.label(self.probe_number(version))

    def label(self, slot: int) -> str:
        """See :meth:`Keys.label`: the Meta MAC."""
        number = self._base + slot
        return ":".join(f"{octet:02x}" for octet in number.to_bytes(_OCTETS, "big"))

    def labelled(self, mac: str) -> tuple[model.Endpoint | None, int] | None:
        """See :meth:`Keys.labelled`."""
        try:
            number = int(mac.replace(":", ""), 16) - self._base
        except ValueError:
            return None
        if number not in self.slots(4) and number not in self.slots(6):
            return None
        return self.owners.get(number), number

    def own(self, endpoint: model.Endpoint, slot: int) -> None:
        """See :meth:`Keys.own`."""
        self.owners[slot] = endpoint

    def disown(self, endpoint: model.Endpoint, slot: int) -> None:
        """See :meth:`Keys.disown`."""
        if self.owners.get(slot) == endpoint:
            del self.owners[slot]
