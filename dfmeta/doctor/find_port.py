"""Guests' ports as OVSDB has them, and the one that an operator names. Pure."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from dfmeta.doctor.facts import HostSettings, KnownPort
from dfmeta.doctor.finding import listed, make_guests
from dfmeta.flows.port_down import PortBits, cut_of
from dfmeta.model import OBSERVED, GuestAddress, Port, PortKind, PortState
from dfmeta.ovsdb.rows import Interface, Snapshot
from dfmeta.ovsdb.vif import DEVICE_TYPES

TUNNELS: Final = frozenset(
    {"vxlan", "geneve", "gre", "ip6gre", "erspan", "ip6erspan", "lisp", "stt", "gtpu", "bareudp"}
    | {"srv6"}
)
"""Interface types of tunnels (ovs-vswitchd.conf.db(5))."""


def named(ports: Iterable[KnownPort], text: str) -> tuple[KnownPort, ...]:
    """Return the ports that *text* names; an instance, address or name may have several ports.

    Names that the operator sets take precedence over those that a guest or its owner may choose:
    the port's name; then its iface-id, its instance or its MAC; then an address that its guest has
    used; then the names of the instance, from its owner and from its record.
    """
    if not text:
        return ()
    ports, lower = tuple(ports), text.lower()
    ways: tuple[Callable[[KnownPort], bool], ...] = (
        lambda port: text == port.name,
        lambda port: lower in (port.iface_id.lower(), port.instance.lower(), port.mac.lower()),
        lambda port: any(_is(address, lower) for address in port.addresses.values()),
        lambda port: text in port.names,
    )
    for means in ways:
        matching = tuple(filter(means, ports))
        if matching:
            return matching
    return ()


def several(ports: Iterable[KnownPort]) -> str:
    """Return the ports of several instances with the same name; empty if all are of one."""
    ports = tuple(ports)
    if len({port.instance for port in ports}) < 2:
        return ""
    return listed(f"{port.name} ({port.instance})" for port in ports)


def with_vid(ports: Iterable[KnownPort], vid: int | None) -> list[KnownPort]:
    """Return those of *ports* that have the VLAN id *vid*.

    :param vid: None: the ports without one; if all of them have one, as a tagged subport that is
        named by its own iface-id or instance, all.
    """
    ports = list(ports)
    if vid is not None:
        return [port for port in ports if port.vid == vid]
    return [port for port in ports if not port.vid] or ports


def _is(address: GuestAddress, text: str) -> bool:
    """Return whether *text* is the MAC or the IP address, in any spelling.

    An IPv6 address may have a zone, as the guest's own commands show it.
    """
    with contextlib.suppress(ValueError):
        return address.ip == ip_address(text.partition("%")[0])
    return text == address.mac


def behind_trunk(
    ports: Iterable[KnownPort], snapshot: Snapshot, text: str, *, bridge: str
) -> tuple[KnownPort, ...]:
    """Return the ports that connect the interface *text* of a trunk's bridge to *bridge*.

    A VM with a trunk has its own interface, with its instance, on the trunk's bridge. The patch
    port on the integration bridge has the same iface-id.
    """
    called = [row for row in snapshot.interfaces if row.bridge != bridge and _called(row, text)]
    wanted = {row.external_ids.get("iface-id", "").lower() for row in called} - {""}
    return tuple(
        port for port in ports if port.kind is PortKind.PARENT and port.iface_id.lower() in wanted
    )


def no_port(snapshot: Snapshot, text: str, *, wanted: HostSettings, running: bool) -> str:
    """Return why the bridge has no guest's port that *text* names.

    :param running: the daemon runs, which knows the names of instances and addresses of guests.
    """
    here = [row for row in snapshot.interfaces if _called(row, text)]
    if not here:
        unknown_names = "" if running else "; dfmeta-agent, which knows more names, does not run"
        return (
            f"no port of {wanted.bridge} has the name, iface-id, MAC, instance (id or name) or "
            f"address {text}: `dfmeta ports` lists the ports{unknown_names}"
        )
    row = next((each for each in here if each.bridge == wanted.bridge), here[0])
    if row.bridge != wanted.bridge and row.name != wanted.tap:
        return (
            f"{row.name} is on {row.bridge}, not on {wanted.bridge}, the only bridge whose guests "
            "are served ([df_metadata] integration_bridge)"
        )
    return f"{row.name} is not a guest's port: {_kind(row, wanted)}"


def could_be_a_guests(interface: Interface, wanted: HostSettings) -> bool:
    """Return whether it is a port of the bridge that is not a guest's but could have a guest."""
    return (
        interface.bridge == wanted.bridge
        and not interface.ports
        and interface.type in DEVICE_TYPES
        and interface.name not in (wanted.tap, wanted.bridge)
    )


def unusable(port: KnownPort) -> str:
    """Return why *port* has no flows; empty if it has."""
    if port.state is PortState.BROKEN:
        return f"{port.name} is broken: {port.fault}"
    if port.state is PortState.DEAD:
        return (
            f"{port.name} is dead: its owner has switched it off (tag 4095 without vlan_mode trunk)"
        )
    if port.ofport is None:
        return f"Open vSwitch has given {port.name} no port number: its device may be missing"
    return ""


def _called(interface: Interface, text: str) -> bool:
    ids = [interface.external_ids.get(key, "") for key in ("iface-id", "vm-uuid", "vm-id")]
    return text == interface.name or text.lower() in [name.lower() for name in ids if name]


def _kind(interface: Interface, wanted: HostSettings) -> str:
    """Return the kind of the port, and why it has no guest or how to make it a guest's port."""
    name, kind = interface.name, interface.type
    if name == wanted.tap:
        return "it is the port that leads to the proxy"
    if name == interface.bridge:
        return "it is the bridge's own port and a device of the host: the host is not a guest"
    if kind == "internal":
        return (
            "its type is internal and it has no instance (it may belong to an agent, a router or "
            f"the host); if a guest is behind it, `{make_guests(name)}`"
        )
    if kind == "patch":
        peer = interface.options.get("peer", "")
        return (
            f"its type is patch: it leads to another bridge{f' ({peer})' if peer else ''}, and a "
            f"guest behind that bridge has no port of its own on {interface.bridge}"
        )
    if kind in TUNNELS:
        return f"its type is {kind}: a tunnel to other hosts, each of which serves its own guests"
    if kind not in DEVICE_TYPES:
        return f"its type is {kind}, and such a port has no guest"
    return (
        "it has neither an instance (external_ids:vm-uuid) nor iface-id with attached-mac. If a "
        f"guest is behind it, `{make_guests(name)}`; with Neutron, also external_ids:iface-id=<its "
        "port's UUID> and external_ids:attached-mac=<its MAC>"
    )


def ovsdb_ports(snapshot: Snapshot, bridge: str) -> tuple[KnownPort, ...]:
    """Return every guest port from OVSDB, without its addresses."""
    ports = [port for row in snapshot.interfaces if row.bridge == bridge for port in row.ports]
    return tuple(
        KnownPort(
            port.name,
            port.ofport,
            PortState.UNNAMED if _is_unnamed(port) else port.state,
            instance=port.instance_id,
            iface_id=port.iface_id,
            mac=port.mac,
            fault=port.fault,
            project=port.project_id,
            vid=port.vid,
            next_hops=port.next_hops,
            next_hop_faults=port.next_hop_faults,
            kind=port.kind,
            segmentation_id=port.segmentation_id,
            parent=port.parent,
            subport_faults=port.subport_faults,
            binding=port.binding,
        )
        for port in ports
    )


def _is_unnamed(port: Port) -> bool:
    """Return whether OVSDB names no instance for a subport."""
    return port.kind is PortKind.SUBPORT and port.state is PortState.NO_INSTANCE


def with_cuts(
    ports: Iterable[KnownPort], bits: Mapping[int, PortBits], bridge: str
) -> tuple[KnownPort, ...]:
    """Add to *ports* the cause if they are cut off on the switch at this moment.

    :param bits: port number → the switch's description of the port.
    """
    return tuple(_with_cut(port, bits.get(port.ofport or 0), bridge) for port in ports)


def _with_cut(port: KnownPort, bits: PortBits | None, bridge: str) -> KnownPort:
    cut = cut_of(bits, port.name, bridge=bridge)
    if cut is None:
        return port
    if port.state not in (PortState.SERVED, *OBSERVED):
        return replace(port, cut=cut)
    return replace(port, cut=cut, state=PortState.CUT_OFF, fault=str(cut))
