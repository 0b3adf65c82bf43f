"""Checks of Open vSwitch: its daemons, the bridge, tap-metadata's port and the flows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dfmeta.doctor import checks_meta, find_port
from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.doctor.flow_diff import Entry, State
from dfmeta.doctor.overlap import takes
from dfmeta.flows.dump import Foreign
from dfmeta.flows.family import IPV6
from dfmeta.flows.pipeline import COOKIE_PREFIX, COOKIE_PREFIX_MASK, METADATA_PORT
from dfmeta.flows.port_down import Cut
from dfmeta.model import TAP_MARK, TAP_VLAN, Endpoint
from dfmeta.ovsdb.rows import Bridge, Interface, Snapshot

START_OVS = (
    "start Open vSwitch (`systemctl start openvswitch-switch`; `openvswitch` on Red Hat's systems)"
)
DENIED = "Permission denied"
"""strerror(3) of EACCES."""
AS_ROOT = "run doctor as root: its user may not connect to that socket"
OPENFLOW13 = "OpenFlow13"
_ACTIVATION = _PAUSE, _ANNOUNCEMENT = 1000, 1010
"""Priorities of OVN's flows of a port that waits for activation."""
_ETH_RARP = 0x8035


def ovsdb(cause: str, wanted: Settings) -> Finding:
    """Check that OVSDB answers; *cause* is empty when it does."""
    if cause:
        return wrong(
            "ovsdb",
            cause,
            _as_root(cause) or f"{START_OVS}, or correct [df_metadata] ovsdb_connection",
        )
    return ok("ovsdb", f"OVSDB answers at {wanted.ovsdb}")


def _as_root(cause: str) -> str:
    """Return the remedy if doctor's own user was refused; empty if *cause* is another one."""
    return AS_ROOT if DENIED in cause else ""


def vswitchd(version: str, cause: str) -> Finding:
    """Check that ovs-vswitchd answers; *cause* is empty when it does."""
    if cause:
        return wrong("vswitchd", cause, _as_root(cause) or START_OVS)
    return ok("vswitchd", f"{version.splitlines()[0]} answers")


def bridge(found: Bridge | None, wanted: Settings) -> Finding:
    """Check that OVSDB has the integration bridge."""
    if found is None:
        return wrong(
            "bridge",
            f"there is no bridge {wanted.bridge}",
            f"`ovs-vsctl add-br {wanted.bridge}`, or correct [df_metadata] integration_bridge",
        )
    return ok("bridge", f"OVSDB has the bridge {found.name}")


def management_socket(cause: str, wanted: Settings) -> Finding:
    """Check that the bridge's management socket accepts connections; *cause*: empty if it does."""
    if cause:
        return wrong(
            "socket",
            cause,
            _as_root(cause)
            or "start or restart ovs-vswitchd (`systemctl restart openvswitch-switch`), which "
            "makes the socket again, or correct [df_metadata] openflow_connection",
        )
    return ok("socket", f"{wanted.socket} accepts connections")


def openflow(cause: str, wanted: Settings) -> Finding:
    """Check that the bridge supports OpenFlow 1.3; *cause* is empty when it does."""
    if cause:
        return wrong(
            "openflow",
            cause,
            f"`ovs-vsctl add Bridge {wanted.bridge} protocols {OPENFLOW13}`; if the bridge has "
            "that already (`ovs-vsctl get Bridge` shows it), check that OVSDB runs and read "
            "ovs-vswitchd's log",
        )
    return ok("openflow", f"{wanted.bridge} supports OpenFlow 1.3")


def tap_port(
    found: Interface | None, snapshot: Snapshot, *, wanted: Settings, cut: Cut | None = None
) -> Iterator[Finding]:
    """Check that tap-metadata is a port of the bridge as dfmeta makes it.

    :param cut: why its frames do not pass, whatever the flows are; None: they pass.
    """
    name, bridge = wanted.tap, wanted.home
    if found is None:
        elsewhere = [one.bridge for one in snapshot.interfaces if one.name == name]
        if elsewhere:
            yield wrong(
                "tap",
                f"{name} is a port of {elsewhere[0]}, not of {bridge}",
                f"`ovs-vsctl del-port {elsewhere[0]} {name}`; dfmeta-agent makes it again",
            )
        else:
            yield wrong(
                "tap",
                f"{name} is not a port of {bridge}",
                "start dfmeta-agent, which makes it; if it runs, its log says why it could not",
            )
        return
    key, value = TAP_MARK
    fault = checks_meta.tap_fault(found, wanted.meta.names) if wanted.meta is not None else None
    if fault is not None:
        yield fault
    elif wanted.meta is None and (found.external_ids.get(key) != value or found.type != "internal"):
        yield wrong(
            "tap",
            f"{name} lacks dfmeta's mark or is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {name} type=internal external_ids:{key}={value}`; or, if "
            "another program uses it, set [df_metadata] metadata_interface to another name",
        )
    elif found.ofport is None:
        yield wrong(
            "tap",
            f"Open vSwitch has given {name} no port number: {found.error or 'it may not run'}",
            f"remove the device of that name (`ip link del {name}`), and the port (`ovs-vsctl "
            f"del-port {bridge} {name}`); dfmeta-agent makes it again",
        )
    elif cut is not None:
        yield wrong("tap", f"{name} is cut off, so no guest is served: {cut.cause}", cut.remedy)
    else:
        marked = ", with dfmeta's mark" if wanted.meta is None else ""
        yield ok("tap", f"{name} is port {found.ofport} of {bridge}{marked}")
    tag, mode, inner = TAP_VLAN
    if (found.tag, found.vlan_mode, found.cvlans) != TAP_VLAN:
        yield wrong(
            "tap-vlan",
            f"{name} has tag={found.tag} vlan_mode={found.vlan_mode or '[]'} "
            f"cvlans={list(found.cvlans)}: broadcasts of guests are flooded to it",
            f"`ovs-vsctl set Port {name} tag={tag} vlan_mode={mode} cvlans={inner[0]}`",
        )
    else:
        yield ok("tap-vlan", f"no frames are flooded to {name}")


def other_ports(snapshot: Snapshot, wanted: Settings) -> Iterator[Finding]:
    """List the ports that are not guests' ports though a guest could be connected to them.

    Yields nothing if there are none.
    """
    names = [one.name for one in snapshot.interfaces if find_port.could_be_a_guests(one, wanted)]
    if names:
        yield ok(
            "other-ports",
            f"ports of {wanted.bridge} that are not guests' ports ({len(names)}): {listed(names)}. "
            f"That is right for an uplink; "
            f"`{find_port.make_guests(names[0])}` makes a port a guest's",
        )


def foreign_flows(
    flows: Iterable[Foreign] | None,
    ports: Mapping[Endpoint, str],
    *,
    wanted: Settings,
    ip6: tuple[str, ...] = (),
) -> Iterator[Finding]:
    """Check that no flow of another program in the classification table precedes dfmeta's hooks.

    :param flows: flows of other programs; None if they cannot be read.
    :param ports: endpoint → name of the guest's port.
    :param ip6: the IPv6 addresses at which guests are served.
    """
    check, table = "foreign-flows", wanted.layout.classification_table
    hook = wanted.layout.hook_priority
    if flows is None:
        yield unknown(
            check,
            f"table {table} has flows that doctor cannot parse; see `ovs-ofctl dump-flows "
            f"{wanted.bridge} table={table}`",
        )
        return
    flows = tuple(flows)
    ips = (wanted.ip, *ip6)
    waiting = _awaiting_activation(flows)
    paused = [ports[Endpoint(one)] for one in waiting if Endpoint(one) in ports]
    if paused:
        yield ok(
            check,
            f"waits for activation (live migration): {listed(paused)}: OVN drops what comes from "
            "it until its guest runs on this host",
        )
    above = [
        (flow, ip)
        for flow in flows
        if flow.priority >= hook
        and not flow.hands_on
        and not (flow.priority in _ACTIVATION and flow.match.get("in_port") in waiting)
        and (ip := next((one for one in ips if takes(flow.match, ports, ip=one)), ""))
    ]
    for flow, ip in above:
        ofport = flow.match.get("in_port")
        where = ports.get(Endpoint(ofport), "guests") if isinstance(ofport, int) else "guests"
        yield wrong(
            check,
            f"another program's flow in table {table} takes packets of {where} to {ip}: "
            f"cookie {flow.cookie:#x}, priority {flow.priority} (dfmeta's hooks: {hook}), "
            f"actions={flow.actions}",
            f"find the program and lower the flow's priority there; or set [df_metadata] "
            f"hook_priority above {flow.priority} and restart dfmeta-agent; or, if no program "
            f"needs the flow, {_removal(flow, flows, wanted)}",
        )
    if not above:
        yield ok(
            check,
            f"no other program's flow in table {table} precedes dfmeta's hooks for "
            f"TCP/{METADATA_PORT} and ARP of {wanted.ip}{_of_ip6(ip6)}",
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


def _removal(flow: Foreign, flows: Iterable[Foreign], wanted: Settings) -> str:
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
    rows: Iterable[Entry] | None, problem: str, *, bridge: str, alone: bool = True
) -> Iterator[Finding]:
    """Check that dfmeta's flows on one bridge are the desired ones.

    :param rows: the flows, compared with the desired ones; None if they could not be read.
    :param problem: why they could not be compared; empty if they were.
    :param alone: whether no other bridge has flows of dfmeta.
    """
    if rows is None or problem:
        which = "not compared" if alone else f"those of {bridge} are not compared"
        yield unknown("flows", f"{which}: {problem or 'the switch does not answer'}")
        return
    rows = tuple(rows)
    lost = [row for row in rows if row.state in (State.MISSING, State.DIFFERS)]
    strange = [row for row in rows if row.state is State.UNKNOWN]
    if lost:
        yield wrong(
            "flows",
            f"{len(lost)} of dfmeta's flows are missing or changed on {bridge}: "
            f"{listed(_named(row) for row in lost)}",
            "dfmeta-agent installs them again within seconds while it is connected to the bridge: "
            "see its log and [df_metadata] openflow_connection",
        )
    if strange:
        # The remedy has no command to delete them: flows that serve guests may share the cookie.
        yield wrong(
            "flows",
            f"{len(strange)} stray flows with dfmeta's cookie are on {bridge}: "
            f"{listed(_named(row) for row in strange)}",
            "dfmeta-agent deletes them within 30 seconds while it is connected to the bridge: see "
            "its log and [df_metadata] openflow_connection",
        )
    if not (lost or strange):
        cookie = f"{COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
        where = "" if alone else f" on {bridge}"
        yield ok(
            "flows",
            f"all {len(rows)} of dfmeta's flows exist{where}, no stray flow (cookie={cookie})",
        )


def _named(row: Entry) -> str:
    name = f"{row.purpose}{f' of port {row.ofport}' if row.ofport is not None else ''}"
    # Over IPv4, the service has only one address.
    return f"{name} to {row.service}" if row.family == IPV6.version and row.service else name
