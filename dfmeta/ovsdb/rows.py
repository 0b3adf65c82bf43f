"""Rows of OVSDB as values, and their reading from an IDL.

Trust: the host's programs write the rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dfmeta.model import OFPORT_MAX, Port

RESTORE_WAIT: Final = "flow-restore-wait"
SECURE: Final = "secure"
USERSPACE: Final = "netdev"
"""Bridge.datapath_type of the userspace datapath (ovs-vswitchd.conf.db(5))."""
PATCH: Final = "patch"


@dataclass(frozen=True, slots=True)
class ControllerRow:
    """A row of OVSDB's table Controller."""

    target: str
    connected: bool


@dataclass(frozen=True, slots=True)
class Bridge:
    """A row of OVSDB's table Bridge."""

    name: str
    datapath_type: str = ""
    protocols: tuple[str, ...] = ()
    """Empty: Open vSwitch's default, which includes OpenFlow 1.3."""
    fail_mode: str = ""
    external_ids: Mapping[str, str] = field(default_factory=dict)
    controllers: tuple[ControllerRow, ...] = ()
    """When the first is added or the last removed, the bridge deletes all its flows."""
    datapath_id: int | None = None

    @property
    def userspace(self) -> bool:
        """Whether it has the userspace datapath."""
        return self.datapath_type == USERSPACE

    @property
    def fails_open(self) -> bool:
        """Whether it has controllers, none of which is connected, and does not fail secure.

        Then Open vSwitch puts a flow before all others after three inactivity probes
        (ovs-vswitchd.conf.db(5), Bridge.fail_mode).
        """
        away = bool(self.controllers) and not any(
            controller.connected for controller in self.controllers
        )
        return away and self.fail_mode != SECURE


@dataclass(frozen=True, slots=True)
class Interface:
    """A row of OVSDB's table Interface, with columns of its Port; a column may not be read."""

    name: str
    bridge: str
    type: str = ""
    ofport: int | None = None
    external_ids: Mapping[str, str] = field(default_factory=dict)
    mac_in_use: str = ""
    """MAC of the device on the side of the bridge."""
    error: str = ""
    tag: int | None = None
    vlan_mode: str = ""
    trunks: tuple[int, ...] = ()
    cvlans: tuple[int, ...] = ()
    other_config: Mapping[str, str] = field(default_factory=dict)
    """Of the Port."""
    options: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    """Driver of its device, by the kernel's name; empty: it has no device, or no known driver."""
    mtu: int = 0
    """MTU of its device in bytes; 0: not known, as for a patch port."""
    mtu_request: int = 0
    """MTU that it requests in bytes; 0: none."""
    mac: str = ""
    """MAC that it requests; empty: none."""
    uuid: str = ""
    ports: tuple[Port, ...] = ()
    """The guests' ports on this interface; empty if it is not a guest's."""
    listed_vids: tuple[int, ...] = ()
    """VLAN ids of the valid entries of its list of subports."""

    @property
    def peer(self) -> str:
        """Name of the other end of a patch; empty: it is no patch."""
        return self.options.get("peer", "") if self.type == PATCH else ""

    @property
    def iface_id(self) -> str:
        """Its iface-id; empty: none."""
        return self.external_ids.get("iface-id", "").strip()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Open vSwitch's configuration at one moment."""

    bridges: tuple[Bridge, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    external_ids: Mapping[str, str] = field(default_factory=dict)
    """That column of the one row of OVSDB's table Open_vSwitch."""
    other_config: Mapping[str, str] = field(default_factory=dict)
    """The same of this column."""

    def bridge(self, name: str) -> Bridge | None:
        """Return the bridge *name*; None if it does not exist."""
        return next((bridge for bridge in self.bridges if bridge.name == name), None)

    def interface(self, name: str, bridge: str) -> Interface | None:
        """Return the interface *name* on *bridge*; None if it does not exist."""
        rows = (row for row in self.interfaces if (row.name, row.bridge) == (name, bridge))
        return next(rows, None)


class InterfacePlace(NamedTuple):
    """Rows of an interface, its port and its bridge."""

    bridge: Any
    port: Any
    interface: Any

    def read(self) -> Interface:
        """Return the columns that were read."""
        return read_interface(self.bridge.name, self.port, self.interface)


class Rows:
    """The bridges and interfaces of an IDL, for one transaction."""

    def __init__(self, idl: Any) -> None:
        self.idl = idl
        self.bridges = {row.name: row for row in idl.tables["Bridge"].rows.values()}
        """Name → row."""
        self.places = {
            _column(row, "name", ""): InterfacePlace(bridge, port, row)
            for bridge in self.bridges.values()
            for port in _column(bridge, "ports", ())
            for row in _column(port, "interfaces", ())
        }
        """Name of an interface → its rows. Names are unique on a host."""

    @property
    def root(self) -> Any:
        """The row of Open_vSwitch."""
        (row,) = self.idl.tables["Open_vSwitch"].rows.values()
        return row

    def get(self, name: str) -> Interface | None:
        """Return an interface; None: no bridge has it."""
        place = self.places.get(name)
        return place.read() if place is not None else None

    def __iter__(self) -> Iterator[Interface]:
        """Return the interfaces of all bridges."""
        return map(InterfacePlace.read, self.places.values())

    def on(self, bridge: str) -> Iterator[Interface]:
        """Return the interfaces of a bridge."""
        return (place.read() for place in self.places.values() if place.bridge.name == bridge)


def read_bridge(row: Any) -> Bridge:
    """Return the columns of a Bridge row that were read."""
    number = "".join(_column(row, "datapath_id", ()))
    return Bridge(
        name=row.name,
        datapath_type=_column(row, "datapath_type", ""),
        protocols=tuple(_column(row, "protocols", ())),
        fail_mode="".join(_column(row, "fail_mode", ())),
        external_ids=_column(row, "external_ids", {}),
        controllers=tuple(
            ControllerRow(
                _column(controller, "target", ""), _column(controller, "is_connected", False)
            )
            for controller in _column(row, "controller", ())
        ),
        datapath_id=int(number, 16) if number else None,
    )


def read_interface(bridge: str, port: Any, row: Any) -> Interface:
    """Return the columns of an Interface row and its Port row that were read."""
    return Interface(
        name=_column(row, "name", ""),
        bridge=bridge,
        type=_column(row, "type", ""),
        ofport=number_of(row),
        external_ids=_column(row, "external_ids", {}),
        mac_in_use="".join(_column(row, "mac_in_use", ())),
        error="".join(_column(row, "error", ())),
        tag=next(iter(_column(port, "tag", ())), None),
        vlan_mode="".join(_column(port, "vlan_mode", ())),
        trunks=tuple(_column(port, "trunks", ())),
        cvlans=tuple(_column(port, "cvlans", ())),
        other_config=_column(port, "other_config", {}),
        options=_column(row, "options", {}),
        driver=_column(row, "status", {}).get("driver_name", ""),
        mtu=next(iter(_column(row, "mtu", ())), 0),
        mtu_request=max(_column(row, "mtu_request", ()), default=0),
        mac="".join(_column(row, "mac", ())),
        uuid=str(row.uuid),
    )


def number_of(row: Any) -> int | None:
    """Return the OpenFlow number of an Interface row; None: ovs-vswitchd has given it none.

    The number of a port that ovs-vswitchd has refused is -1.
    """
    number: int = next(iter(_column(row, "ofport", ())), 0)
    return number if 1 <= number <= OFPORT_MAX else None


def without_number(idl: Any, names: Iterable[str], *, has_peers: bool = True) -> dict[str, str]:
    """Return the names of the interfaces that do not work → the cause, in their order.

    An interface works when it has an OpenFlow number and no error: ovs-vswitchd gives a patch port
    without its peer a number, and an error.

    :param has_peers: False: the peers of the patch ports are made later, so a number is enough.
    """
    left = dict.fromkeys(names, "the port was removed")
    for row in idl.tables["Interface"].rows.values():
        name = _column(row, "name", "")
        if name in left:
            error = "".join(_column(row, "error", ()))
            left[name] = error or "no number"
            if number_of(row) is not None and not (error and has_peers):
                del left[name]
    return left


def _column(row: Any, name: str, default: Any) -> Any:
    """Return a column of a row; *default*: it is empty, or was not read.

    Attributes of a row consider the transaction, and take some times longer.
    """
    datum = row._data.get(name)
    return default if datum is None else datum.to_python(row._uuid_to_row)
