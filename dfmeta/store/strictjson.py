"""Strict JSON reader: accepts only JSON that all readers read alike (RFC 8259, I-JSON in RFC 7493).

Trust: none. Any text is either parsed or refused with ValueError, in time and memory that grow with
its length alone. Errors quote nothing of the text, which may hold secrets.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Most nested arrays and objects. Every JSON reader and writer can handle this depth, from any
caller; Python's own limit depends on the caller's depth."""

_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""Matches characters that a database or UTF-8 cannot hold."""


def loads(text: str | bytes) -> Any:
    """Return a JSON document as Python values.

    :param text: bytes are UTF-8, without a byte order mark.
    :raises ValueError: the text is not JSON; or two members of an object have the same name, a
        string contains NUL or half a surrogate pair, a number is NaN, infinite or longer than
        Python reads, or the document is nested deeper than :data:`DEPTH_MAX`.
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
        raise ValueError(f"it is not JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # A string can contain refused characters only as escapes: UTF-8 and the grammar forbid others.
    check(value, strings="\\u" in text)
    return value


def loads_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON document that is an object; see :func:`loads`.

    :raises ValueError: the text is not JSON, or not an object.
    """
    value = loads(text)
    if isinstance(value, dict):
        return value
    raise ValueError("it is not a JSON object")


def check(value: object, *, strings: bool = True) -> None:
    """Check a document's strings and depth, level by level, so that its depth uses no stack.

    :param strings: check its strings as well.
    :raises ValueError: a string contains NUL or half a surrogate pair, or there are more than
        :data:`DEPTH_MAX` levels.
    """
    level: list[object] = [value]
    for depth in range(DEPTH_MAX + 1):
        if strings and any(map(_NO_TEXT.search, _texts(level))):
            raise ValueError("a string in it contains NUL or half of a surrogate pair")
        if depth == DEPTH_MAX and any(isinstance(node, dict | list) for node in level):
            raise ValueError("it is nested too deeply")
        level = [child for node in level for child in _children(node)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object in it has two members with the same name")
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
    raise ValueError("NaN and Infinity are not JSON")


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
