"""VMs' ports in a real OVSDB, and their rows, for the tests of trunks of dfmeta."""

from ipaddress import IPv4Address
from typing import Any

from dfmeta.attach.model import Attachment, AttachmentState, Parent
from tests.harness.guest import uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch

IP = IPv4Address("10.9.0.5")
VM_COLUMNS = ("name", "type", "external_ids", "options", "mac", "error", "ofport_request")
"""Columns of Interface that a move and its reverse leave as they were."""


def plug(host: OpenvSwitch, name: str, *words: str, tag: int = 0, **ids: str) -> Parent:
    """Plug the interface of a VM into the integration bridge; return the parent of its trunk.

    :param words: more columns of the Port, as ``ovs-vsctl set`` takes them.
    :param ids: changes of external_ids, ``vm_uuid`` for vm-uuid; an empty value leaves one out.
    """
    wanted = {
        "iface_id": uuid_of(f"port of {name}"),
        "attached_mac": "fa:16:3e:00:00:05",
        "vm_uuid": uuid_of(f"instance of {name}"),
    } | ids
    settings = [
        f'external_ids:{key.replace("_", "-")}="{value}"' for key, value in wanted.items() if value
    ]
    columns = [*([f"tag={tag}"] if tag else []), *words]
    host.vsctl(
        *("add-port", BRIDGE, name),
        *(["--", "set", "Interface", name, *settings] if settings else []),
        *(["--", "set", "Port", name, *columns] if columns else []),
    )
    return parent(f"tpi-{wanted['iface_id']}"[:15], wanted["iface_id"], wanted["vm_uuid"])


def parent(name: str, iface_id: str, instance: str) -> Parent:
    """Return the parent with a port of that name."""
    return Parent(port_id=iface_id, port_name=name, instance_id=instance)


def attachment(
    of: Parent, vid: int, *, network: str = "red", instance: str = "", salt: str = ""
) -> Attachment:
    """Return the attachment of a container of its own for each VLAN id."""
    named = f"{of.port_id} {vid} {salt}"
    return Attachment(
        id=uuid_of(f"attachment {named}"),
        parent=of.port_id,
        host="host",
        container=f"c{vid}",
        ifname="eth0",
        network=network,
        owner="",
        vid=vid,
        mac=f"fa:16:3f:00:{vid >> 8:02x}:{vid & 255:02x}",
        ip=IP,
        port_id=uuid_of(f"port {named}"),
        boot_id="",
        state=AttachmentState.WANTED,
        created=0.0,
        changed=0.0,
        instance_id=instance,
    )


def rows(host: OpenvSwitch) -> dict[str, dict[str, Any]]:
    """Return the rows of all ports by name: bridge, VLAN columns, and the interface's columns."""
    homes = {name: bridge for bridge in host.vsctl("list-br").split() for name in _on(host, bridge)}
    columns = ("name", "tag", "vlan_mode", "trunks", "cvlans", "other_config", "external_ids")
    ports = {
        record["name"]: {f"port {key}": record[key] for key in columns}
        for record in host.records("Port", *columns)
    }
    return {
        record["name"]: record | ports[record["name"]] | {"bridge": homes[record["name"]]}
        for record in host.records("Interface", *VM_COLUMNS)
    }


def bridges(host: OpenvSwitch) -> dict[str, dict[str, Any]]:
    """Return the rows of all bridges by name, without their ports."""
    columns = ("name", "datapath_type", "fail_mode", "external_ids", "other_config", "controller")
    return {record["name"]: record for record in host.records("Bridge", *columns)}


def clear(host: OpenvSwitch) -> None:
    """Remove all ports, and all bridges but the integration bridge."""
    for bridge in host.vsctl("list-br").split():
        if bridge != BRIDGE:
            host.vsctl("del-br", bridge)
    for name in host.ports():
        host.vsctl("del-port", BRIDGE, name)


def _on(host: OpenvSwitch, bridge: str) -> list[str]:
    return [bridge, *host.ports(bridge)]
