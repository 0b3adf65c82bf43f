"""Recognises guests' interfaces of the bridge and reads their values in OVSDB. Pure.

Sources: os-vif's and libvirt's keys in ``Interface.external_ids``, ovs-vswitchd.conf.db(5). The
host writes these values and they are trusted, but they may be invalid: a port with an invalid value
is listed, not served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from dfmeta.model import OFPORT_MAX, Port
from dfmeta.numbering import WIRE_NAME_MAX
from dfmeta.ports import next_hop_list
from dfmeta.ports.meta_ids import ids_of

DEAD_TAG = 4095
SHOWN = 64
"""Maximum number of characters of an invalid value that a fault shows in the log and on pages."""
GUEST_TYPES = frozenset(
    {"", "system", "tap", "internal", "dpdkvhostuser", "dpdkvhostuserclient", "afxdp"}
)
"""Interface types of guests' ports; types of tunnels and patch ports are not among them."""
TRUNK_PORTS = {"tpi-": "parent", "spi-": "subport"}
"""Beginning of the name of a patch port to a trunk's bridge → the end of the trunk that it serves.
Neutron's Open vSwitch agent creates these ports
(neutron.services.trunk.drivers.openvswitch.agent.trunk_manager)."""
_AGENT_TYPE = "internal"
"""Type of a DHCP agent's or router's port, which has iface-id and attached-mac but no instance."""


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """The relevant columns of an Interface row and its Port row."""

    uuid: str
    name: str
    type: str = ""
    ofport: Sequence[int] = ()
    external_ids: Mapping[str, str] = field(default_factory=dict)
    tag: Sequence[int] = ()
    vlan_mode: Sequence[str] = ()
    mac_in_use: Sequence[str] = ()
    other_config: Mapping[str, str] = field(default_factory=dict)
    """Of the Port row."""


def vifs(row: InterfaceRow) -> tuple[Port, ...]:
    """Return the guests' ports of a row, one for each VLAN id; empty when it is not a guest's.

    Currently a row has at most one port, for its untagged frames.

    A guest's port has an instance (``vm-uuid`` or ``vm-id``), or a Neutron port and its MAC
    (``iface-id`` with ``attached-mac``). If the instance is not a UUID, the port has a ``fault``.
    An invalid MAC gives no fault, since no decision depends on it. A patch port to the bridge of a
    Neutron trunk has a fault too: the VM's own port, with vm-uuid, is on that other bridge.
    """
    ids = {key: value.strip() for key, value in row.external_ids.items()}
    key = "vm-uuid" if ids.get("vm-uuid") else "vm-id"
    instance = ids.get(key, "")
    iface_id, mac = ids.get("iface-id", ""), ids.get("attached-mac", "").lower()
    wired = bool(iface_id and mac) and row.type != _AGENT_TYPE
    end = TRUNK_PORTS.get(row.name[:4], "") if row.type == "patch" and iface_id else ""
    if not end and (row.type not in GUEST_TYPES or not (instance or wired)):
        return ()
    fault = f"it is the port of a trunk's {end}" if end else _fault(key, instance)
    ofport = row.ofport[0] if len(row.ofport) == 1 else None
    hops, wrong = next_hop_list.parse(ids.get(next_hop_list.KEY, ""))
    port = Port(
        name=row.name,
        row=row.uuid,
        ofport=ofport if ofport is not None and 1 <= ofport <= OFPORT_MAX else None,
        iface_id=iface_id,
        mac=mac,
        instance_id=_canonical(instance) if not fault else "",
        project_id=ids.get("project-id", ""),
        dead=tuple(row.tag) == (DEAD_TAG,) and tuple(row.vlan_mode) != ("trunk",),
        fault=fault,
        trunk=bool(end),
        device_mac="".join(row.mac_in_use).lower()
        if len(row.name.encode()) > WIRE_NAME_MAX
        else "",
        meta=ids_of(row.external_ids, row.other_config),
        next_hops=hops,
        next_hop_faults=wrong,
        sources=_sources(ids),
    )
    return (port,)


def _fault(key: str, instance: str) -> str:
    if instance and not _is_uuid(instance):
        cut = "..." if len(instance) > SHOWN else ""
        return f"external_ids:{key}={instance[:SHOWN]!r}{cut} is not a UUID"
    return ""


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _canonical(instance: str) -> str:
    return str(UUID(instance)) if instance else ""


def _sources(ids: Mapping[str, str]) -> dict[str, str]:
    keys = {"instance_id": ("vm-uuid", "vm-id"), "project_id": ("project-id",)}
    return {name: "ovsdb" for name, options in keys.items() if any(ids.get(o) for o in options)}
