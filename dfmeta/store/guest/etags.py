"""Conditional requests: 304 for a guest that has an answer already. Pure functions.

Trust: If-None-Match comes from a guest. A header that is not well-formed counts as absent; no part
of it is sent back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dfmeta.model import Answer, GuestRequest

DIGEST_BYTES: Final = 16

_MEMBER: Final = re.compile(r'[ \t]*+(?:(?:W/)?("[\x21\x23-\x7e\x80-\xff]*+"))?[ \t]*+(?:,|\Z)')
"""An entity tag and its end, or an empty member of a list (RFC 9110, 5.6.1 and 8.8.3).

Possessive: spaces that the first loop has matched are not tried again with the last one, which
would take time in proportion to the square of their number.
"""


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
    members = [*_members(given)]
    return [] if None in members else [one for one in members if one]


def _members(given: str) -> Iterator[str | None]:
    at = 0
    while at < len(given):
        found = _MEMBER.match(given, at)
        if found is None:
            yield None
            return
        yield found[1] or ""
        at = found.end()
