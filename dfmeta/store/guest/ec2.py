"""EC2's metadata tree, as an unmodified cloud-init crawls it. Pure functions.

The form is Nova's (nova/api/metadata/base.py, handler.py): sorted listings joined by line feeds
without one at the end, directories with a slash, keys as ``0=name``. An item that Nova always has
exists here, and is empty where the store has no value: clients repeat a request that is answered
with 404, or give up. Other items without a value do not exist. The answer for a listed item is
always 200, because cloud-init drops the whole tree if one item has another status.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Final

from dfmeta.model import Answer
from dfmeta.store.db import record as needs
from dfmeta.store.db.record import Need
from dfmeta.store.guest.documents import USERDATA_TYPE, AnswerContext, Document, addresses_of

NOVA_VERSIONS: Final = (
    *("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15"),
    *("2008-02-01", "2008-09-01", "2009-04-04"),
)
"""Nova's, the oldest first (nova/api/metadata/base.py, VERSIONS)."""
TAGS_SINCE: Final = "2021-03-23"
VERSIONS: Final = (
    *NOVA_VERSIONS,
    *("2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25", "2014-11-05", "2015-10-20"),
    *("2016-04-19", "2016-06-30", "2016-09-02", "2018-03-28", "2018-08-17", "2018-09-24"),
    *("2019-10-01", "2020-10-27", "2021-01-03", TAGS_SINCE, "2021-07-15", "2022-09-24"),
    *("2024-04-11", "latest"),
)
"""Nova's, and EC2's after them, as EC2 lists them: Ignition requests 2019-10-01 alone, and
Afterburn 2021-01-03. cloud-init takes the newest of three. As texts, they are in the order of
time."""
OWN_SINCE: Final = NOVA_VERSIONS[-1]
"""The first version with items that Nova does not have."""
METADATA: Final = "meta-data"
USERDATA: Final = "user-data"
DYNAMIC: Final = "dynamic"
PUBLIC_KEYS: Final = "public-keys"
IDENTITY_VERSION: Final = "2017-09-30"
"""Version of the form of AWS's instance identity document."""
_NO_ACTION: Final = "none"

Tree = Mapping[str, "Tree | bytes"]


def answer(document: Document, segments: Sequence[str], _context: AnswerContext) -> Answer | None:
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
        names = (f"{index}={key.name}" for index, key in enumerate(document.keys))
        return Answer(200, "\n".join(names).encode())
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
    if version >= OWN_SINCE:
        tree[DYNAMIC] = {"instance-identity": {"document": _identity(document)}}
    return tree


def _metadata(document: Document, version: str) -> Tree:
    tree = _of_nova(document, version)
    if document.keys:
        tree[PUBLIC_KEYS] = {
            str(index): {"openssh-key": key.data.encode()}
            for index, key in enumerate(document.keys)
        }
    if version < OWN_SINCE:
        return tree
    if address := _first(addresses_of(document, 6, public=True)):
        tree["ipv6"] = address.encode()
    # "latest" sorts after every date.
    if document.instance_tags and version >= TAGS_SINCE:
        tags = {key: text.encode() for key, text in document.instance_tags.items()}
        tree["tags"] = {"instance": tags}
    return tree


def _of_nova(document: Document, version: str) -> dict[str, Tree | bytes]:
    """Return the items that Nova has for each instance, with the version that introduced them."""
    zones = {"availability-zone": document.zone.encode()}
    if document.region and version >= OWN_SINCE:
        zones["region"] = document.region.encode()
    mapping: Tree = {"ami": b"", "root": b""}
    items: tuple[tuple[str, str, Tree | str], ...] = (
        ("ami-id", "1.0", ""),
        ("ami-launch-index", "1.0", str(document.launch_index or 0)),
        ("ami-manifest-path", "1.0", ""),
        ("hostname", "1.0", document.hostname),
        ("instance-id", "1.0", document.ec2_id),
        ("local-ipv4", "1.0", _first(addresses_of(document, 4, public=False))),
        ("reservation-id", "1.0", ""),
        ("security-groups", "1.0", ""),
        ("local-hostname", "2007-01-19", document.hostname),
        ("public-hostname", "2007-01-19", document.hostname),
        ("public-ipv4", "2007-01-19", _first(addresses_of(document, 4, public=True))),
        ("instance-type", "2007-08-29", document.instance_type),
        ("block-device-mapping", "2007-12-15", mapping),
        ("placement", "2008-02-01", zones),
        ("instance-action", "2008-09-01", _NO_ACTION),
    )
    return {
        name: item.encode() if isinstance(item, str) else item
        for name, since, item in items
        if version >= since
    }


def _identity(document: Document) -> bytes:
    """Return the instance identity document. It is not signed, so no signature is listed.

    It has each member of the document in EC2's user guide; one without a value is empty, or null
    where EC2 has null.
    """
    content = {
        "accountId": document.project_id,
        "architecture": "",
        "availabilityZone": document.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "marketplaceProductCodes": None,
        "imageId": "",
        "instanceId": document.ec2_id,
        "instanceType": document.instance_type,
        "kernelId": None,
        "pendingTime": document.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": _first(addresses_of(document, 4, public=False)),
        "ramdiskId": None,
        "region": document.region,
        "version": IDENTITY_VERSION,
    }
    return json.dumps(content).encode()


def _first(texts: Sequence[str]) -> str:
    return texts[0] if texts else ""


def _listing(folder: Tree) -> bytes:
    names = [name if isinstance(folder[name], bytes) else f"{name}/" for name in sorted(folder)]
    return "\n".join(names).encode()
