"""EC2's metadata tree, as an unmodified cloud-init crawls it. Pure functions.

The form is Nova's (nova/api/metadata/base.py, handler.py): listings joined by line feeds without
one at the end, directories with a slash, keys as ``0=name``. Items without a value in the store do
not exist. The answer for a listed item is always 200, because cloud-init drops the whole tree if
one item has another status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Final

from dfmeta.model import Answer
from dfmeta.store.guest import need as needs
from dfmeta.store.guest.documents import USERDATA_TYPE, Document, addresses_of
from dfmeta.store.guest.need import Need

TAGS_SINCE: Final = "2021-03-23"
VERSIONS: Final = ("2009-04-04", "2016-09-02", "2018-09-24", TAGS_SINCE, "latest")
"""The versions that cloud-init requests: the oldest, and the newest of the others that exists. They
differ only in tags."""
METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
DYNAMIC: Final = "dynamic"
PUBLIC_KEYS: Final = "public-keys"
IDENTITY_VERSION: Final = "2017-09-30"
"""Version of the form of AWS's instance identity document."""

Tree = Mapping[str, "Tree | bytes"]


def answer(document: Document, segments: Sequence[str]) -> Answer | None:
    """Answer a GET below a version, or of the list of versions; None if the path does not exist.

    :param segments: the path, decoded, without empty parts; from a guest.
    """
    if not segments:
        return Answer(200, "\n".join(VERSIONS).encode())
    if segments[0] not in VERSIONS:
        return None
    node: Tree | bytes | None = _tree(document, segments[0])
    for segment in segments[1:]:
        node = node.get(segment) if isinstance(node, Mapping) else None
    if node is None:
        return None
    if segments[1:] == [METADATA, PUBLIC_KEYS]:
        return Answer(200, _key_listing(document))
    if segments[1:] == [USERDATA] and isinstance(node, bytes):
        return Answer(200, node, content_type=USERDATA_TYPE)
    return Answer(200, node if isinstance(node, bytes) else _listing(node))


def need(segments: Sequence[str]) -> Need:
    """Return the parts of a record that the answer for a path depends on.

    :param segments: see :func:`answer`.
    """
    match segments:
        case [version] if version in VERSIONS:
            return needs.USERDATA
        case [version, name] if version in VERSIONS and name == USERDATA:
            return needs.USERDATA_ALONE
        case [version, name, *_] if version in VERSIONS and name in (METADATA, DYNAMIC):
            return needs.METADATA
    return needs.ANY_HALF


def _tree(document: Document, version: str) -> Tree:
    """Return the tree below a version."""
    tree: dict[str, Tree | bytes] = {METADATA: _metadata(document, version)}
    if document.userdata is not None:
        tree[USERDATA] = document.userdata
    tree[DYNAMIC] = {"instance-identity": {"document": _identity(document)}}
    return tree


def _metadata(document: Document, version: str) -> Tree:
    texts = {
        "ami-launch-index": str(document.launch_index or 0),
        "hostname": document.hostname,
        "instance-action": "none",
        "instance-id": document.instance_id,
        "instance-type": document.instance_type,
        "local-hostname": document.hostname,
        "local-ipv4": _first(addresses_of(document, 4, public=False)),
        "public-ipv4": _first(addresses_of(document, 4, public=True)),
        "ipv6": _first(addresses_of(document, 6, public=True)),
    }
    tree: dict[str, Tree | bytes] = {name: text.encode() for name, text in texts.items() if text}
    zones = {"availability-zone": document.zone, "region": document.region}
    if placement := {name: text.encode() for name, text in zones.items() if text}:
        tree["placement"] = placement
    if document.keys:
        tree[PUBLIC_KEYS] = {
            str(index): {"openssh-key": key.data.encode()}
            for index, key in enumerate(document.keys)
        }
    # "latest" sorts after every date.
    if document.instance_tags and version >= TAGS_SINCE:
        tags = {key: text.encode() for key, text in document.instance_tags.items()}
        tree["tags"] = {"instance": tags}
    return tree


def _identity(document: Document) -> bytes:
    """Return the instance identity document. It is not signed, so no signature is listed."""
    content = {
        "accountId": document.project_id,
        "availabilityZone": document.zone,
        "instanceId": document.instance_id,
        "instanceType": document.instance_type,
        "pendingTime": document.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": _first(addresses_of(document, 4, public=False)),
        "region": document.region,
        "version": IDENTITY_VERSION,
    }
    return json.dumps({name: text for name, text in content.items() if text}).encode()


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""


def _listing(folder: Tree) -> bytes:
    names = (name if isinstance(node, bytes) else f"{name}/" for name, node in folder.items())
    return "\n".join(names).encode()


def _key_listing(document: Document) -> bytes:
    return "\n".join(f"{index}={key.name}" for index, key in enumerate(document.keys)).encode()
