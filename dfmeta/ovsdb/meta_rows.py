"""Reads the rows of the second bridge in OVSDB: ``identity_scheme = meta_ip`` (specification 001).

The bridge and its ports may exist already, such as those of Neutron's metadata_path, which have the
same names. They are used, and configured as dfmeta needs them; only rows that dfmeta has created
are marked, and only marked ones are removed. :mod:`dfmeta.ovsdb.meta_writer` does both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.model import TAP_MTU, TAP_MTU_MIN, TAP_VLAN, MetaNames

SECURE: Final = "secure"
"""Fail mode of the second bridge: without dfmeta's flows it passes nothing."""
_SYSTEM: Final = "system"
_KEY: Final = "dfmeta"
_VALUE: Final = "meta of "


@dataclass(frozen=True, slots=True)
class MetaRows:
    """The second bridge as OVSDB has it. A port counts only on the bridge where it belongs."""

    datapath_id: int | None = None
    controllers: int = 0
    """Number of Controller rows, see :class:`~dfmeta.ovsdb.bridge_reader.Bridge`."""
    tap: int | None = None
    """Number of tap-meta; None while it has none."""
    tap_mac: str = ""
    """MAC of tap-meta in use; empty while the device does not exist."""
    patch_int: int | None = None
    """Number of the patch port on the integration bridge."""
    patch_meta: int | None = None
    """Number of the patch port on the second bridge."""
    sound: bool = False
    """Whether all rows exist and are configured as :func:`dfmeta.ovsdb.meta_writer.ensure` does it.
    Numbers and the MAC in use, which Open vSwitch gives, do not count."""


@dataclass(frozen=True, slots=True)
class Member:
    """A port of a bridge with its only interface, as rows of OVSDB."""

    port: Any
    interface: Any

    @property
    def number(self) -> int | None:
        """Number of the port; None while it has none."""
        found: list[int] = list(self.interface.ofport)
        return found[0] if len(found) == 1 and found[0] > 0 else None

    @property
    def unflooded(self) -> bool:
        """Whether NORMAL floods nothing to the port, see :data:`~dfmeta.model.TAP_VLAN`."""
        port = self.port
        columns = list(port.tag), list(port.vlan_mode), tuple(port.cvlans)
        return columns == ([TAP_VLAN.tag], [TAP_VLAN.vlan_mode], TAP_VLAN.cvlans)

    def leads_to(self, peer: str) -> bool:
        """Return whether it is a patch port with that peer."""
        kind, options = self.interface.type, self.interface.options
        return bool(kind == "patch" and options.get("peer") == peer)


def mark_of(integration: str) -> tuple[str, str]:
    """Return key and value in ``external_ids`` of rows that dfmeta has created for the second
    bridge.

    :param integration: the integration bridge, of which each daemon of a host has another one.
    """
    return _KEY, f"{_VALUE}{integration}"


def owner_of(row: Any) -> str | None:
    """Return the integration bridge of the mark of a row; None: dfmeta has not created the row."""
    value = str(row.external_ids.get(_KEY, ""))
    return value.removeprefix(_VALUE) if value.startswith(_VALUE) else None


def owner_of_port(port: Any) -> str | None:
    """Return :func:`owner_of` the interfaces of a Port row."""
    return next((owner for one in port.interfaces if (owner := owner_of(one)) is not None), None)


def datapath_of(bridge: Any) -> str:
    """Return the datapath type of a Bridge row; an empty column means ``system``."""
    return str(bridge.datapath_type or _SYSTEM)


def others_on(bridge: Any, names: MetaNames) -> list[str]:
    """Return the names of the ports of others on the second bridge."""
    known = {names.bridge, names.tap, names.patch_meta}
    return [port.name for port in bridge.ports if port.name not in known]


def keeps_fail_mode(bridge: Any, names: MetaNames) -> bool:
    """Return whether the fail mode of the second bridge is not dfmeta's to set.

    With another one, ports of others might lose their flows at the next start of Open vSwitch.
    """
    return owner_of(bridge) is None and bool(others_on(bridge, names))


def read(idl: Any, integration: Any, patch: Member | None, names: MetaNames) -> MetaRows:
    """Read the second bridge.

    :param integration: the Bridge row of the integration bridge; None: there is none.
    :param patch: the patch port on it; None: there is none.
    """
    rows = idl.tables["Bridge"].rows.values()
    bridge = next((row for row in rows if row.name == names.bridge), None)
    near = patch.number if patch is not None else None
    if bridge is None:
        return MetaRows(patch_int=near)
    tap, far = _member(bridge.ports, names.tap), _member(bridge.ports, names.patch_meta)
    number = bridge.datapath_id[0] if bridge.datapath_id else ""
    return MetaRows(
        datapath_id=int(number, 16) if number else None,
        controllers=len(bridge.controller),
        tap=tap.number if tap is not None else None,
        tap_mac="".join(tap.interface.mac_in_use[:1]) if tap is not None else "",
        patch_int=near,
        patch_meta=far.number if far is not None else None,
        sound=integration is not None
        and datapath_of(bridge) == datapath_of(integration)
        and (list(bridge.fail_mode) == [SECURE] or keeps_fail_mode(bridge, names))
        and _are_configured(tap, patch, far, names),
    )


def has_mtu(interface: Any, least: int = 0) -> bool:
    """Return whether an Interface row requests an MTU that is large enough for guests' requests.

    :param least: the smallest MTU of the bridge's other ports in bytes, 0 if there are none. A
        request of dfmeta's own must not be smaller.
    """
    # A row that was inserted in this transaction has no value yet.
    request = max(getattr(interface, "mtu_request", ()), default=0)
    return bool(request >= TAP_MTU_MIN and (request >= least or request != TAP_MTU))


def _are_configured(
    tap: Member | None, near: Member | None, far: Member | None, names: MetaNames
) -> bool:
    if tap is None or near is None or far is None:
        return False
    return (
        all(one.unflooded for one in (tap, near, far))
        and near.leads_to(names.patch_meta)
        and far.leads_to(names.patch_int)
        and tap.interface.type == "internal"
        and list(tap.interface.mac) == [names.mac]
        and has_mtu(tap.interface)
    )


def _member(ports: Iterable[Any], name: str) -> Member | None:
    """Return the port of that name; None also for one with other interfaces, such as a bond."""
    port = next((one for one in ports if one.name == name), None)
    there: list[Any] = port.interfaces if port is not None else []
    return Member(port, there[0]) if [one.name for one in there] == [name] else None
