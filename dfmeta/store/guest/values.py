"""Read values of a document that any program may have written. Pure functions.

Trust: a document comes from the operator; its members may be any JSON. A value of an unexpected
type counts as absent.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

DEPTH_MAX: Final = 32
"""Maximum number of levels of a value that is passed on unchanged: far more than vendor data and
networks have, and few enough for every writer of JSON and YAML."""

_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, surrogates, line and paragraph separators."""


def is_one_line(text: str) -> bool:
    """Whether a text is one line that UTF-8 can hold, without control characters."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def text_of(value: object) -> str:
    """Return a one-line text without surrounding spaces, or an empty one for any other value."""
    return value.strip() if isinstance(value, str) and is_one_line(value) else ""


def first_text(values: Iterable[object]) -> str:
    """Return the first value that is a one-line text and not empty, or an empty text."""
    return next((text for text in map(text_of, values) if text), "")


def list_of(value: object) -> list[Any]:
    """Return a list as it is, or an empty one for any other value."""
    return value if isinstance(value, list) else []


def object_of(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def plain(value: object, depth: int = DEPTH_MAX) -> Any:
    """Return a copy that any JSON reader accepts: infinities and too deep values become null.

    A number such as 1e999 is well-formed JSON, and infinite once it is read (RFC 8259, section 6).
    """
    match value:
        case dict():
            return {name: plain(one, depth - 1) for name, one in value.items()} if depth else None
        case list():
            return [plain(one, depth - 1) for one in value] if depth else None
        case float() if not math.isfinite(value):
            return None
    return value
