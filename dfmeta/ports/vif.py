"""Which interface of the bridge is a guest's, and what OVSDB says of it. Pure.

Sources: os-vif's and libvirt's keys in ``Interface.external_ids``, ovs-vswitchd.conf.db(5). All of
it was written on the host and is trusted, but it may be odd: an odd port is shown, not served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from dfmeta.model import OFPORT_MAX, Port
from dfmeta.numbering import WIRE_NAME_MAX

DEAD_TAG = 4095
SHOWN = 64
"""Characters that a fault shows of what is none: it stands in the log, and on pages."""
GUEST_TYPES = frozenset(
    {"", "system", "tap", "internal", "dpdkvhostuser", "dpdkvhostuserclient", "afxdp"}
)
"""Interface types that a guest can be behind; a tunnel's or a patch port's is not among them."""
TRUNK_PORTS = {"tpi-": "parent", "spi-": "subport"}
"""How the names of patch ports to a trunk's bridge begin, which Neutron's Open vSwitch agent makes
(neutron.services.trunk.drivers.openvswitch.agent.trunk_manager), and whose they are."""
_AGENT_TYPE = "internal"
"""A DHCP agent's or a router's port: iface-id and attached-mac, but no instance."""


@dataclass(frozen=True, slots=True)
class InterfaceRow:
    """The columns of an Interface and its Port that matter here."""

    uuid: str
    name: str
    type: str = ""
    ofport: Sequence[int] = ()
    external_ids: Mapping[str, str] = field(default_factory=dict)
    tag: Sequence[int] = ()
    vlan_mode: Sequence[str] = ()
    mac_in_use: Sequence[str] = ()


def vifs(row: InterfaceRow) -> tuple[Port, ...]:
    """Read the guests' ports of a row, no two of one VLAN id; empty when it is not a guest's.

    Today a row has one port at most, that of its untagged frames.

    A guest's port has an instance (``vm-uuid`` or ``vm-id``), or a Neutron port and its MAC
    (``iface-id`` with ``attached-mac``). An instance that is no UUID leaves a port with a
    ``fault``; an odd MAC does not, since nothing is decided by it. So does a patch port to the
    bridge of a Neutron trunk: the VM's own port is on that bridge, and vm-uuid with it.
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
