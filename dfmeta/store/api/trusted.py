"""Whose address counts where proxies stand between guests and a store.

``X-Forwarded-For`` is what each proxy on the way was told, with the address that it saw itself put
behind it. So it is read from the right, for as long as the one who has written an entry is trusted.

Trust: nobody, unless the operator names a proxy. What stands to the left of the first address that
is no trusted proxy's may be anybody's, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dfmeta.exceptions import ForwardedForError
from dfmeta.store.db.networks import Address, Network, parse_address

HEADER: Final = "x-forwarded-for"

_ADDRESS: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}", re.ASCII)
"""What an address without a port, brackets or a zone is made of, and some that are none."""


class TrustedProxies:
    """Networks whose hosts' word is taken.

    :param networks: the operator's; see :func:`dfmeta.store.db.networks.parse_network`.
    """

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def __contains__(self, address: Address) -> bool:
        """Whether *address* is a trusted proxy's."""
        return any(address in network for network in self._networks)

    def guest(self, peer: Address, header: str | None) -> Address:
        """Return the address of whoever asks.

        :param peer: whose connection it is, a mapped IPv4 address as IPv4.
        :param header: ``X-Forwarded-For``, several lines as one list; None: there is none.
        :returns: *peer*, unless it is trusted and the header is there. Else the address furthest to
            the right that is not trusted, or the leftmost where all are.
        :raises ForwardedForError: something in a trusted proxy's header is not a bare address,
            wherever in it that is: what cannot be read decides nothing.
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
