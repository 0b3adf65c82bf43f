"""What people write in files: texts, JSON and YAML, as strictly as the store takes them. Pure.

Each raises ValueError with a cause that quotes nothing of the input, which may hold secrets.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from dfmeta.store import strictjson

NOT_TEXT: Final = "it is not UTF-8"


def decode(data: bytes) -> str:
    """Return text; a byte order mark is left out."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(NOT_TEXT) from None


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object; see :func:`dfmeta.store.strictjson.loads`."""
    return strictjson.loads_object(data if isinstance(data, str) else decode(data))


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
