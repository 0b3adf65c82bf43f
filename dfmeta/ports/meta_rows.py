"""The rows of the second bridge in OVSDB: ``identity_scheme = meta_ip`` (specification 001).

The bridge and its ports may exist already, such as those of Neutron's metadata_path, which have the
same names. They are used, and configured as dfmeta needs them; only rows that dfmeta has created
are marked, and only marked ones are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ovsdbapp.backend.ovs_idl.command import BaseCommand

from dfmeta.model import TAP_VLAN, MetaIds, MetaNames
from dfmeta.ports.meta_ids import IDS

SECURE: Final = "secure"
"""Fail mode of the second bridge: without dfmeta's flows it passes nothing."""


class BridgeElsewhereError(Exception):
    """A port of another bridge has the name of one of the second bridge's ports."""


@dataclass(frozen=True, slots=True)
class MetaRows:
    """The second bridge as OVSDB has it."""

    datapath_id: int | None = None
    controllers: int = 0
    """Number of Controller rows, see :class:`~dfmeta.ports.bridge_reader.Bridge`."""
    tap: int | None = None
    """Number of tap-meta; None while it has none."""
    tap_mac: str = ""
    """MAC of tap-meta in use; empty while the device does not exist."""
    patch_int: int | None = None
    """Number of the patch port on the integration bridge."""
    patch_meta: int | None = None
    """Number of the patch port on the second bridge."""
    sound: bool = False
    """Whether all rows exist and are configured as :func:`commands` does it."""


def mark_of(bridge: str) -> tuple[str, str]:
    """Return key and value in ``external_ids`` of rows that dfmeta has created for the second
    bridge.

    :param bridge: the integration bridge, of which each daemon of a host has another one.
    """
    return "dfmeta", f"meta of {bridge}"


Rows = tuple[Any, Any]
"""A Port row and its Interface row."""


def read(idl: Any, integration: Any, patch: Rows | None, names: MetaNames) -> MetaRows:
    """Read the second bridge.

    :param integration: the Bridge row of the integration bridge; None: there is none.
    :param patch: rows of the patch port on it; None: there is none.
    """
    rows = idl.tables["Bridge"].rows.values()
    bridge = next((row for row in rows if row.name == names.bridge), None)
    if bridge is None or integration is None:
        return MetaRows()
    wanted = names.tap, names.patch_meta
    there = {one.name: (one, one.interfaces[0]) for one in bridge.ports if one.name in wanted}
    tap, other = there.get(names.tap), there.get(names.patch_meta)
    number = bridge.datapath_id[0] if bridge.datapath_id else ""
    sound = (
        list(bridge.fail_mode) == [SECURE]
        and bridge.datapath_type == integration.datapath_type
        and _is_patch(patch, names.patch_meta)
        and _has_vlan(patch)
        and _is_patch(other, names.patch_int)
        and tap is not None
        and tap[1].type == "internal"
        and list(tap[1].mac) == [names.mac]
    )
    return MetaRows(
        int(number, 16) if number else None,
        len(bridge.controller),
        _number(tap),
        "".join(tap[1].mac_in_use[:1]) if tap is not None else "",
        _number(patch),
        _number(other),
        sound,
    )


def commands(api: Any, bridge: str, names: MetaNames) -> Iterator[Any]:
    """Yield the commands of one transaction that create and configure bridge and ports.

    :param bridge: name of the integration bridge, which exists.
    :raises BridgeElsewhereError: when another bridge has a port of one of the names.
    """
    bridges = {row.name: row for row in api.tables["Bridge"].rows.values()}
    home = {names.patch_int: bridge, names.patch_meta: names.bridge, names.tap: names.bridge}
    there, mark = set(), dict([mark_of(bridge)])
    for row in bridges.values():
        for port in row.ports:
            if home.get(port.name, row.name) != row.name:
                raise BridgeElsewhereError(f"{port.name} is a port of {row.name}")
            there.add(port.name)
    yield api.add_br(names.bridge, True, bridges[bridge].datapath_type or None)
    yield api.db_set("Bridge", names.bridge, ("fail_mode", SECURE))
    if names.bridge not in bridges:
        yield api.db_set("Bridge", names.bridge, ("external_ids", mark))
    for name, of in home.items():
        yield api.add_port(of, name, may_exist=True)
        if name not in there:
            yield api.db_set("Interface", name, ("external_ids", mark))
    vlan = TAP_VLAN
    yield api.db_set(
        "Port",
        names.patch_int,
        ("tag", vlan.tag),
        ("vlan_mode", vlan.vlan_mode),
        ("cvlans", list(vlan.cvlans)),
    )
    for name, peer in (
        (names.patch_int, names.patch_meta),
        (names.patch_meta, names.patch_int),
    ):
        yield api.db_set("Interface", name, ("type", "patch"), ("options", {"peer": peer}))
    yield api.db_set("Interface", names.tap, ("type", "internal"), ("mac", names.mac))


def removals(api: Any, bridge: str, removed: list[str]) -> Iterator[Any]:
    """Yield the commands that remove what dfmeta has created, and nothing else.

    :param removed: names of removed ports and bridges; extended.
    """
    mark = mark_of(bridge)
    for row in api.tables["Bridge"].rows.values():
        marked = [one.name for one in row.ports if _any_marked(one.interfaces, mark)]
        others = {one.name for one in row.ports} - {*marked, row.name}
        if _any_marked((row,), mark) and not others:
            removed.extend((*marked, row.name))
            yield api.del_br(row.name, True)
            continue
        removed.extend(marked)
        for name in marked:
            yield api.del_port(name, row.name, True)


class WriteIds(BaseCommand):  # type: ignore[misc]  # ovsdbapp has no types
    """Writes the Meta addresses of ports; other keys, which other programs may change, stay.

    :param rows: UUID of an Interface row → its Meta addresses; an empty one removes the key. Rows
        that do not exist any more are skipped.
    """

    def __init__(self, api: Any, rows: Mapping[str, MetaIds]) -> None:
        super().__init__(api)
        self._rows = rows

    def run_idl(self, _txn: Any) -> None:
        """Add the changes to the transaction."""
        table = self.api.tables["Interface"].rows
        for uuid, ids in self._rows.items():
            row = table.get(UUID(uuid))
            for key, value in zip(IDS, ids, strict=True) if row is not None else ():
                if value:
                    row.setkey("external_ids", key, value)
                elif key in row.external_ids:
                    row.delkey("external_ids", key)


def with_ids(api: Any, bridge: str) -> dict[str, MetaIds]:
    """Return the interfaces of *bridge* that have Meta addresses of dfmeta, with no addresses."""
    rows = (row for row in api.tables["Bridge"].rows.values() if row.name == bridge)
    interfaces = (one for row in rows for port in row.ports for one in port.interfaces)
    return {str(one.uuid): MetaIds() for one in interfaces if one.external_ids.keys() & {*IDS}}


def _any_marked(rows: Iterable[Any], mark: tuple[str, str]) -> bool:
    key, value = mark
    return any(row.external_ids.get(key) == value for row in rows)


def _is_patch(rows: Rows | None, peer: str) -> bool:
    return rows is not None and rows[1].type == "patch" and rows[1].options.get("peer") == peer


def _has_vlan(rows: Rows | None) -> bool:
    vlan = TAP_VLAN
    return rows is not None and (
        (list(rows[0].tag), list(rows[0].vlan_mode), tuple(rows[0].cvlans))
        == ([vlan.tag], [vlan.vlan_mode], vlan.cvlans)
    )


def _number(rows: Rows | None) -> int | None:
    found: list[int] = list(rows[1].ofport) if rows is not None else []
    return found[0] if len(found) == 1 and found[0] > 0 else None
