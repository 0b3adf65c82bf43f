"""Changes rows of bridges, ports and interfaces in OVSDB, in one transaction.

A change reads the rows, builds the operations from them and sends these as one transaction. The
transaction has conditions (``wait``, RFC 7047, 5.2.6), so that OVSDB refuses it if another program
has changed the rows meanwhile; then the rows are read again. OVSDB itself refuses two ports or two
bridges of one name.

Each call uses a connection of its own, through :mod:`socket` and :mod:`time`: in the daemon, where
eventlet has patched these, other greenthreads run meanwhile.

Trust: the host's programs write the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.errors import OvsdbError
from dfmeta.model import OFPORT_MAX
from dfmeta.ovsdb.jsonrpc import RefusedError, call, why
from dfmeta.runtime import clock

Operation = dict[str, Any]
"""An operation of a transaction (RFC 7047, 5.2)."""
TRIES: Final = 20
PAUSE: Final = 0.05
"""Seconds between two tries."""
_DATABASE: Final = "Open_vSwitch"
_CONFLICTS: Final = frozenset({"timed out", "constraint violation"})
"""Errors of a condition that is not true at once, and of a name that is there twice."""
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "Open_vSwitch": ("_uuid", "external_ids"),
    "Bridge": ("_uuid", "name", "ports", "datapath_type", "external_ids"),
    "Port": (
        *("_uuid", "name", "interfaces", "tag", "vlan_mode", "trunks", "cvlans"),
        *("external_ids", "other_config"),
    ),
    "Interface": (
        *("_uuid", "name", "type", "options", "external_ids", "ofport", "error"),
        "mac_in_use",
    ),
}
_FAILURES: Final = (OSError, ValueError, KeyError, TypeError, IndexError, RefusedError)


@dataclass(frozen=True, slots=True)
class Bridge:
    """A row of the table Bridge."""

    uuid: str
    name: str
    ports: tuple[str, ...]
    """UUIDs of its ports."""
    datapath_type: str
    external_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PortRow:
    """A port of a bridge, with its first interface."""

    name: str
    bridge: str
    """Name of its bridge."""
    uuid: str
    interface: str
    """UUID of its first interface; empty: the interface was not read."""
    tag: int | None = None
    vlan_mode: str = ""
    trunks: tuple[int, ...] = ()
    cvlans: tuple[int, ...] = ()
    port_ids: Mapping[str, str] = field(default_factory=dict)
    """``external_ids`` of the port."""
    other_config: Mapping[str, str] = field(default_factory=dict)
    """Of the port."""
    type: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    external_ids: Mapping[str, str] = field(default_factory=dict)
    """Of the interface."""
    mac_in_use: str = ""
    """MAC of the device on the side of the bridge."""

    @property
    def peer(self) -> str:
        """Name of the other end of a patch; empty: it is no patch."""
        return self.options.get("peer", "") if self.type == "patch" else ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one reading."""

    root: str
    """UUID of the row of Open_vSwitch."""
    root_ids: Mapping[str, str]
    bridges: Mapping[str, Bridge]
    """Name → bridge."""
    ports: Mapping[str, PortRow]
    """Name → port. Names are unique on a host."""

    def on(self, bridge: str) -> Iterator[PortRow]:
        """Return the ports of a bridge."""
        return (one for one in self.ports.values() if one.bridge == bridge)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the ports: a reading of all takes longer with each port of the host."""

    names: Collection[str]
    """Names of ports, which are read with their interfaces."""
    tags: Collection[int] = ()
    """VLAN ids: the ports that have them as a tag are read, without their interfaces."""


def read(remote: str, *, part: Part | None = None) -> Rows:
    """Read rows in one transaction.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param part: the ports to read; None: all. All bridges are read.
    :raises OvsdbError: when OVSDB does not answer.
    """
    conditions: dict[str, list[list[Any]]] = {table: [[]] for table in _COLUMNS}
    if part is not None:
        named = [[["name", "==", name]] for name in part.names]
        tagged = [[["tag", "==", tag]] for tag in part.tags]
        conditions.update({"Port": [*named, *tagged], "Interface": named})
    selects = [_select(table, one) for table, some in conditions.items() for one in some]
    with _asking(remote):
        answers = iter(call(remote, "transact", [_DATABASE, *selects]))
        return _rows(
            *(
                [row for _one in some for row in next(answers)["rows"]]
                for some in conditions.values()
            )
        )


def read_ports(remote: str, names: Iterable[str]) -> Rows:
    """Read ports by their names, and the bridges that they are on; the latter without other ports.

    :raises OvsdbError: when OVSDB does not answer.
    """
    named = [[["name", "==", name]] for name in names]
    selects = [_select(table, one) for table in ("Port", "Interface") for one in named]
    with _asking(remote):
        root, *rows = call(remote, "transact", [_DATABASE, _select("Open_vSwitch", []), *selects])
        ports = [row for one in rows[: len(named)] for row in one["rows"]]
        interfaces = [row for one in rows[len(named) :] for row in one["rows"]]
        homes = [_home(row["_uuid"]) for row in ports]
        found = call(remote, "transact", [_DATABASE, *homes])
        bridges: dict[str, Any] = {}
        for port, one in zip(ports, found, strict=True):
            for row in one["rows"]:
                there = bridges.setdefault(row["name"], {**row, "ports": as_set([])})
                there["ports"][1].append(port["_uuid"])
        return _rows(root["rows"], [*bridges.values()], ports, interfaces)


def change(
    remote: str, build: Callable[[Rows], Sequence[Operation]], *, part: Part | None = None
) -> bool:
    """Change rows; return whether there was anything to change.

    :param build: returns the operations for the present rows, with their conditions; none: there is
        nothing to change. It is called again after a conflict.
    :param part: see :func:`read`.
    :raises OvsdbError: when OVSDB does not answer or refuses the change.
    """
    busy = "the same rows all the time ({last})"
    return repeat(remote, lambda: build(read(remote, part=part)), busy=busy)


def repeat(remote: str, build: Callable[[], Sequence[Operation]], *, busy: str) -> bool:
    """Send operations until they meet no conflict; return whether there were any.

    :param build: reads the rows and returns the operations for them; it is called for each try.
    :param busy: end of the error's cause if each try has a conflict; ``{last}`` in it stands for
        the last conflict.
    :raises OvsdbError: when OVSDB does not answer or refuses the change.
    """
    last = ""
    for _try in range(TRIES):
        operations = build()
        if not operations:
            return False
        with _asking(remote):
            last = _transact(remote, operations)
        if not last:
            return True
        clock.sleep(PAUSE)
    cause = f"another program changes {busy.format(last=last)}"
    raise OvsdbError(connection=remote, cause=cause, remedy="Try again")


def external_ids(remote: str, uuid: str) -> dict[str, str] | None:
    """Return ``external_ids`` of an interface; None: there is no such row.

    :raises OvsdbError: when OVSDB does not answer.
    """
    with _asking(remote):
        select = _select("Interface", by_uuid(uuid))
        (answer,) = call(remote, "transact", [_DATABASE, select])
        return next((_dict(row["external_ids"]) for row in answer["rows"]), None)


def without_number(remote: str, names: Iterable[str], *, has_peers: bool = True) -> dict[str, str]:
    """Return the names of the interfaces that do not work → the cause, in their order.

    An interface works when it has an OpenFlow number and no error: ovs-vswitchd gives the number -1
    to a port that it has refused. It gives a patch port without its peer a number, and an error.

    :param has_peers: False: the peers of the patch ports are made later, so a number is enough.
    :raises OvsdbError: when OVSDB does not answer.
    """
    left = dict.fromkeys(names, "the port was removed")
    selects = [_select("Interface", [["name", "==", name]]) for name in left]
    with _asking(remote):
        for answer in call(remote, "transact", [_DATABASE, *selects]):
            for row in answer["rows"]:
                number, error = next(iter(_list(row["ofport"])), 0), "".join(_list(row["error"]))
                left[row["name"]] = error or "no number"
                if 1 <= number <= OFPORT_MAX and not (error and has_peers):
                    del left[row["name"]]
    return left


def unchanged(table: str, uuid: str, column: str, value: Any) -> Operation:
    """Return the condition that a column has *value*, in OVSDB's notation."""
    return {
        "op": "wait",
        "timeout": 0,
        "table": table,
        "where": by_uuid(uuid),
        "columns": [column],
        "until": "==",
        "rows": [{column: value}],
    }


def mutate(table: str, uuid: str, *mutations: Sequence[Any]) -> Operation:
    """Return the operation that changes columns of a row by *mutations*."""
    changes = [list(one) for one in mutations]
    return {"op": "mutate", "table": table, "where": by_uuid(uuid), "mutations": changes}


def update(table: str, uuid: str, **columns: Any) -> Operation:
    """Return the operation that writes columns of a row."""
    return {"op": "update", "table": table, "where": by_uuid(uuid), "row": columns}


def reconfigure(rows: Rows) -> Operation:
    """Return the operation that makes ovs-vswitchd configure its ports, as ovs-vsctl(8) does."""
    return mutate("Open_vSwitch", rows.root, ("next_cfg", "+=", 1))


class Inserts:
    """Operations that insert ports; each row has a name that is unique in the transaction."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers = itertools.count(1)

    def row(self, table: str, **columns: Any) -> list[str]:
        """Insert a row; return a reference to it, in OVSDB's notation."""
        name = f"row{next(self._numbers)}"
        self.operations.append({"op": "insert", "table": table, "uuid-name": name, "row": columns})
        return ["named-uuid", name]

    def port(
        self, name: str, *, interface: Mapping[str, Any], port: Mapping[str, Any]
    ) -> list[str]:
        """Insert a port with its interface; return a reference to it.

        :param interface: other columns of the interface than its name.
        :param port: other columns of the port than its name and interfaces.
        """
        inner = self.row("Interface", name=name, **interface)
        return self.row("Port", name=name, interfaces=inner, **port)


def by_uuid(uuid: str) -> list[Any]:
    """Return the clause that selects a row."""
    return [["_uuid", "==", ["uuid", uuid]]]


def reference(uuid: str) -> list[str]:
    """Return a reference to an existing row."""
    return ["uuid", uuid]


def as_set(values: Iterable[Any]) -> list[Any]:
    """Return a set in OVSDB's notation."""
    return ["set", list(values)]


def as_map(values: Mapping[str, str]) -> list[Any]:
    """Return a map in OVSDB's notation."""
    return ["map", [list(pair) for pair in values.items()]]


@contextmanager
def _asking(remote: str) -> Iterator[None]:
    """Raise a failure of OVSDB as :class:`OvsdbError`."""
    try:
        yield
    except _FAILURES as error:
        raise OvsdbError(connection=remote, cause=why(error)) from error


def _select(table: str, where: list[Any]) -> Operation:
    return {"op": "select", "table": table, "where": where, "columns": list(_COLUMNS[table])}


def _home(port: Any) -> Operation:
    """Return the operation that selects the bridge of a port, without the list of its ports."""
    columns = [name for name in _COLUMNS["Bridge"] if name != "ports"]
    return {**_select("Bridge", [["ports", "includes", port]]), "columns": columns}


def _transact(remote: str, operations: Sequence[Operation]) -> str:
    """Send a transaction; return the error of a conflict, empty if there is none."""
    answers = call(remote, "transact", [_DATABASE, *operations])
    errors = [one for one in answers if one and one.get("error")]
    if not errors:
        return ""
    kind, details = str(errors[0]["error"]), str(errors[0].get("details") or "")
    if kind in _CONFLICTS:
        return details or kind
    raise RefusedError(details or kind)


def _rows(roots: list[Any], bridges: list[Any], ports: list[Any], interfaces: list[Any]) -> Rows:
    inner = {row["_uuid"][1]: row for row in interfaces}
    found = [
        Bridge(
            row["_uuid"][1],
            row["name"],
            tuple(one for _kind, one in _list(row["ports"])),
            row["datapath_type"],
            _dict(row["external_ids"]),
        )
        for row in bridges
    ]
    homes = {port: bridge.name for bridge in found for port in bridge.ports}
    return Rows(
        roots[0]["_uuid"][1],
        _dict(roots[0]["external_ids"]),
        {one.name: one for one in found},
        {
            row["name"]: _port(row, homes[row["_uuid"][1]], inner)
            for row in ports
            if row["_uuid"][1] in homes
        },
    )


def _port(row: Any, bridge: str, interfaces: Mapping[str, Any]) -> PortRow:
    uuid = _list(row["interfaces"])[0][1]
    inner = interfaces.get(uuid)
    return PortRow(
        name=row["name"],
        bridge=bridge,
        uuid=row["_uuid"][1],
        interface=uuid if inner else "",
        tag=next(iter(_list(row["tag"])), None),
        vlan_mode="".join(_list(row["vlan_mode"])),
        trunks=tuple(_list(row["trunks"])),
        cvlans=tuple(_list(row["cvlans"])),
        port_ids=_dict(row["external_ids"]),
        other_config=_dict(row["other_config"]),
        type=inner["type"] if inner else "",
        options=_dict(inner["options"]) if inner else {},
        external_ids=_dict(inner["external_ids"]) if inner else {},
        mac_in_use="".join(_list(inner["mac_in_use"])) if inner else "",
    )


def _list(value: Any) -> list[Any]:
    """Return the members of a set, which OVSDB writes without a set if it is a single one."""
    match value:
        case ["set", members]:
            return list(members)
        case _:
            return [value]


def _dict(value: Any) -> dict[str, str]:
    kind, pairs = value
    if kind != "map":
        raise ValueError("a column is not a map")
    return dict(pairs)
