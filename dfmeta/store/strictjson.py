"""JSON as the store takes it: what every reader of it reads alike (RFC 8259, I-JSON in RFC 7493).

Trust: none. Whatever the text is, it is parsed or refused with ValueError, in time and memory that
grow with its length alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Arrays and objects inside each other. Everything that reads or writes JSON can do so many,
wherever it is called from; Python's own limit depends on that."""

_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What a database or UTF-8 cannot hold."""
_CONTAINERS: Final = frozenset({dict, list})


def loads(text: str | bytes) -> Any:
    """Return a JSON document as Python has it.

    :param text: bytes are UTF-8, without a byte order mark.
    :raises ValueError: it is not one; or two members of an object have the same name, a string has
        NUL or half a surrogate pair in it, a number is NaN, infinite or longer than Python reads,
        or it is nested deeper than :data:`DEPTH_MAX`. Nothing of the text is in the message.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(
            text, object_pairs_hook=_object, parse_float=_float, parse_constant=_refuse
        )
        # A string has what is refused by an escape alone: UTF-8 and the grammar allow no other.
        _check(value, strings="\\u" in text)
    except (ValueError, RecursionError):
        raise ValueError("it is not sound JSON") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check(value: Any, *, strings: bool) -> None:
    """Look at a document level by level, so that its depth costs no stack.

    A million numbers are to cost no more than reading them did.
    """
    level = [[value]]
    for depth in range(DEPTH_MAX + 1):
        if strings and any(map(_NO_TEXT.search, _texts(level))):
            raise ValueError("a string cannot be kept")
        inner = [child for node in level for child in _values(node) if type(child) in _CONTAINERS]
        if depth == DEPTH_MAX and inner:
            raise ValueError("nested too deeply")
        level = inner


def _values(node: Any) -> Iterable[Any]:
    return node.values() if type(node) is dict else node


def _texts(level: list[Any]) -> Iterator[str]:
    for node in level:
        yield from (child for child in _values(node) if type(child) is str)
        if type(node) is dict:
            yield from node
