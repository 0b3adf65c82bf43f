"""Values of a port's external_ids: instance, project and name. Pure."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

NAME_MAX: Final = 255


_PROJECT: Final = re.compile(r"[\x21-\x7e]{1,255}")


def instance_of(text: str) -> str:
    """Return an instance id in canonical form; empty when *text* is not a UUID."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return ""


def project_of(text: str) -> str:
    """Return a project id that is valid in an HTTP header; empty when *text* is not valid."""
    stripped = text.strip()
    return stripped if _PROJECT.fullmatch(stripped) else ""


def name_of(text: str) -> str:
    """Return a name on one line, without control characters: its owner may have chosen any text."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * NAME_MAX])
    return " ".join(printable.split())[:NAME_MAX]
