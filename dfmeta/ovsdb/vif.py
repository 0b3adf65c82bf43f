"""Recognises guests' interfaces of the bridge and reads their values in OVSDB. Pure.

Sources: os-vif's and libvirt's keys in ``Interface.external_ids``, ovs-vswitchd.conf.db(5). The
host writes these values and they are trusted, but they may be invalid: a port with an invalid value
is listed, not served.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Final
from uuid import UUID

from dfmeta import errors, model
from dfmeta.identity.numbering import WIRE_NAME_MAX
from dfmeta.ovsdb.external_ids import NEXT_HOPS_KEY, ids_of, parse_next_hops
from dfmeta.ovsdb.rows import PATCH, Interface
from dfmeta.ovsdb.subport_list import ListEntry, parse
from dfmeta.ovsdb.trunks import ALLOWED, INSTANCE_KEYS, NO_LEAD, Lead, kind_of, list_of

DEAD_TAG = 4095
GUEST_TYPES = frozenset(
    {"", "system", "tap", "internal", "dpdkvhostuser", "dpdkvhostuserclient", "afxdp"}
)
"""Interface types of guests' ports; types of tunnels and patch ports are not among them."""
DEVICE_TYPES: Final = frozenset(
    {"", "system", "tap", "dpdkvhostuser", "dpdkvhostuserclient", "afxdp"}
)
"""Interface types that a guest may be behind. Internal interfaces are left out: most of them belong
to an agent."""
INSTANCE_KEY = "dfmeta-instance"
"""Key in ``external_ids`` of a subport's own row: its instance."""
ADDRESS_KEY = "dfmeta-address"
"""Key in ``external_ids`` of an attachment's own row: its IPv4 address, the only one that its
container may send from."""
_AGENT_TYPE = "internal"
"""Type of a DHCP agent's or router's port, which has iface-id and attached-mac but no instance."""


def vifs(row: Interface, lead: Lead = NO_LEAD) -> tuple[model.Port, ...]:
    """Return the guests' ports of a row, one for each VLAN id; empty when it is not a guest's.

    A guest's port has an instance (``vm-uuid`` or ``vm-id``), or a Neutron port and its MAC
    (``iface-id`` with ``attached-mac``). If the instance is not a UUID, the port has a ``fault``.
    An invalid MAC gives no fault, since no decision depends on it.

    The first port is that of untagged frames. The others are subports whose tags reach the bridge:
    those of the list in the row. A trunk's bridge removes the tags, so that the list of its parent
    gives no ports there; it describes the subports that have a row of their own.

    :param lead: the values of a trunk's port in other rows.
    """
    ids = {key: text for key, value in row.external_ids.items() if (text := value.strip())}
    kind, mtu = kind_of(row), 0
    if kind is not model.PortKind.SUBPORT:
        ids.pop(INSTANCE_KEY, None)
    if kind is model.PortKind.PARENT and lead.vm is not None and not _key_of(ids):
        ids = {**lead.vm.ids, **ids}
    elif kind is model.PortKind.SUBPORT:
        entry = parse(lead.subports).entries.get(lead.vid)
        ids = _of_subport(ids, entry)
        mtu = entry.mtu if entry is not None else 0
    key = _key_of(ids)
    instance = ids.get(key, "")
    iface_id, mac = ids.get("iface-id", ""), ids.get("attached-mac", "").lower()
    wired = bool(iface_id and mac) and row.type != _AGENT_TYPE
    if kind is model.PortKind.PORT and (row.type not in GUEST_TYPES or not (instance or wired)):
        return ()
    fault = _fault(key, instance)
    hops, wrong = parse_next_hops(ids.get(NEXT_HOPS_KEY, ""))
    listed = parse(list_of(row))
    port = model.Port(
        name=row.name,
        row=row.uuid,
        ofport=row.ofport,
        iface_id=iface_id,
        mac=mac,
        instance_id=str(UUID(instance)) if instance and not fault else "",
        project_id=ids.get("project-id", ""),
        dead=row.tag == DEAD_TAG and row.vlan_mode != "trunk",
        fault=fault,
        kind=model.PortKind.PARENT if listed.entries else kind,
        segmentation_id=lead.vid,
        parent=lead.parent,
        mtu=mtu,
        subport_faults=listed.faults,
        attachments=_allowed(row, kind, lead),
        attached=ids.get(model.ATTACHMENT_KEY, "") if kind is model.PortKind.SUBPORT else "",
        binding=_binding(ids) if kind is model.PortKind.SUBPORT else None,
        patch=row.type == PATCH and len(row.name.encode()) <= WIRE_NAME_MAX,
        device_mac=row.mac_in_use.lower() if len(row.name.encode()) > WIRE_NAME_MAX else "",
        meta=ids_of(row.external_ids, row.other_config),
        next_hops=hops,
        next_hop_faults=wrong,
        sources=_sources(ids),
    )
    if kind is model.PortKind.PARENT:
        return (port,)
    return (port, *(subport_of(port, subport) for subport in listed.entries.values()))


def _allowed(row: Interface, kind: model.PortKind, lead: Lead) -> bool:
    """Return whether a VM may make attachments, by its tap's row or that of its trunk's parent."""
    if kind is model.PortKind.SUBPORT:
        return False
    rows = [row.external_ids]
    if kind is model.PortKind.PARENT and lead.vm is not None:
        rows.append(lead.vm.ids)
    return any(ids.get(ALLOWED, "").strip() == "true" for ids in rows)


def subport_of(parent: model.Port, entry: ListEntry) -> model.Port:
    """Return a subport whose tags reach the bridge."""
    ids = {"vm-uuid": entry.instance_id, "project-id": entry.project_id}
    return model.Port(
        name=parent.name,
        row=parent.row,
        ofport=parent.ofport,
        vid=entry.vid,
        iface_id=entry.port_id,
        mac=entry.mac,
        instance_id=entry.instance_id,
        project_id=entry.project_id,
        dead=parent.dead,
        kind=model.PortKind.SUBPORT,
        segmentation_id=entry.vid,
        parent=parent.name,
        mtu=entry.mtu,
        attached=entry.attachment,
        patch=parent.patch,
        device_mac=parent.device_mac,
        sources=_sources(ids),
    )


def _of_subport(ids: Mapping[str, str], entry: ListEntry | None) -> dict[str, str]:
    """Return the values of a subport with a row of its own: those of its row come first."""
    key = _key_of(ids)
    if entry is None or ids.get(key, entry.instance_id).lower() != entry.instance_id:
        return dict(ids)
    listed = {key or INSTANCE_KEYS[0]: entry.instance_id, "project-id": entry.project_id}
    return {**listed, **ids}


def _key_of(ids: Mapping[str, str]) -> str:
    """Return the key with the instance; empty: there is none."""
    return next((key for key in (INSTANCE_KEY, *INSTANCE_KEYS) if ids.get(key)), "")


def _binding(ids: Mapping[str, str]) -> model.Binding | None:
    """Return the source addresses of an attachment's port; None if its row has none."""
    mac, ip = ids.get("attached-mac", "").lower(), ids.get(ADDRESS_KEY, "")
    if not (ids.get(model.ATTACHMENT_KEY) and model.is_unicast(mac)):
        return None
    try:
        return model.Binding(mac, IPv4Address(ip))
    except ValueError:
        return None


def _fault(key: str, instance: str) -> str:
    if instance and not _is_uuid(instance):
        return f"external_ids:{key}={errors.short(instance)!r} is not a UUID"
    return ""


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _sources(ids: Mapping[str, str]) -> dict[str, str]:
    keys = {"instance_id": (INSTANCE_KEY, *INSTANCE_KEYS), "project_id": ("project-id",)}
    return {name: "ovsdb" for name, options in keys.items() if any(ids.get(o) for o in options)}
