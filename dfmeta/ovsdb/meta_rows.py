"""Reads the rows of the second bridge in OVSDB: ``identity_scheme = meta_ip`` (specification 001).

The bridge and its ports may exist already, such as those of Neutron's metadata_path, which have the
same names. They are used, and configured as dfmeta needs them; only rows that dfmeta has created
are marked, and only marked ones are removed. :mod:`dfmeta.ovsdb.meta_writer` does both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dfmeta.model import TAP_MTU, TAP_MTU_MIN, TAP_VLAN, MetaNames
from dfmeta.ovsdb.rows import SECURE, Interface, interface
from dfmeta.ovsdb.rows import bridge as read_bridge

_SYSTEM: Final = "system"
_KEY: Final = "dfmeta"
_VALUE: Final = "meta of "


@dataclass(frozen=True, slots=True)
class MetaRows:
    """The second bridge as OVSDB has it. A port counts only on the bridge where it belongs."""

    datapath_id: int | None = None
    controllers: int = 0
    """Number of Controller rows, see :class:`~dfmeta.ovsdb.rows.Bridge`."""
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


def is_unflooded(interface: Interface) -> bool:
    """Return whether NORMAL floods nothing to its port, see :data:`~dfmeta.model.TAP_VLAN`."""
    return (interface.tag, interface.vlan_mode, interface.cvlans) == TAP_VLAN


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
    return next((owner for row in port.interfaces if (owner := owner_of(row)) is not None), None)


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


def read(idl: Any, integration: Any, patch: Interface | None, names: MetaNames) -> MetaRows:
    """Read the second bridge.

    :param integration: the Bridge row of the integration bridge; None: there is none.
    :param patch: the patch port on it; None: there is none.
    """
    rows = idl.tables["Bridge"].rows.values()
    bridge = next((row for row in rows if row.name == names.bridge), None)
    near = patch.ofport if patch is not None else None
    if bridge is None:
        return MetaRows(patch_int=near)
    tap, far = _member(bridge, names.tap), _member(bridge, names.patch_meta)
    value = read_bridge(bridge)
    return MetaRows(
        datapath_id=value.datapath_id,
        controllers=len(value.controllers),
        tap=tap.ofport if tap is not None else None,
        tap_mac=tap.mac_in_use if tap is not None else "",
        patch_int=near,
        patch_meta=far.ofport if far is not None else None,
        sound=integration is not None
        and datapath_of(bridge) == datapath_of(integration)
        and (value.fail_mode == SECURE or keeps_fail_mode(bridge, names))
        and _are_configured(tap, patch, far, names),
    )


def has_mtu(request: int, least: int = 0) -> bool:
    """Return whether the MTU that an interface requests is large enough for guests' requests.

    :param least: the smallest MTU of the bridge's other ports in bytes, 0 if there are none. A
        request of dfmeta's own must not be smaller.
    """
    return request >= TAP_MTU_MIN and (request >= least or request != TAP_MTU)


def _are_configured(
    tap: Interface | None, near: Interface | None, far: Interface | None, names: MetaNames
) -> bool:
    if tap is None or near is None or far is None:
        return False
    return (
        all(map(is_unflooded, (tap, near, far)))
        and (near.peer, far.peer) == (names.patch_meta, names.patch_int)
        and (tap.type, tap.mac) == ("internal", names.mac)
        and has_mtu(tap.mtu_request)
    )


def _member(bridge: Any, name: str) -> Interface | None:
    """Return the port of that name; None also for one with other interfaces, such as a bond."""
    port = next((port for port in bridge.ports if port.name == name), None)
    rows: list[Any] = port.interfaces if port is not None else []
    return interface(bridge.name, port, rows[0]) if [row.name for row in rows] == [name] else None
