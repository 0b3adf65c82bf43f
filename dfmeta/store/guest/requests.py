"""The parts of a guest's request that the store reads. Pure functions; imports no database.

They are the path, If-None-Match, and X-Forwarded-For, to which each proxy on the path appends the
address of its peer: it is read from the right, as long as the writer of an entry is trusted.

Trust: none. An If-None-Match that is not well-formed counts as absent; no part of it is sent back.
Entries of X-Forwarded-For to the left of the first address that is not a trusted proxy's may be
forged, and are not used.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from urllib.parse import unquote_to_bytes

from dfmeta.errors import ForwardedForError
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.record import Address, Network, parse_address

DIGEST_BYTES: Final = 16

_MEMBER: Final = re.compile(r'[ \t]*+(?:(?:W/)?("[\x21\x23-\x7e\x80-\xff]*+"))?[ \t]*+(?:,|\Z)')
"""An entity tag and its end, or an empty member of a list (RFC 9110, 5.6.1 and 8.8.3).

Possessive: spaces that the first loop has matched are not tried again with the last one, which
would take time in proportion to the square of their number.
"""

HEADER: Final = "x-forwarded-for"

_ADDRESS: Final = re.compile(r"[0-9A-Fa-f.:]{2,45}", re.ASCII)
"""Characters of an address without port, brackets and zone; the parser checks the rest."""


def split_path(path: str) -> list[str] | None:
    """Return the segments of an origin-form path, percent-decoded once; None for an invalid path.

    Doubled slashes and slashes at the end make no difference. A path is invalid if it has a segment
    ``.`` or ``..``, has control characters or is not UTF-8: it names nothing, even if another
    server would resolve it.
    """
    if not path.startswith("/") or not path.isascii():
        return None
    try:
        # Nearly every path needs no decoding.
        decoded = unquote_to_bytes(path).decode() if "%" in path else path
    except UnicodeDecodeError:
        return None
    segments = [segment for segment in decoded.split("/") if segment]
    if not decoded.isprintable() or not {".", ".."}.isdisjoint(segments):
        return None
    return segments


def etag_of(answer: Answer) -> str:
    """Return the strong entity tag of an answer: the same bytes of the same type, the same tag."""
    digest = hashlib.blake2b(answer.content_type.encode(), digest_size=DIGEST_BYTES)
    digest.update(b"\0" + answer.body)
    return f'"{digest.hexdigest()}"'


def tagged(answer: Answer) -> Answer:
    """Add the entity tag to a 200. Another status stays as it is."""
    if answer.status != 200:
        return answer
    return replace(answer, headers=(*answer.headers, ("ETag", etag_of(answer))))


def unless_known(answer: Answer, request: GuestRequest) -> Answer:
    """Return 304 without a body for a 200 of :func:`tagged` if the guest names its tag.

    Tags are compared weakly, and ``*`` matches any tag (RFC 9110, 13.1.2).
    """
    given = request.headers.get("if-none-match")
    if given is None or answer.status != 200:
        return answer
    _name, etag = answer.headers[-1]
    if given.strip(" \t") == "*" or etag in _tags(given):
        return Answer(304, content_type="", headers=answer.headers)
    return answer


def _tags(given: str) -> list[str]:
    """Return the opaque tags of a list; none if the list is not well-formed."""
    tags, at = [], 0
    while at < len(given):
        match = _MEMBER.match(given, at)
        if match is None:
            return []
        tags += [match[1]] if match[1] else []
        at = match.end()
    return tags


class TrustedProxies:
    """Networks of the proxies whose ``X-Forwarded-For`` is trusted.

    :param networks: the operator's; see :func:`dfmeta.store.db.record.parse_network`.
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
        return next(
            (address for address in reversed(addresses) if address not in self), addresses[0]
        )


def _entry(text: str) -> Address:
    try:
        if _ADDRESS.fullmatch(text):
            return parse_address(text)
    except ValueError:
        pass
    raise ForwardedForError(cause="an entry is not an address without port, brackets and zone")
