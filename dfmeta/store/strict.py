"""JSON as strictly as the store takes it, and YAML where people write it. Pure functions.

Each raises ValueError with a cause that quotes nothing of the input, which may hold secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

DEPTH_MAX: Final = 100
"""Objects and arrays inside each other: whoever reads or writes JSON can do so many."""
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
NOT_TEXT: Final = "it is not UTF-8"


def decode(data: bytes) -> str:
    """Return text; a byte order mark is left out."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(NOT_TEXT) from None


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object (RFC 8259).

    :raises ValueError: it is none, a name stands in an object twice, or something in it is not to
        be stored: NaN, Infinity, NUL, half of a surrogate pair.
    """
    text = data if isinstance(data, str) else decode(data)
    try:
        found = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_number
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(found, dict):
        check_texts(found)
        return found
    raise ValueError("it is no JSON object")


def parse_mapping(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object or a YAML mapping (YAML 1.1, without tags of a language).

    :raises ValueError: it is neither.
    """
    text = data if isinstance(data, str) else decode(data)
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"it is no YAML: {error.problem or 'it ends too soon'}{where}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError("it is no YAML") from None
    if isinstance(found, dict):
        return found
    raise ValueError("it is no mapping of names to values")


def check_texts(value: object) -> None:
    """Look at every text in a JSON value, level by level.

    :raises ValueError: one has NUL or half of a surrogate pair in it, or there are more than
        :data:`DEPTH_MAX` levels.
    """
    level = [value]
    for _depth in range(DEPTH_MAX + 1):
        names = [name for one in level if isinstance(one, dict) for name in one]
        for text in (*level, *names):
            if isinstance(text, str) and _UNSTORABLE.search(text):
                raise ValueError("a text in it has NUL in it, or half of a surrogate pair")
        level = [child for one in level for child in _children(one)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError("a name stands in an object of it twice")
        members[name] = value
    return members


def _number(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number in it is too large")
    return number


def _no_number(_name: str) -> float:
    raise ValueError("NaN and Infinity are no JSON")
