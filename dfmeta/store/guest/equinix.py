"""Equinix Metal's dialect: the document, and an EC2 tree in its own form.

The routes are those of specification 003. Templates of members that a document lacks come from the
operator. They have the form of Go's text/template, with fields only:
``https://{{.facility}}.example.org/{{.operating_system.slug}}``. Pure functions.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dfmeta.model import Answer
from dfmeta.store.db import record as needs
from dfmeta.store.db.record import Need
from dfmeta.store.guest.documents import AnswerContext, Document, addresses_of
from dfmeta.store.guest.values import list_of, object_of, text_of

VERSION: Final = "2009-04-04"
"""The only version of this tree."""
USERDATA_TYPE: Final = "text/plain"
"""Without a charset: the bytes may have any encoding, or none."""

NOT_FOUND: Final = Answer(404, b'{"message":"resource not found"}', content_type="application/json")

_FIELD: Final = re.compile(r"\s*((?:\.[^\W\d]\w*)+)\s*")
"""The text between the braces of a template's action."""
_META_DATA: Final = "meta-data"
_USER_DATA: Final = "user-data"

Tree = Mapping[str, "Tree | str"]


def metadata(document: Document, segments: Sequence[str], context: AnswerContext) -> Answer | None:
    """Answer ``/metadata``: the document as it was written, with the members of templates.

    None if there is no document, but user-data alone.
    """
    if segments or document.text is None:
        return None
    text = document.text.strip()
    members = filled(document.members, context.templates)
    added = {name: members[name] for name in members if name not in document.members}
    if added:
        # Inserted before the end: a document of another program is not reformatted.
        comma = "," if document.members else ""
        text = f"{text[:-1]}{comma}{json.dumps(added)[1:]}"
    return Answer(200, text.encode(), content_type="application/json")


def need_of_metadata(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path below ``/metadata`` depends on."""
    return needs.ANY_HALF if segments else needs.METADATA_ALONE


def userdata(document: Document, segments: Sequence[str], _context: AnswerContext) -> Answer | None:
    """Answer ``/userdata``: raw bytes; None if there is no user-data."""
    if segments or document.userdata is None:
        return None
    return Answer(200, document.userdata, content_type=USERDATA_TYPE)


def need_of_userdata(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path below ``/userdata`` depends on."""
    return needs.ANY_HALF if segments else needs.USERDATA_ALONE


def answer(document: Document, segments: Sequence[str], context: AnswerContext) -> Answer | None:
    """Answer a GET below ``/2009-04-04``; None if the path does not exist.

    :param segments: the path after the version, decoded, without empty parts; from a guest.
    """
    match segments:
        case []:
            folder = [f"{_META_DATA}/"] if document.text is not None else []
            file = [_USER_DATA] if document.userdata is not None else []
            return Answer(200, "\n".join([*folder, *file]).encode())
        case [name] if name == _USER_DATA:
            return userdata(document, [], context)
        case [name, *items] if name == _META_DATA and document.text is not None:
            return _item(_tree(document), items)
    return None


def need(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path depends on.

    :param segments: see :func:`answer`.
    """
    match segments:
        case []:
            return needs.BOTH
        case [name] if name == _USER_DATA:
            return needs.USERDATA_ALONE
        case [name, *_] if name == _META_DATA:
            return needs.METADATA_ALONE
    return needs.ANY_HALF


def _item(tree: Tree, items: Sequence[str]) -> Answer | None:
    node: Tree | str | None = tree
    for item in items:
        node = node.get(item) if isinstance(node, Mapping) else None
    if node is None:
        return None
    text = node if isinstance(node, str) else "\n".join(node)
    return Answer(200, text.encode())


def _tree(document: Document) -> Tree:
    """Return the items in hollow-metadataservice's order; the last ones only if they exist."""
    members = document.members
    spot = members.get("spot")
    tree: dict[str, Tree | str] = {
        "instance-id": text_of(members.get("id")),
        "hostname": text_of(members.get("hostname")),
        "iqn": text_of(members.get("iqn")),
        "plan": text_of(members.get("plan")),
        "facility": text_of(members.get("facility")),
        "tags": "\n".join(tag for tag in map(text_of, list_of(members.get("tags"))) if tag),
        "operating-system": _operating_system(object_of(members.get("operating_system"))),
        "public-keys": "\n".join(key.data for key in document.keys),
    }
    if isinstance(spot, dict):
        tree["spot"] = {"termination-time": text_of(spot.get("termination_time"))}
    for name, version, public in (
        ("public-ipv4", 4, True),
        ("public-ipv6", 6, True),
        ("local-ipv4", 4, False),
    ):
        if addresses := addresses_of(document, version, public=public):
            tree[name] = "\n".join(addresses)
    return tree


def _operating_system(system: Mapping[str, Any]) -> Tree:
    activation = object_of(system.get("license_activation"))
    return {
        "slug": text_of(system.get("slug")),
        "distro": text_of(system.get("distro")),
        "version": text_of(system.get("version")),
        "license-activation": {"state": text_of(activation.get("state"))},
        "image-tag": text_of(system.get("image_tag")),
    }


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
    for part in actions:
        action, end, text = part.partition("}}")
        field = _FIELD.fullmatch(action) if end else None
        value = _value(field[1], document) if field else None
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
