"""Which port somebody means, and why it cannot be traced. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dfmeta.inspect.facts import Interface, KnownPort, Settings, Snapshot
from dfmeta.model import PortState


def named(ports: Iterable[KnownPort], text: str) -> tuple[KnownPort, ...]:
    """Ports whose name, iface-id or instance is *text*; of an instance there may be several."""
    if not text:
        return ()
    return tuple(
        port
        for port in ports
        if text == port.name or text.lower() in (port.iface_id.lower(), port.instance.lower())
    )


def no_port(snapshot: Snapshot, text: str, *, wanted: Settings) -> str:
    """Say why there is no guest's port called *text* on the bridge."""
    here = [one for one in snapshot.interfaces if _called(one, text)]
    if not here:
        return (
            f"there is no port, iface-id or instance {text} on {wanted.bridge}: `dfmeta ports` "
            "lists those there are"
        )
    one = next((found for found in here if found.bridge == wanted.bridge), here[0])
    if one.bridge != wanted.bridge:
        return f"{one.name} is on {one.bridge}, not on {wanted.bridge}"
    return f"{one.name} is not a guest's port: {_kind(one, wanted)}"


def unusable(port: KnownPort) -> str:
    """Say why *port* has no flows; empty when it has."""
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
    ids = interface.external_ids
    return text in (interface.name, ids.get("iface-id"), ids.get("vm-uuid"), ids.get("vm-id"))


def _kind(interface: Interface, wanted: Settings) -> str:
    if interface.name == wanted.tap:
        return "it is the port that leads to the proxy"
    if interface.name == interface.bridge:
        return "it is the bridge's own"
    if interface.type == "internal":
        return "its type is internal and it has no instance (an agent's, a router's or the host's)"
    if interface.type not in ("", "system", "tap"):
        return f"its type is {interface.type}"
    return "it has neither an instance (external_ids:vm-uuid) nor iface-id with attached-mac"
