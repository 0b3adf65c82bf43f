"""Open vSwitch's configuration as a command reads it: values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfmeta.model import (
    Port,
)


@dataclass(frozen=True, slots=True)
class Controller:
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
    controllers: tuple[Controller, ...] = ()


@dataclass(frozen=True, slots=True)
class Interface:
    """A row of OVSDB's table Interface, with the VLAN columns of its Port."""

    name: str
    bridge: str
    type: str = ""
    ofport: int | None = None
    external_ids: Mapping[str, str] = field(default_factory=dict)
    mac_in_use: str = ""
    error: str = ""
    tag: int | None = None
    vlan_mode: str = ""
    cvlans: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    """Driver of its device, by the kernel's name; empty: it has no device, or no known driver."""
    listed_vids: tuple[int, ...] = ()
    """VLAN ids of the valid entries of its list of subports."""
    mtu: int = 0
    """MTU of its device in bytes; 0: not known, as for a patch port."""
    ports: tuple[Port, ...] = ()
    """The guests' ports on this interface; empty if it is not a guest's."""


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
        return next((one for one in self.bridges if one.name == name), None)

    def interface(self, name: str, bridge: str) -> Interface | None:
        """Return the interface *name* on *bridge*; None if it does not exist."""
        found = (one for one in self.interfaces if (one.name, one.bridge) == (name, bridge))
        return next(found, None)
