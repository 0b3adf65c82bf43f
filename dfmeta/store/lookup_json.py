"""JSON that comes over the network, as strictly as what is pushed: one reading, or none."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

DEPTH_MAX: Final = 100
"""Arrays and objects inside each other: whoever reads it again may have less room for them."""
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def loads(text: str | bytes) -> Any:
    """Return what a JSON text says (RFC 8259).

    Refused are bytes that are not UTF-8, NaN and Infinity, members of one name, lone surrogates,
    NUL, numbers that no float can hold, more than :data:`DEPTH_MAX` levels, and anything after the
    document.

    :raises ValueError: it is no such text. The error quotes nothing of it.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            text,
            parse_constant=_refuse,
            parse_float=_parse_float,
            object_pairs_hook=_parse_object,
        )
        if _NUL.search(text):
            raise ValueError
        _check_depth(value)
        # A lone surrogate is what UTF-8 cannot hold.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("it is not sound JSON") from None
    return value


def _refuse(_name: str) -> None:
    raise ValueError


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError
    return number


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _check_depth(value: object) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        if not level:
            return
        level = [inner for one in level for inner in _inside(one)]
    if level:
        raise ValueError


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value
    return [one for one in inner if isinstance(one, dict | list)]
