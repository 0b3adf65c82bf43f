"""Sets a member in a JSON object's text and leaves every other byte unchanged. Pure.

A meta_data.json may belong to another program, so its numbers, order and spaces are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from dfmeta.errors import DeviceError

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


def splice(text: str, member: str, value: object) -> str:
    """Return the text of a JSON object with a member set to *value*.

    :param text: a JSON text (RFC 8259); if it has *member* twice, it is refused.
    :raises DeviceError: the text is not a JSON object.
    """
    try:
        # Parse the whole text first: the code below relies on its form.
        parsed = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(parsed, dict):
            raise TypeError
        spans = [span for name, span in _members(text) if name == member]
    except (ValueError, TypeError, RecursionError) as error:
        raise DeviceError(path="document", cause="not a JSON object") from error
    if len(spans) > 1:
        raise DeviceError(path="document", cause=f"{member} occurs {len(spans)} times")
    new = json.dumps(value)
    if spans:
        (start, end) = spans[0]
        return text[:start] + new + text[end:]
    end = text.rindex("}")
    before = text[:end].rstrip(" \t\n\r")
    comma = ", " if parsed else ""
    return f"{before}{comma}{json.dumps(member)}: {new}{text[len(before) : end]}{text[end:]}"


def _members(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name and span of each value of a well-formed object."""
    place = _skip(text, _skip(text, 0) + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _value, end = _DECODER.raw_decode(text, start)
        yield name, (start, end)
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found else place


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
