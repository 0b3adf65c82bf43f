"""Meta IPs: the key scheme ``identity_scheme = meta_ip`` (specification 001).

Each address of a guest has a number that is unique on the host, and the number gives its Meta IP,
the key by which the proxy knows it, and its Meta MAC, by which the bridges know it. For a
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

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from dfmeta.errors import KeyRangeError
from dfmeta.identity.key import NEXT_HOP6, Keys
from dfmeta.model import Endpoint

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
        self.cidr, self.prefix6 = cidr, prefix6
        self._size = cidr.num_addresses
        self._base = int(base_mac.replace(":", ""), 16)
        self._first6 = int(prefix6.network_address)
        self.owners: dict[int, Endpoint] = {}
        """Number → the endpoint that has it, or had it a moment ago; see :meth:`own`."""

    def slots(self, version: int) -> Sequence[int]:
        """See :meth:`~dfmeta.identity.key.Keys.slots`."""
        start = 0 if version == 4 else self._size
        return range(start + _FIRST, start + self._size - 1)

    def most(self, version: int) -> int:
        """See :meth:`~dfmeta.identity.key.Keys.most`."""
        return _MOST[version]

    def key_of(self, endpoint: Endpoint, slot: int) -> IPv4Address | IPv6Address:
        """See :meth:`~dfmeta.identity.key.Keys.key_of`; the key depends on the number alone."""
        if slot in self.slots(4):
            return self.cidr[slot]
        if slot in self.slots(6):
            return self._key6(slot)
        raise KeyRangeError(
            ofport=endpoint.ofport,
            vid=endpoint.vid,
            slot=slot,
            cause=f"no address of {self.cidr} or {self.prefix6} belongs to that number",
        )

    def number_of(self, address: IPv4Address | IPv6Address) -> int | None:
        """See :meth:`~dfmeta.identity.key.Keys.number_of`."""
        if address not in (self.cidr if address.version == 4 else self.prefix6):
            return None
        if address.version == 4:
            number = int(address) - int(self.cidr.network_address)
        else:
            number = int(address) - self._first6 + self._size
        return number if number in self.slots(address.version) else None

    def shown(self, slot: int) -> int:
        """See :meth:`~dfmeta.identity.key.Keys.shown`."""
        return slot % self._size

    def parse(self, address: IPv4Address | IPv6Address) -> tuple[Endpoint, int]:
        """See :meth:`~dfmeta.identity.key.Keys.parse`; a number without an owner is refused."""
        number = self.number_of(address)
        owner = self.owners.get(number) if number is not None else None
        if number is None or owner is None:
            raise KeyRangeError(
                ofport=0, vid=0, slot=number, cause=f"{address} is not a Meta IP in use"
            )
        return owner, number

    def covers(self, address: IPv4Address | IPv6Address) -> bool:
        """See :meth:`~dfmeta.identity.key.Keys.covers`."""
        return address in self.network(address.version)

    def network(self, version: int) -> IPv4Network | IPv6Network:
        """See :meth:`~dfmeta.identity.key.Keys.network`."""
        return self.cidr if version == 4 else self.prefix6

    def next_hop(self, version: int) -> str:
        """See :meth:`~dfmeta.identity.key.Keys.next_hop`."""
        return str(self.cidr[-1]) if version == 4 else NEXT_HOP6

    def gateway(self, version: int) -> str:
        """Return the address of tap-meta, at which the proxy listens."""
        return str(self.cidr[GATEWAY] if version == 4 else self.prefix6[GATEWAY])

    def probe_number(self, version: int) -> int:
        """Return the number of the daemon's own SYN in that version; no guest's."""
        return PROBE if version == 4 else 2 * self._size - 1

    def probe_key(self, version: int) -> str:
        """See :meth:`~dfmeta.identity.key.Keys.probe_key`."""
        if version == 4:
            return str(self.cidr[PROBE])
        return str(self._key6(self.probe_number(6)))

    def probe_label(self, version: int) -> str:
        """See :meth:`~dfmeta.identity.key.Keys.probe_label`."""
        return self.label(self.probe_number(version))

    def label(self, slot: int) -> str:
        """See :meth:`~dfmeta.identity.key.Keys.label`: the Meta MAC."""
        number = self._base + slot
        return ":".join(f"{octet:02x}" for octet in number.to_bytes(_OCTETS, "big"))

    def labelled(self, mac: str) -> tuple[Endpoint | None, int] | None:
        """See :meth:`~dfmeta.identity.key.Keys.labelled`."""
        try:
            number = int(mac.replace(":", ""), 16) - self._base
        except ValueError:
            return None
        if number not in self.slots(4) and number not in self.slots(6):
            return None
        return self.owners.get(number), number

    def own(self, endpoint: Endpoint, slot: int) -> None:
        """See :meth:`~dfmeta.identity.key.Keys.own`."""
        self.owners[slot] = endpoint

    def disown(self, endpoint: Endpoint, slot: int) -> None:
        """See :meth:`~dfmeta.identity.key.Keys.disown`."""
        if self.owners.get(slot) == endpoint:
            del self.owners[slot]

    def _key6(self, number: int) -> IPv6Address:
        return IPv6Address(self._first6 + number - self._size)
