"""The VLANs of a VM's trunks as links of its ``network_data.json``, whatever the backend is.

Nova and the store know the VM's ports, but not the subports behind them. cloud-init makes a VLAN
device of each such link (``convert_net_json`` in cloudinit/sources/helpers/openstack.py). It ends
without any network if a link lacks ``vlan_mac_address``, or is on a link that does not exist, so
that only complete links are added, and only to a document that has an unambiguous link below.

Sources: https://docs.openstack.org/nova/latest/user/metadata.html and Launchpad bug 1631371. Trust:
the document comes from Nova or the operator, and anything else than the expected form passes as it
is. The values of a :class:`Vlan` come from the host; of a guest there is only the path. The VM is
known by its port. A parent's port whose instance a tenant has named counts only for the project
that it belongs to.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dfmeta import metrics, model
from dfmeta.identity.registry import Registry
from dfmeta.proxy.application import Backend
from dfmeta.store import strictjson
from dfmeta.store.guest.requests import split_path, tagged, unless_known

LAST: Final = "/network_data.json"
"""End of the file's path, behind the version."""
_NO_PHYSICAL: Final = frozenset({"bond", "vlan"})
"""Types of links that a trunk's parent never is."""
_OF_THE_OLD_BODY: Final = frozenset(
    {
        *("content-length", "content-md5", "digest", "content-digest", "repr-digest"),
        *("etag", "last-modified", "accept-ranges"),
    }
)
"""Headers, in lower case, that do not describe a body that has changed."""


_Link = Mapping[str, Any]


class Vlan(NamedTuple):
    """A VLAN of a VM: one of its subports."""

    parent_mac: str
    """MAC of the VM's port, in lower case with colons."""
    vid: int
    mac: str
    """MAC of the subport, in lower case with colons."""
    mtu: int = 0
    """MTU of the subport's network in bytes; 0: not known."""


Subports = Callable[[model.Identity, float], Sequence[Vlan]]
"""Return the VLANs of a VM, within that deadline (monotonic seconds)."""


def is_file(path: str) -> bool:
    """Return whether an origin-form path is that of ``network_data.json``, in any spelling."""
    # The first check is fast and excludes nearly all other paths.
    if "%" not in path and LAST not in path:
        return False
    match split_path(path):
        case ["openstack", _, "network_data.json"]:
            return True
    return False


def whole(request: model.GuestRequest) -> model.GuestRequest:
    """Return the request whose answer has the whole document: a GET without a condition."""
    headers = {name: value for name, value in request.headers.items() if name != "if-none-match"}
    return replace(request, method="GET", headers=headers)


def completed(
    answer: model.Answer, vlans: Collection[Vlan], request: model.GuestRequest
) -> model.Answer:
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
        kept = tuple(pair for pair in answer.headers if pair[0].lower() not in _OF_THE_OLD_BODY)
        answer = replace(answer, body=body, headers=kept)
        answer = tagged(answer) if "etag" in names else answer
    last = answer.headers[-1][0].lower() if answer.headers else ""
    return unless_known(answer, request) if last == "etag" else answer


def with_vlans(document: bytes, vlans: Iterable[Vlan]) -> bytes:
    """Return a ``network_data.json`` with a link for each VLAN whose parent's link is known.

    A VLAN that the document has already is not added again. The document is returned unchanged if
    nothing is added, or if it is not strict JSON with links that each have an id of their own. All
    other members keep their values and their order.
    """
    try:
        content = strictjson.loads_object(document)
    except ValueError:
        return document
    links = content.get("links")
    if not isinstance(links, list) or not _are_distinct(links):
        return document
    added = list(_links(sorted(set(vlans)), links))
    if not added:
        return document
    return json.dumps({**content, "links": [*links, *added]}).encode()


def _are_distinct(links: Sequence[object]) -> bool:
    ids = [link.get("id") if isinstance(link, dict) else None for link in links]
    return len({text for text in ids if isinstance(text, str) and text}) == len(links)


def _links(vlans: Iterable[Vlan], links: Sequence[_Link]) -> Iterator[dict[str, Any]]:
    """Yield the links of the VLANs that can have one. The time grows with their number alone."""
    parents, present = _parents(links), set(_vlans(links))
    ids = {link["id"] for link in links}
    for vlan in vlans:
        parent = parents.get(vlan.parent_mac)
        if parent is None or (parent["id"], vlan.vid) in present:
            continue
        # The other id is for a VM with the same VLAN id on two trunks.
        names = (f"dfsub{vlan.vid}", f"dfsub{vlan.vid}-{parent['id']}")
        name = next((text for text in names if text not in ids), None)
        if name is None:
            continue
        present.add((parent["id"], vlan.vid))
        ids.add(name)
        yield {
            "id": name,
            "type": "vlan",
            "vlan_link": parent["id"],
            "vlan_id": vlan.vid,
            "vlan_mac_address": vlan.mac,
            **_mtu(vlan.mtu, parent.get("mtu")),
        }


def _mtu(of_vlan: int, below: object) -> dict[str, int]:
    """Return the member of a VLAN's MTU: no device can have a larger one than the device below."""
    sizes = [mtu for mtu in (of_vlan, below) if type(mtu) is int and mtu > 0]
    return {"mtu": min(sizes)} if sizes else {}


def _parents(links: Sequence[_Link]) -> Mapping[str, _Link | None]:
    """Return MAC in lower case → the one link of a device with it; None: there are more."""
    bonded = {
        text
        for link in links
        if isinstance(link.get("bond_links"), list)
        for text in link["bond_links"]
        if isinstance(text, str)
    }
    parents: dict[str, _Link | None] = {}
    for link in links:
        kind, mac = link.get("type"), link.get("ethernet_mac_address")
        if not isinstance(kind, str) or kind in _NO_PHYSICAL or not isinstance(mac, str):
            continue
        if link["id"] not in bonded:
            parents[mac.lower()] = link if mac.lower() not in parents else None
    return parents


def _vlans(links: Sequence[_Link]) -> Iterator[tuple[object, int]]:
    """Yield the link below and the VLAN id of each VLAN."""
    for link in links:
        below, vid = link.get("vlan_link"), link.get("vlan_id")
        if link.get("type") == "vlan" and isinstance(below, str) and isinstance(vid, int | str):
            # A number may be written as a text.
            with contextlib.suppress(ValueError):
                yield below, int(vid)


class Completing:
    """A backend whose ``network_data.json`` has the VM's subports; see
    :class:`~dfmeta.proxy.application.Backend`.

    :param backend: answers all requests.
    :param subports: returns the VLANs of an instance.
    """

    def __init__(self, backend: Backend, subports: Subports) -> None:
        self.backend = backend
        self.name: metrics.Backend = backend.name
        self._subports = subports

    def open(
        self, request: model.GuestRequest, identity: model.Identity, terms: model.AnswerTerms
    ) -> model.View:
        """See :class:`~dfmeta.proxy.application.Backend`."""
        vlans: Sequence[Vlan] = ()
        if request.method in ("GET", "HEAD") and is_file(request.path):
            vlans = self._subports(identity, terms.deadline)
        if not vlans:
            return self.backend.open(request, identity, terms)
        view = self.backend.open(whole(request), identity, terms)
        return model.View(view.http_tokens, lambda: completed(view.answer(), vlans, request))


def subport_vlans(registry: Registry, identity: model.Identity) -> list[Vlan]:
    """Return the VLANs of an instance: the subports of all its ports, with their MACs.

    A subport without a valid MAC or VLAN id is left out. So are attachments: cloud-init would make
    their devices at the VM's next boot, before the program that asked for them.
    """
    ports = registry.ports()
    macs = {port.name: port.mac for port in ports if _is_parent(port, identity)}
    if not macs:
        return []
    return [
        Vlan(macs[port.parent], port.segmentation_id, port.mac, port.mtu)
        for port in ports
        if port.parent in macs
        and port.kind is model.PortKind.SUBPORT
        and not port.attached
        and port.segmentation_id
        and model.is_unicast(port.mac)
    ]


def _is_parent(port: model.Port, identity: model.Identity) -> bool:
    return (
        port.instance_id == identity.instance_id
        and port.kind is model.PortKind.PARENT
        and not port.vid
        and bool(port.mac)
        and (not port.unverified or port.project_id == identity.project_id)
    )
