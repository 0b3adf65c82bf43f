"""Templates of members that a document lacks, filled in from the document. Pure functions.

The templates come from the operator. They have the form of Go's text/template, with fields only:
``https://{{.facility}}.example.org/{{.operating_system.slug}}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

_FIELD: Final = re.compile(r"\s*((?:\.[^\W\d]\w*)+)\s*")
"""The text between the braces of an action."""


def filled(document: Mapping[str, Any], templates: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with a member for each template whose name it lacks.

    A template that fails adds nothing: a field is absent or is not a text, a number, true or false,
    or the template is not written as above. An empty template adds nothing either.

    :param templates: name of the member → template.
    """
    added = {}
    for name, template in templates.items():
        text = rendered(template, document) if name not in document else None
        if text:
            added[name] = text
    return {**document, **added}


def rendered(template: str, document: Mapping[str, Any]) -> str | None:
    """Return a template's text; None if it fails."""
    text, *actions = template.split("{{")
    pieces = [text]
    for one in actions:
        action, end, text = one.partition("}}")
        found = _FIELD.fullmatch(action) if end else None
        value = _value(found[1], document) if found else None
        if value is None:
            return None
        pieces += [value, text]
    return "".join(pieces)


def _value(path: str, document: Mapping[str, Any]) -> str | None:
    value: Any = document
    for name in path.split(".")[1:]:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    match value:
        case str():
            return value
        case float() if not math.isfinite(value):
            return None
        case bool() | int() | float():
            return json.dumps(value)
    return None
