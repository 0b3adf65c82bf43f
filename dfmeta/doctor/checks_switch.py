"""Checks of Open vSwitch: its daemons, the bridges, dfmeta's ports, and Meta IPs. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dfmeta.doctor.facts import HostSettings, KnownPort, MetaSide, PathFacts
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.flows.port_down import Cut, PortBits, cut_of
from dfmeta.model import TAP_MARK, TAP_VLAN, MetaIds, MetaNames, PortState
from dfmeta.ovsdb.rows import RESTORE_WAIT, SECURE, Bridge, Interface, Snapshot

START_OVS: Final = (
    "start Open vSwitch: `systemctl start openvswitch-switch` (`openvswitch` on Red Hat's systems)"
)
DENIED: Final = "Permission denied"
"""strerror(3) of EACCES."""
AS_ROOT: Final = "run doctor as root: its user may not connect to that socket"
OLDEST_OVS: Final = (2, 9)
"""First with ``dot1q-tunnel`` and ``cvlans``, which tap-metadata's port has."""
FORWARDS_NOTHING: Final = f"ovs-vswitchd forwards nothing while other_config:{RESTORE_WAIT} is true"
CLEAR_RESTORE_WAIT: Final = "`ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait`"
MAKES: Final = "start dfmeta-agent, which makes it: `systemctl start dfmeta-agent`"
_FAIL_OPEN: Final = re.compile(r"\bpriority 15790320\b")
"""0xf0f0f0, the priority of the hidden flow (ofproto/fail-open.h), in a trace."""
_SYSTEM: Final = "system"
"""The datapath type that an empty column means."""
_MARK: Final = "dfmeta"
"""Key in external_ids of rows that dfmeta has created."""


def ovsdb(cause: str, wanted: HostSettings) -> Finding:
    """Check that OVSDB answers; *cause* is empty when it does."""
    if cause:
        return wrong(cause, _as_root(cause) or START_OVS)
    return ok(f"OVSDB answers at {wanted.ovsdb}")


def _as_root(cause: str) -> str:
    """Return the remedy if doctor's own user was refused; empty if *cause* is another one."""
    return AS_ROOT if DENIED in cause else ""


def vswitchd(version: str, cause: str) -> Finding:
    """Check that ovs-vswitchd answers; *cause* is empty when it does."""
    if cause:
        return wrong(cause, _as_root(cause) or START_OVS)
    return ok(f"{version.splitlines()[0]} answers")


def ovs_version(text: str) -> Finding:
    """Check that Open vSwitch is recent enough.

    :param text: answer of ovs-vswitchd to the query of its version.
    """
    version = parse_version(text.splitlines()[0] if text else "")
    if not version:
        return unknown("ovs-vswitchd does not report its version")
    shown = ".".join(map(str, version))
    if version < OLDEST_OVS:
        return wrong(
            f"Open vSwitch {shown} is older than {'.'.join(map(str, OLDEST_OVS))}",
            "upgrade and restart it: `ovs-vswitchd --version` shows the installed version",
        )
    return ok(f"Open vSwitch {shown}")


def parse_version(text: str) -> tuple[int, ...]:
    """Parse ``ovs-vswitchd (Open vSwitch) 3.1.0``; return an empty tuple if there is no version."""
    last = text.split()[-1] if text.split() else ""
    numbers = last.split("-")[0].split(".")[:3]
    return tuple(int(number) for number in numbers if number.isdecimal())


def bridge(row: Bridge | None, wanted: HostSettings) -> Finding:
    """Check that OVSDB has the integration bridge."""
    if row is None:
        return wrong(
            f"there is no bridge {wanted.bridge}",
            f"`ovs-vsctl add-br {wanted.bridge}`, or correct [df_metadata] integration_bridge",
        )
    return ok(f"OVSDB has the bridge {row.name}")


def socket(cause: str, wanted: HostSettings) -> Finding:
    """Check that the bridge's management socket accepts connections; *cause*: empty if it does."""
    if cause:
        return wrong(cause, _as_root(cause) or "`systemctl restart openvswitch-switch`")
    return ok(f"{wanted.socket} accepts connections")


def openflow(cause: str, wanted: HostSettings) -> Finding:
    """Check that the bridge supports OpenFlow 1.3; *cause* is empty when it does."""
    if cause:
        return wrong(cause, f"`ovs-vsctl add Bridge {wanted.bridge} protocols OpenFlow13`")
    return ok(f"{wanted.bridge} supports OpenFlow 1.3")


def tap(
    row: Interface | None, snapshot: Snapshot, *, wanted: HostSettings, cut: Cut | None = None
) -> Finding:
    """Check that tap-metadata is a port of the bridge as dfmeta makes it.

    :param cut: why its frames do not pass, whatever the flows are; None: they pass.
    """
    name, bridge = wanted.tap, wanted.home
    if row is None:
        return _absent(name, bridge, snapshot)
    key, value = TAP_MARK
    if wanted.meta is not None:
        if (fault := _tap_meta_fault(row, wanted.meta.names)) is not None:
            return fault
    elif row.external_ids.get(key) != value or row.type != "internal":
        return wrong(
            f"{name} lacks dfmeta's mark or is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {name} type=internal external_ids:{key}={value}`",
        )
    if row.ofport is None:
        return _without_number(row, f"remove the device of that name: `ip link del {name}`")
    if cut is not None:
        return _cut_off(name, cut)
    marked = ", with dfmeta's mark" if wanted.meta is None else ""
    return ok(f"{name} is port {row.ofport} of {bridge}{marked}")


def _tap_meta_fault(row: Interface, names: MetaNames) -> Finding | None:
    """Return the fault of tap-meta that tap-metadata cannot have; None: it has none."""
    if row.type != "internal":
        return wrong(
            f"{row.name} is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {row.name} type=internal`",
        )
    if row.mac_in_use and row.mac_in_use != names.mac:
        return wrong(
            f"{row.name} has the MAC {row.mac_in_use}, not {names.mac}, the gateway's Meta MAC",
            f"`ovs-vsctl set Interface {row.name} mac='\"{names.mac}\"'`",
        )
    return None


def _absent(name: str, bridge: str, snapshot: Snapshot) -> Finding:
    """Return the fault of a port that is not on its bridge."""
    for row in snapshot.interfaces:
        if row.name == name:
            return wrong(
                f"{name} is a port of {row.bridge}, not of {bridge}",
                f"`ovs-vsctl del-port {row.bridge} {name}`; dfmeta-agent makes it again",
            )
    return wrong(f"{name} is not a port of {bridge}", MAKES)


def _without_number(row: Interface, remedy: str) -> Finding:
    cause = row.error or "it may not run"
    return wrong(f"Open vSwitch has given {row.name} no port number: {cause}", remedy)


def _cut_off(name: str, cut: Cut) -> Finding:
    return wrong(f"{name} is cut off, so no guest is served: {cut.cause}", cut.remedy)


def vlan(rows: Sequence[Interface]) -> Iterator[Finding]:
    """Check that no frames of other ports are flooded to ports of dfmeta; no line without ports."""
    tag, mode, inner = TAP_VLAN
    flooded = [row for row in rows if (row.tag, row.vlan_mode, row.cvlans) != TAP_VLAN]
    for row in flooded:
        yield wrong(
            f"{row.name} has tag={row.tag} vlan_mode={row.vlan_mode or '[]'} "
            f"cvlans={list(row.cvlans)}: frames of other ports of {row.bridge} are flooded to it",
            f"`ovs-vsctl set Port {row.name} tag={tag} vlan_mode={mode} cvlans={inner[0]}`",
        )
    if rows and not flooded:
        yield ok(f"no frames are flooded to {listed(row.name for row in rows)}")


def set_secure(bridge: str) -> str:
    """Return the command after which *bridge* keeps to its flows without a controller."""
    return f"`ovs-vsctl set-fail-mode {bridge} {SECURE}`"


def restore_wait(is_set: bool, path: PathFacts | None) -> Finding:
    """Check that ovs-vswitchd does not wait for the end of a restoration of flows.

    :param is_set: whether the setting is true in OVSDB. Only a start of ovs-vswitchd reads it.
    :param path: result of the daemon's probe; None if the daemon does not run.
    """
    if not is_set:
        return ok("ovs-vswitchd does not wait for a restoration of flows")
    if path is not None and path.answered:
        return warning(
            f"other_config:{RESTORE_WAIT} is true: ovs-vswitchd will forward nothing after its "
            "next start",
            CLEAR_RESTORE_WAIT,
        )
    return wrong(
        f"{FORWARDS_NOTHING}: no guest of this host has a network",
        f"{CLEAR_RESTORE_WAIT}, unless a restart of Open vSwitch is under way",
    )


def is_at_risk(bridge: Bridge) -> bool:
    """Return whether *bridge* leaves its flows when its controllers are away."""
    return bool(bridge.controllers) and bridge.fail_mode != SECURE


def fail_mode(bridge: Bridge, trace: str, cause: str = "") -> Finding:
    """Check that *bridge* does not fail open: Open vSwitch's own flow would take all packets.

    :param trace: a trace of any packet through the bridge, while it is at risk.
    :param cause: why there is no trace; empty if there is one.
    """
    if not is_at_risk(bridge):
        why = "has no controller" if not bridge.controllers else "has fail_mode secure"
        return ok(f"{bridge.name} {why}: it keeps to its flows")
    away = listed(row.target for row in bridge.controllers if not row.connected)
    lost = f"no controller of {bridge.name} answers ({away}), and fail_mode is not secure: "
    if _FAIL_OPEN.search(trace):
        return wrong(
            f"{lost}a flow of Open vSwitch itself takes all packets before any other (fail open)",
            set_secure(bridge.name),
        )
    if cause:
        return unknown(f"not checked: {cause}")
    if all(not controller.connected for controller in bridge.controllers):
        return warning(
            f"{lost}Open vSwitch is about to take all packets by a flow of its own (fail open)",
            set_secure(bridge.name),
        )
    return ok(f"{bridge.name} has a connected controller: it keeps to its flows")


# The second bridge of ``identity_scheme = meta_ip``, and Meta IPs


def meta_bridge(
    snapshot: Snapshot, wanted: HostSettings, meta: MetaSide, *, cause: str = ""
) -> Finding:
    """Check that the second bridge exists, answers and is configured as dfmeta does it.

    :param cause: why its flows could not be read; empty if they were, or were not asked for.
    """
    name = meta.names.bridge
    row, main = snapshot.bridge(name), snapshot.bridge(wanted.bridge)
    if row is None:
        return wrong(f"there is no bridge {name}", MAKES)
    others = _others(snapshot, meta)
    mode = row.fail_mode or "standalone"
    # dfmeta-agent does not set it on a bridge of others, who may rely on it.
    keeps = bool(others) and _MARK not in row.external_ids
    if mode != SECURE and not keeps:
        return wrong(f"{name} has fail_mode={mode}", set_secure(name))
    kinds = [each.datapath_type or _SYSTEM for each in (row, main or row)]
    if kinds[0] != kinds[1]:
        by = (
            f"set [df_metadata] meta_bridge to another name, or remove the ports of others: "
            f"{listed(others)}"
            if others
            else f"`ovs-vsctl set Bridge {name} datapath_type={kinds[1]}`"
        )
        return wrong(
            f"{name} has datapath_type={kinds[0]} and {wanted.bridge} has {kinds[1]}: no frame "
            "passes a patch between two datapaths",
            by,
        )
    if cause:
        return wrong(f"{name}: {cause}", f"`ovs-vsctl add Bridge {name} protocols OpenFlow13`")
    beside = f", and ports of others: {listed(others)}" if others else ""
    return ok(f"OVSDB has the bridge {name}, with fail_mode={mode}{beside}")


def _others(snapshot: Snapshot, meta: MetaSide) -> list[str]:
    """Return the names of the ports of others on the second bridge."""
    names = meta.names
    dfmeta_ports = {names.bridge, names.tap, names.patch_meta}
    present = (row.name for row in snapshot.interfaces if row.bridge == names.bridge)
    return [name for name in present if name not in dfmeta_ports]


def meta_patch(
    snapshot: Snapshot,
    wanted: HostSettings,
    meta: MetaSide,
    bits: Mapping[str, Mapping[int, PortBits]] | None = None,
) -> Iterator[Finding]:
    """Check that the two bridges are connected.

    :param bits: bridge → number of a port → the switch's description of the port, as far as it is
        known.
    """
    names, bits = meta.names, bits or {}
    faults = [
        fault
        for end in _ends(wanted, meta)
        if (fault := _end(snapshot, *end, bits.get(end[1], {}))) is not None
    ]
    yield from faults
    if not faults:
        yield ok(
            f"{names.patch_int} and {names.patch_meta} connect {wanted.bridge} and {names.bridge}"
        )


def patch_ports(snapshot: Snapshot, wanted: HostSettings, meta: MetaSide) -> list[Interface]:
    """Return the rows of both ends of the patch, as far as they exist."""
    rows = (snapshot.interface(name, of) for name, of, _peer in _ends(wanted, meta))
    return [row for row in rows if row is not None]


def _ends(wanted: HostSettings, meta: MetaSide) -> tuple[tuple[str, str, str], ...]:
    """Return name, bridge and peer of both ends of the patch."""
    names = meta.names
    return (
        (names.patch_int, wanted.bridge, names.patch_meta),
        (names.patch_meta, names.bridge, names.patch_int),
    )


def _end(
    snapshot: Snapshot, name: str, of: str, peer: str, bits: Mapping[int, PortBits], /
) -> Finding | None:
    """Return the fault of one end of the patch; None: it has none."""
    row = snapshot.interface(name, of)
    if row is None:
        return _absent(name, of, snapshot)
    if row.type != "patch" or row.options.get("peer") != peer:
        return wrong(
            f"{name} is not a patch port with the peer {peer}: type={row.type or '[]'}, "
            f"peer={row.options.get('peer', '[]')}",
            f"`ovs-vsctl set Interface {name} type=patch options:peer={peer}`",
        )
    if row.ofport is None:
        return _without_number(
            row, f"`ovs-vsctl del-port {of} {name}`; dfmeta-agent makes it again"
        )
    port_bits = bits.get(row.ofport)
    cut = cut_of(port_bits.of_switch() if port_bits is not None else None, name, bridge=of)
    return _cut_off(name, cut) if cut is not None else None


def meta_range(ports: Sequence[KnownPort], wanted: HostSettings) -> Finding:
    """Check that each port has a Meta IP.

    :param ports: the guests' ports, from the running daemon.
    """
    without = [
        f"{port.name} (VID {port.vid})" if port.vid else port.name
        for port in ports
        if port.state is PortState.NO_META_IP
    ]
    network = wanted.keys.network(4)
    size = len(wanted.keys.slots(4))
    if without:
        return wrong(
            f"all {size} Meta IPs of {network} are taken, so {len(without)} ports have none and "
            f"their guests are not served: {listed(without)}",
            "set [METADATA] provider_cidr to a larger network, such as 240.0.0.0/16, and "
            "`systemctl restart dfmeta-agent`",
        )
    used = sum(len(port.addresses) for port in ports)
    return ok(
        f"each port has its Meta IP: {len(ports)} ports, {used} addresses in use, {size} Meta IPs "
        f"in {network}"
    )


def meta_ids(ports: Iterable[KnownPort], stored: Mapping[str, MetaIds]) -> Finding:
    """Check that OVSDB has the Meta IP of each port, which the next daemon reads there.

    :param ports: the guests' ports, from the running daemon.
    :param stored: name of a port → its Meta addresses in OVSDB.
    """
    differing = [
        f"{port.name} ({stored_id or 'none'}, in use: {used})"
        for port in ports
        if port.name in stored
        for stored_id, used in _differences(stored[port.name], port)
    ]
    if differing:
        return wrong(
            f"OVSDB has other Meta IPs than dfmeta-agent uses for {listed(differing)}: after a "
            "restart, these guests would get others",
            "find the program that changes external_ids:dfmeta-meta-ip, dfmeta-meta-mac or "
            "dfmeta-meta-ip6: `ovsdb-client monitor Interface external_ids`",
        )
    return ok("OVSDB has the Meta IPs that dfmeta-agent uses")


def _differences(stored: MetaIds, port: KnownPort) -> Iterator[tuple[str, str]]:
    """Return those Meta addresses of OVSDB, each with the one in use, that differ from it."""
    for stored_id, used in zip(stored, MetaIds(port.key, port.label, port.key6), strict=True):
        if used and stored_id != used:
            yield stored_id, used
