"""The address of a guest when proxies forward its requests to a store.

Each proxy on the path appends the address of its peer to ``X-Forwarded-For``. So the header is read
from the right, as long as the writer of an entry is a trusted proxy.

Trust: none, unless the operator names a proxy. Entries to the left of the first address that is not
a trusted proxy's may be forged, and are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dfmeta.errors import ForwardedForError
from dfmeta.store.db.networks import Address, Network, parse_address

HEADER: Final = "x-forwarded-for"

_ADDRESS: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}", re.ASCII)
"""Characters of an address without port, brackets and zone; the parser checks the rest."""


class TrustedProxies:
    """Networks of the proxies whose ``X-Forwarded-For`` is trusted.

    :param networks: the operator's; see :func:`dfmeta.store.db.networks.parse_network`.
    """

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def __contains__(self, address: Address) -> bool:
        """Whether *address* is a trusted proxy's."""
        return any(address in network for network in self._networks)

    def guest(self, peer: Address, header: str | None) -> Address:
        """Return the address of the guest that sent a request.

        :param peer: address of the connection's peer; an IPv4-mapped one is given as IPv4.
        :param header: ``X-Forwarded-For``, several lines as one list; None: absent.
        :returns: *peer*, unless it is trusted and the header is present. Else the rightmost address
            that is not trusted, or the leftmost address if all are trusted.
        :raises ForwardedForError: an entry of a trusted proxy's header, at any position, is not a
            bare address: an address is not taken from a header that cannot be read.
        """
        if header is None or peer not in self:
            return peer
        addresses = [_entry(text.strip(" \t")) for text in header.split(",")]
        return next((one for one in reversed(addresses) if one not in self), addresses[0])


def _entry(text: str) -> Address:
    try:
        if _ADDRESS.fullmatch(text):
            return parse_address(text)
    except ValueError:
        pass
    raise ForwardedForError(cause="an entry is not an address without port, brackets and zone")
