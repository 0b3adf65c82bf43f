"""Reads Open vSwitch's configuration once, for a command; the daemon watches it instead."""

from dataclasses import replace
from typing import Any, Final

from dfmeta.ovsdb.idl import Columns, OvsdbClient
from dfmeta.ovsdb.rows import Interface, Rows, Snapshot, read_bridge
from dfmeta.ovsdb.subport_list import parse
from dfmeta.ovsdb.trunks import Trunks, list_of, side_of
from dfmeta.ovsdb.vif import vifs

COLUMNS: Final[Columns] = {
    "Open_vSwitch": ("external_ids", "other_config"),
    "Bridge": (
        *("name", "ports", "datapath_type", "protocols", "fail_mode", "external_ids"),
        "controller",
    ),
    "Controller": ("target", "is_connected"),
    "Port": ("interfaces", "tag", "vlan_mode", "cvlans"),
    "Interface": (
        *("name", "type", "ofport", "external_ids", "mac_in_use", "error", "mtu", "options"),
        "status",
    ),
}


def read_snapshot(remote: str) -> Snapshot:
    """Read bridges and interfaces.

    :param remote: OVSDB's address, such as ``unix:PATH`` or ``tcp:HOST:PORT``.
    :raises OvsdbError: when OVSDB does not answer.
    """
    return OvsdbClient(remote, COLUMNS).run(snapshot_of)


def snapshot_of(idl: Any, _txn: Any) -> Snapshot:
    """Return the bridges and interfaces of an IDL."""
    present = Rows(idl)
    interfaces = list(present)
    trunks = Trunks()
    for row in interfaces:
        trunks.put(row.uuid, side_of(row))
        trunks.put_list(row.uuid, row.name, list_of(row))
    root = next(iter(idl.tables["Open_vSwitch"].rows.values()), None)
    return Snapshot(
        bridges=tuple(map(read_bridge, present.bridges.values())),
        interfaces=tuple(_with_ports(row, trunks) for row in interfaces),
        external_ids=root.external_ids if root else {},
        other_config=root.other_config if root else {},
    )


def _with_ports(row: Interface, trunks: Trunks) -> Interface:
    vids = tuple(sorted(parse(list_of(row)).entries))
    return replace(row, listed_vids=vids, ports=vifs(row, trunks.lead(row)))
