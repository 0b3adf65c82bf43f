"""The VLANs of a VM's trunks as links of its ``network_data.json``. Pure functions.

Nova and the store know the VM's ports, but not the subports behind them. cloud-init makes a VLAN
device of each such link (``convert_net_json`` in cloudinit/sources/helpers/openstack.py). It ends
without any network if a link lacks ``vlan_mac_address``, or is on a link that does not exist, so
that only complete links are added, and only to a document that has an unambiguous link below.

Sources: https://docs.openstack.org/nova/latest/user/metadata.html and Launchpad bug 1631371. Trust:
the document comes from Nova or the operator, and anything else than the expected form passes as it
is. The values of a :class:`Vlan` come from the host; of a guest there is only the path.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dfmeta.model import Answer, GuestRequest
from dfmeta.store import strictjson
from dfmeta.store.guest.etags import tagged, unless_known

SIZE_MAX: Final = 1 << 20
"""Bytes of the largest document that is read: a port takes about 500."""
FIRST: Final = "/openstack/"
LAST: Final = "/network_data.json"
"""Beginning and end of the file's paths; the version is between them."""
_NO_PHYSICAL: Final = frozenset({"bond", "vlan"})
"""Types of links that a trunk's parent never is."""
_OF_THE_OLD_BODY: Final = frozenset(
    {
        *("content-length", "content-md5", "digest", "content-digest", "repr-digest"),
        *("etag", "last-modified", "accept-ranges"),
    }
)
"""Headers, in lower case, that do not describe a body that has changed."""


class Vlan(NamedTuple):
    """A VLAN of a VM: one of its subports."""

    parent_mac: str
    """MAC of the VM's port, in lower case with colons."""
    vid: int
    mac: str
    """MAC of the subport, in lower case with colons."""


def is_file(path: str) -> bool:
    """Return whether a path is that of ``network_data.json``, in its one usual spelling."""
    version = path.removeprefix(FIRST).removesuffix(LAST)
    return path == f"{FIRST}{version}{LAST}" and bool(version) and "/" not in version


def whole(request: GuestRequest) -> GuestRequest:
    """Return the request whose answer has the whole document: a GET without a condition."""
    headers = {name: one for name, one in request.headers.items() if name != "if-none-match"}
    return replace(request, method="GET", headers=headers)


def completed(answer: Answer, vlans: Collection[Vlan], request: GuestRequest) -> Answer:
    """Return the answer to a request for the file, with the VLANs in it.

    An answer with an entity tag gets that of the new body, and is 304 for a guest that has it. A
    body that is packed stays as it is.

    :param answer: the answer to :func:`whole` of the request.
    """
    names = {name.lower() for name, _value in answer.headers}
    if answer.status != 200 or "content-encoding" in names:
        return answer
    body = with_vlans(answer.body, vlans)
    if body != answer.body:
        kept = tuple(one for one in answer.headers if one[0].lower() not in _OF_THE_OLD_BODY)
        answer = replace(answer, body=body, headers=kept)
        answer = tagged(answer) if "etag" in names else answer
    last = answer.headers[-1][0].lower() if answer.headers else ""
    return unless_known(answer, request) if last == "etag" else answer


def with_vlans(document: bytes, vlans: Iterable[Vlan]) -> bytes:
    """Return a ``network_data.json`` with a link for each VLAN whose parent's link is known.

    A VLAN that the document has already is not added again. The document is returned unchanged if
    nothing is added, if it is larger than :data:`SIZE_MAX`, or if it is not strict JSON with links
    that each have an id of their own. All other members keep their values and their order.
    """
    if len(document) > SIZE_MAX:
        return document
    try:
        found = strictjson.loads_object(document)
    except ValueError:
        return document
    links = found.get("links")
    if not isinstance(links, list) or not _are_distinct(links):
        return document
    before = len(links)
    for vlan in sorted(set(vlans)):
        links.extend(_links(vlan, links))
    return json.dumps(found).encode() if len(links) > before else document


def _are_distinct(links: Sequence[object]) -> bool:
    ids = [one.get("id") if isinstance(one, dict) else None for one in links]
    texts = [one for one in ids if isinstance(one, str) and one]
    return len(set(texts)) == len(links)


def _links(vlan: Vlan, links: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the link of a VLAN, if it can have one."""
    parent = _parent(vlan.parent_mac, links)
    if parent is None or _is_there(vlan.vid, parent, links):
        return
    ids = {one["id"] for one in links}
    # The other id is for a VM with the same VLAN id on two trunks.
    names = (f"dfsub{vlan.vid}", f"dfsub{vlan.vid}-{parent['id']}")
    name = next((one for one in names if one not in ids), None)
    if name is None:
        return
    mtu = parent.get("mtu")
    yield {
        "id": name,
        "type": "vlan",
        "vlan_link": parent["id"],
        "vlan_id": vlan.vid,
        "vlan_mac_address": vlan.mac,
        **({"mtu": mtu} if type(mtu) is int and mtu > 0 else {}),
    }


def _parent(mac: str, links: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the one link with a MAC that is a device of its own; None: there is none, or more."""
    bonds = [one["bond_links"] for one in links if isinstance(one.get("bond_links"), list)]
    found = [
        one
        for one in links
        if isinstance(one.get("type"), str)
        and one["type"] not in _NO_PHYSICAL
        and isinstance(one.get("ethernet_mac_address"), str)
        and one["ethernet_mac_address"].lower() == mac
        and not any(one["id"] in members for members in bonds)
    ]
    return found[0] if len(found) == 1 else None


def _is_there(vid: int, parent: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        one.get("type") == "vlan"
        and one.get("vlan_link") == parent["id"]
        and one.get("vlan_id") in (vid, str(vid))
        for one in links
    )
