"""Checks of Open vSwitch: its daemons, the bridge, tap-metadata's port and the flows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dfmeta.apps.switch_ports import Cut
from dfmeta.doctor import checks_meta
from dfmeta.doctor.facts import HostSettings, PathFacts
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.doctor.flow_diff import FlowEntry, FlowState, takes
from dfmeta.flows.family import IPV6
from dfmeta.flows.flow import Foreign
from dfmeta.flows.pipeline import COOKIE_PREFIX, COOKIE_PREFIX_MASK, METADATA_PORT
from dfmeta.model import TAP_MARK, Endpoint
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
_FAIL_OPEN: Final = re.compile(r"\bpriority 15790320\b")
"""0xf0f0f0, the priority of the hidden flow (ofproto/fail-open.h), in a trace."""
_ACTIVATION = _PAUSE, _ANNOUNCEMENT = 1000, 1010
"""Priorities of OVN's flows of a port that waits for activation."""
_ETH_RARP = 0x8035


def ovsdb(cause: str, wanted: HostSettings) -> Finding:
    """Check that OVSDB answers; *cause* is empty when it does."""
    if cause:
        return wrong(
            cause, _as_root(cause) or f"{START_OVS}; or correct [df_metadata] ovsdb_connection"
        )
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
            f"Open vSwitch {shown} is older than {'.'.join(map(str, OLDEST_OVS))}: it floods the "
            "frames of all networks to tap-metadata, and may refuse flows",
            "upgrade it, and restart it: `ovs-vswitchd --version` shows the installed version",
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
        return wrong(
            cause,
            _as_root(cause)
            or "`systemctl restart openvswitch-switch` makes the socket again; or correct "
            "[df_metadata] openflow_connection",
        )
    return ok(f"{wanted.socket} accepts connections")


def openflow(cause: str, wanted: HostSettings) -> Finding:
    """Check that the bridge supports OpenFlow 1.3; *cause* is empty when it does."""
    if cause:
        return wrong(
            cause,
            f"`ovs-vsctl add Bridge {wanted.bridge} protocols OpenFlow13`",
        )
    return ok(f"{wanted.bridge} supports OpenFlow 1.3")


def tap(
    row: Interface | None, snapshot: Snapshot, *, wanted: HostSettings, cut: Cut | None = None
) -> Finding:
    """Check that tap-metadata is a port of the bridge as dfmeta makes it.

    :param cut: why its frames do not pass, whatever the flows are; None: they pass.
    """
    name, bridge = wanted.tap, wanted.home
    if row is None:
        return checks_meta.absent(name, bridge, snapshot)
    key, value = TAP_MARK
    if wanted.meta is not None:
        if (fault := checks_meta.tap_fault(row, wanted.meta.names)) is not None:
            return fault
    elif row.external_ids.get(key) != value or row.type != "internal":
        return wrong(
            f"{name} lacks dfmeta's mark or is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {name} type=internal external_ids:{key}={value}`; or, if "
            "another program uses it, set [df_metadata] metadata_interface to another name",
        )
    if row.ofport is None:
        return wrong(
            f"Open vSwitch has given {name} no port number: {row.error or 'it may not run'}",
            f"remove the device of that name: `ip link del {name}`",
        )
    if cut is not None:
        return wrong(f"{name} is cut off, so no guest is served: {cut.cause}", cut.remedy)
    marked = ", with dfmeta's mark" if wanted.meta is None else ""
    return ok(f"{name} is port {row.ofport} of {bridge}{marked}")


def tap_vlan(row: Interface) -> Finding:
    """Check that no frames of other ports are flooded to tap-metadata."""
    if (fault := checks_meta.flooded(row)) is not None:
        return fault
    return ok(f"no frames are flooded to {row.name}")


def foreign_flows(
    flows: Iterable[Foreign] | None,
    ports: Mapping[Endpoint, str],
    *,
    wanted: HostSettings,
    ip6: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Check that no flow of another program in the classification table precedes dfmeta's hooks.

    :param flows: flows of other programs; None if they cannot be read.
    :param ports: endpoint → name of the guest's port.
    :param ip6: the IPv6 addresses at which guests are served.
    """
    table = wanted.layout.classification_table
    hook = wanted.layout.hook_priority
    if flows is None:
        yield unknown(
            f"table {table} has flows that doctor cannot parse; see `ovs-ofctl dump-flows "
            f"{wanted.bridge} table={table}`"
        )
        return
    flows = tuple(flows)
    ips = (wanted.ip, *ip6)
    waiting = _awaiting_activation(flows)
    paused = [ports[Endpoint(ofport)] for ofport in waiting if Endpoint(ofport) in ports]
    if paused:
        yield ok(
            f"waits for activation (live migration): {listed(paused)}: OVN drops what comes from "
            "it until its guest runs on this host"
        )
    above = [
        (flow, ip)
        for flow in flows
        if flow.priority >= hook
        and not flow.hands_on
        and not (flow.priority in _ACTIVATION and flow.match.get("in_port") in waiting)
        and (ip := next((address for address in ips if takes(flow.match, ports, ip=address)), ""))
    ]
    for flow, ip in above:
        ofport = flow.match.get("in_port")
        where = ports.get(Endpoint(ofport), "guests") if isinstance(ofport, int) else "guests"
        yield wrong(
            f"another program's flow in table {table} takes packets of {where} to {ip}: "
            f"cookie {flow.cookie:#x}, priority {flow.priority} (dfmeta's hooks: {hook}), "
            f"actions={flow.actions}",
            f"set [df_metadata] hook_priority above {flow.priority}; or, if no program needs the "
            f"flow, {_removal(flow, flows, wanted)}",
        )
    if not above:
        yield ok(
            f"no other program's flow in table {table} precedes dfmeta's hooks for "
            f"TCP/{METADATA_PORT} and ARP of {wanted.ip}{_of_ip6(ip6)}"
        )


def _awaiting_activation(flows: Iterable[Foreign]) -> frozenset[int]:
    """Return the ofports of ports whose guests are about to arrive by live migration.

    OVN drops what such a port sends, but for its announcements (OVN 22.09 and later,
    controller/physical.c, ``setup_activation_strategy``).
    """
    dropped, announced = set[int](), set[int]()
    for flow in flows:
        match flow.match.get("in_port"):
            case int(ofport) if (flow.priority, flow.actions) == (_PAUSE, "drop"):
                dropped |= {ofport} if len(flow.match) == 1 else set()
            case int(ofport) if flow.priority == _ANNOUNCEMENT:
                announced |= {ofport} if flow.match.get("eth_type") == _ETH_RARP else set()
    return frozenset(dropped & announced)


def _of_ip6(ip6: tuple[str, ...]) -> str:
    return f", or for TCP/{METADATA_PORT} and neighbour discovery of {listed(ip6)}" if ip6 else ""


def _removal(flow: Foreign, flows: Iterable[Foreign], wanted: HostSettings) -> str:
    """Return the command that deletes *flow* alone: many flows may share a cookie, 0 above all."""
    table = wanted.layout.classification_table
    if sum(other.cookie == flow.cookie for other in flows) == 1:
        where = f"cookie={flow.cookie:#x}/-1,table={table}"
        return f'`ovs-ofctl del-flows {wanted.bridge} "{where}"`'
    return (
        f"`ovs-ofctl --strict del-flows {wanted.bridge} "
        f'"table={table},priority={flow.priority},MATCH"`, with its match as MATCH '
        f"(`ovs-ofctl dump-flows {wanted.bridge} table={table}` shows it): other flows have the "
        "same cookie"
    )


def our_flows(
    rows: Iterable[FlowEntry] | None, problem: str, *, bridge: str, alone: bool = True
) -> Iterator[Finding]:
    """Check that dfmeta's flows on one bridge are the desired ones.

    :param rows: the flows, compared with the desired ones; None if they could not be read.
    :param problem: why they could not be compared; empty if they were.
    :param alone: whether no other bridge has flows of dfmeta.
    """
    if rows is None or problem:
        which = "not compared" if alone else f"those of {bridge} are not compared"
        yield unknown(f"{which}: {problem or 'the switch does not answer'}")
        return
    rows = tuple(rows)
    lost = [row for row in rows if row.state in (FlowState.MISSING, FlowState.DIFFERS)]
    strange = [row for row in rows if row.state is FlowState.UNKNOWN]
    if lost:
        yield wrong(
            f"{len(lost)} of dfmeta's flows are missing or changed on {bridge}: "
            f"{listed(_named(row) for row in lost)}",
            "`journalctl -u dfmeta-agent`: while it is connected to the bridge, it installs them "
            "again within seconds",
        )
    if strange:
        # The remedy has no command to delete them: flows that serve guests may share the cookie.
        yield wrong(
            f"{len(strange)} stray flows with dfmeta's cookie are on {bridge}: "
            f"{listed(_named(row) for row in strange)}",
            "`journalctl -u dfmeta-agent`: while it is connected to the bridge, it deletes them "
            "within 30 seconds",
        )
    if not (lost or strange):
        cookie = f"{COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
        where = "" if alone else f" on {bridge}"
        yield ok(f"all {len(rows)} of dfmeta's flows exist{where}, no stray flow (cookie={cookie})")


def _named(row: FlowEntry) -> str:
    name = f"{row.purpose}{f' of port {row.ofport}' if row.ofport is not None else ''}"
    # Over IPv4, the service has only one address.
    return f"{name} to {row.service}" if row.family == IPV6.version and row.service else name


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
            f"other_config:{RESTORE_WAIT} is true: ovs-vswitchd forwards, and will forward nothing "
            "after its next start",
            CLEAR_RESTORE_WAIT,
        )
    return wrong(
        f"{FORWARDS_NOTHING}: no guest of this host has a network. A restart of Open vSwitch sets "
        "it until it has restored the flows; a script that has failed leaves it behind",
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
    if _FAIL_OPEN.search(trace):
        return wrong(
            f"no controller of {bridge.name} answers ({away}), and fail_mode is not secure: a flow "
            "of Open vSwitch itself takes all packets before any other flow (fail open)",
            f"{set_secure(bridge.name)}; or start the controller; or, if none is needed, "
            f"`ovs-vsctl del-controller {bridge.name}`",
        )
    if cause:
        return unknown(f"not checked: {cause}")
    if all(not controller.connected for controller in bridge.controllers):
        return warning(
            f"no controller of {bridge.name} answers ({away}), and fail_mode is not secure: Open "
            "vSwitch is about to take all packets by a flow of its own (fail open)",
            f"{set_secure(bridge.name)}; or `ovs-vsctl del-controller {bridge.name}`",
        )
    return ok(f"{bridge.name} has a connected controller: it keeps to its flows")
