"""What may be taken of a document that any program may have written. Pure functions.

Trust: a document is the operator's, its members are whatever JSON has. A value of another type
than expected counts as not there.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

DEPTH_MAX: Final = 32
"""Levels of what is handed on as it is: far more than vendor data and networks have, and few
enough for every writer of JSON and YAML."""

_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, surrogates, line and paragraph separators."""


def is_one_line(text: str) -> bool:
    """Whether a text is one line that UTF-8 can hold, without control characters."""
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in text)


def text_of(value: object) -> str:
    """Return a one-line text without blanks around it, or an empty one for anything else."""
    return value.strip() if isinstance(value, str) and is_one_line(value) else ""


def first_text(values: Iterable[object]) -> str:
    """Return the first that is a text and not empty, or an empty one."""
    return next((text for text in map(text_of, values) if text), "")


def list_of(value: object) -> list[Any]:
    """Return a list as it is, an empty one for anything else."""
    return value if isinstance(value, list) else []


def object_of(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def plain(value: object, depth: int = DEPTH_MAX) -> Any:
    """Return a copy that any reader of JSON takes: null for infinities and what is too deep.

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
