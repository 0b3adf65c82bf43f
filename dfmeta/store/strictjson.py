"""JSON as the store takes it: what every reader of it reads alike (RFC 8259, I-JSON in RFC 7493).

Trust: none. Whatever the text is, it is parsed or refused with ValueError, in time and memory that
grow with its length alone. Nothing of the text, which may hold secrets, is in an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Arrays and objects inside each other. Everything that reads or writes JSON can do so many,
wherever it is called from; Python's own limit depends on that."""

_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What a database or UTF-8 cannot hold."""


def loads(text: str | bytes) -> Any:
    """Return a JSON document as Python has it.

    :param text: bytes are UTF-8, without a byte order mark.
    :raises ValueError: it is not one; or two members of an object have the same name, a string has
        NUL or half a surrogate pair in it, a number is NaN, infinite or longer than Python reads,
        or it is nested deeper than :data:`DEPTH_MAX`.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_refuse,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # A string has what is refused by an escape alone: UTF-8 and the grammar allow no other.
    check(value, strings="\\u" in text)
    return value


def loads_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON document that is an object; see :func:`loads`.

    :raises ValueError: it is none.
    """
    found = loads(text)
    if isinstance(found, dict):
        return found
    raise ValueError("it is no JSON object")


def check(value: object, *, strings: bool = True) -> None:
    """Look at a document level by level, so that its depth costs no stack.

    :param strings: look at its texts as well.
    :raises ValueError: one has NUL or half a surrogate pair in it, or there are more than
        :data:`DEPTH_MAX` levels.
    """
    level: list[object] = [value]
    for depth in range(DEPTH_MAX + 1):
        if strings and any(map(_NO_TEXT.search, _texts(level))):
            raise ValueError("a text in it has NUL in it, or half of a surrogate pair")
        if depth == DEPTH_MAX and any(isinstance(node, dict | list) for node in level):
            raise ValueError("it is nested too deeply")
        level = [child for node in level for child in _children(node)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands in an object of it twice")
    return members


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a number in it has more digits than can be read") from None


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number in it is too large")
    return number


def _refuse(_name: str) -> None:
    raise ValueError("NaN and Infinity are no JSON")


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _texts(level: list[object]) -> Iterable[str]:
    for node in level:
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            yield from node
