"""EC2's metadata tree, as an unmodified cloud-init crawls it. Pure functions.

The form is Nova's (nova/api/metadata/base.py, handler.py): listings joined by line feeds without
one at the end, folders with a slash, keys as ``0=name``. Only what the store knows is there; an
item that is listed always answers 200, because cloud-init drops the whole tree over one that
does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dfmeta.model import Answer
from dfmeta.store.documents import USERDATA_TYPE, Document

VERSIONS: Final = ("2009-04-04", "latest")
"""2009-04-04 is the one that cloud-init asks for; it asks for newer ones first, and a 404 tells it
that they are not there."""
METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
PUBLIC_KEYS: Final = "public-keys"

Tree = Mapping[str, "Tree | bytes"]


def answer(document: Document, segments: Sequence[str]) -> Answer | None:
    """Answer a GET anywhere but below ``/openstack``; None for what is not there.

    :param segments: the path, decoded, without empty parts; a guest's words.
    """
    if not segments:
        return Answer(200, "\n".join(VERSIONS).encode())
    if segments[0] not in VERSIONS:
        return None
    node: Tree | bytes | None = _tree(document)
    for segment in segments[1:]:
        node = node.get(segment) if isinstance(node, Mapping) else None
    if node is None:
        return None
    if segments[1:] == [METADATA, PUBLIC_KEYS]:
        return Answer(200, _key_listing(document))
    if segments[1:] == [USERDATA] and isinstance(node, bytes):
        return Answer(200, node, content_type=USERDATA_TYPE)
    return Answer(200, node if isinstance(node, bytes) else _listing(node))


def _tree(document: Document) -> Tree:
    """Return all that is below a version."""
    metadata: dict[str, Tree | bytes] = {
        "ami-launch-index": b"0",
        "hostname": _bytes(document.hostname),
        "instance-action": b"none",
        "instance-id": _bytes(document.instance_id),
        "local-hostname": _bytes(document.hostname),
    }
    if document.zone:
        metadata["placement"] = {"availability-zone": _bytes(document.zone)}
    if document.keys:
        metadata[PUBLIC_KEYS] = {
            str(index): {"openssh-key": _bytes(key.data)} for index, key in enumerate(document.keys)
        }
    tree: dict[str, Tree | bytes] = {METADATA: metadata}
    if document.userdata is not None:
        tree[USERDATA] = document.userdata
    return tree


def _listing(folder: Tree) -> bytes:
    names = (name if isinstance(node, bytes) else f"{name}/" for name, node in folder.items())
    return "\n".join(names).encode()


def _key_listing(document: Document) -> bytes:
    return "\n".join(f"{index}={key.name}" for index, key in enumerate(document.keys)).encode()


def _bytes(text: str) -> bytes:
    """Encode, with a question mark for what UTF-8 cannot hold (a lone surrogate)."""
    return text.encode("utf-8", "replace")
