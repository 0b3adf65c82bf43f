"""Reads Open vSwitch's configuration once, for a command; the daemon watches it instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfmeta.errors import OvsdbError
from dfmeta.ovsdb.jsonrpc import RefusedError, call, why
from dfmeta.ovsdb.rows import Bridge, Controller, Interface, Snapshot
from dfmeta.ovsdb.subport_list import parse
from dfmeta.ovsdb.trunks import Trunks, side_of
from dfmeta.ovsdb.vif import InterfaceRow, list_of, vifs

_DATABASE = "Open_vSwitch"
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "Open_vSwitch": ("external_ids", "other_config"),
    "Bridge": (
        "name",
        "ports",
        "datapath_type",
        "protocols",
        "fail_mode",
        "external_ids",
        "controller",
    ),
    "Controller": ("_uuid", "target", "is_connected"),
    "Port": ("_uuid", "interfaces", "tag", "vlan_mode", "cvlans"),
    "Interface": (
        "_uuid",
        "name",
        "type",
        "ofport",
        "external_ids",
        "mac_in_use",
        "error",
        "mtu",
        "options",
        "status",
    ),
}

_Row = dict[str, Any]


def read_snapshot(remote: str) -> Snapshot:
    """Read bridges and interfaces in one transaction.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :raises OvsdbError: when OVSDB does not answer.
    """
    selects = [
        {"op": "select", "table": table, "where": [], "columns": list(columns)}
        for table, columns in _COLUMNS.items()
    ]
    try:
        answers = call(remote, "transact", [_DATABASE, *selects])
        tables = [[_plain_row(row) for row in answer["rows"]] for answer in answers]
    except (OSError, ValueError, KeyError, TypeError, RefusedError) as error:
        raise OvsdbError(connection=remote, cause=why(error)) from error
    return _assemble(*tables)


def _assemble(
    roots: list[_Row],
    bridges: list[_Row],
    controllers: list[_Row],
    ports: list[_Row],
    interfaces: list[_Row],
) -> Snapshot:
    by_id = {row["_uuid"]: Controller(row["target"], row["is_connected"]) for row in controllers}
    port_rows = {row["_uuid"]: row for row in ports}
    interface_rows = {row["_uuid"]: row for row in interfaces}
    places = [
        (bridge["name"], port_rows[port], interface_rows[interface])
        for bridge in bridges
        for port in bridge["ports"]
        for interface in port_rows[port]["interfaces"]
    ]
    trunks = Trunks()
    for bridge, port, row in places:
        side = side_of(
            row["name"],
            bridge,
            row["type"],
            options=row["options"],
            external_ids=row["external_ids"],
            tag=port["tag"],
        )
        trunks.put(row["_uuid"], side)
        trunks.put_list(row["_uuid"], row["name"], list_of(_as_row(port, row)))
    return Snapshot(
        bridges=tuple(
            Bridge(
                row["name"],
                row["datapath_type"],
                tuple(row["protocols"]),
                "".join(row["fail_mode"]),
                row["external_ids"],
                tuple(by_id[one] for one in row["controller"]),
            )
            for row in bridges
        ),
        interfaces=tuple(_interface(*place, trunks) for place in places),
        external_ids=roots[0]["external_ids"] if roots else {},
        other_config=roots[0]["other_config"] if roots else {},
    )


def _as_row(port: _Row, row: _Row) -> InterfaceRow:
    return InterfaceRow(
        uuid=row["_uuid"],
        name=row["name"],
        type=row["type"],
        ofport=row["ofport"],
        external_ids=row["external_ids"],
        tag=port["tag"],
        vlan_mode=port["vlan_mode"],
        options=row["options"],
    )


def _interface(bridge: str, port: _Row, row: _Row, trunks: Trunks) -> Interface:
    as_row = _as_row(port, row)
    lead = trunks.lead(as_row.kind, as_row.peer, row["external_ids"].get("iface-id", "").strip())
    ofport = row["ofport"][0] if row["ofport"] else 0
    return Interface(
        name=row["name"],
        bridge=bridge,
        type=row["type"],
        ofport=ofport if ofport > 0 else None,
        external_ids=row["external_ids"],
        mac_in_use="".join(row["mac_in_use"]),
        error="".join(row["error"]),
        tag=port["tag"][0] if port["tag"] else None,
        vlan_mode="".join(port["vlan_mode"]),
        cvlans=tuple(port["cvlans"]),
        options=row["options"],
        mtu=row["mtu"][0] if row["mtu"] else 0,
        driver=row["status"].get("driver_name", ""),
        listed_vids=tuple(sorted(parse(list_of(as_row)).entries)),
        ports=vifs(as_row, lead),
    )


_SETS = (
    *("ports", "interfaces", "protocols", "fail_mode", "tag", "vlan_mode", "cvlans", "ofport"),
    *("mac_in_use", "mtu", "controller"),
)


def _plain_row(row: _Row) -> _Row:
    """Convert OVSDB's notation (RFC 7047, 5.1) to Python; a set column always becomes a list."""
    plain = {name: _plain(value) for name, value in row.items()}
    for name in (*_SETS, "error"):
        if name in plain and not isinstance(plain[name], list):
            plain[name] = [plain[name]]
    return plain


def _plain(value: Any) -> Any:
    match value:
        case ["set", members]:
            return [_plain(member) for member in members]
        case ["map", pairs]:
            return {_plain(key): _plain(member) for key, member in pairs}
        case ["uuid" | "named-uuid", text]:
            return text
        case _:
            return value
