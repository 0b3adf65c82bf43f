"""Judgements on Open vSwitch: its daemons, the bridge, tap-metadata's port, the flows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dfmeta.flows.pipeline import COOKIE_PREFIX, COOKIE_PREFIX_MASK, METADATA_PORT
from dfmeta.inspect import which
from dfmeta.inspect.cuts import Cut
from dfmeta.inspect.facts import Bridge, Foreign, Interface, Settings, Snapshot
from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong
from dfmeta.inspect.ledger import Entry, State
from dfmeta.inspect.overlap import takes
from dfmeta.model import TAP_MARK, TAP_VLAN, Endpoint

START_OVS = (
    "start Open vSwitch (`systemctl start openvswitch-switch`; `openvswitch` on Red Hat's systems)"
)
DENIED = "Permission denied"
"""strerror(3) of EACCES."""
AS_ROOT = "run doctor as root: this user may not connect there"
OPENFLOW13 = "OpenFlow13"


def ovsdb(cause: str, wanted: Settings) -> Finding:
    """Whether OVSDB answers; *cause* is empty when it does."""
    if cause:
        return wrong(
            "ovsdb",
            cause,
            _as_root(cause) or f"{START_OVS}, or mend [df_metadata] ovsdb_connection",
        )
    return ok("ovsdb", f"OVSDB answers at {wanted.ovsdb}")


def _as_root(cause: str) -> str:
    """What to do where it was doctor that was refused; empty where it was not."""
    return AS_ROOT if DENIED in cause else ""


def vswitchd(version: str, cause: str) -> Finding:
    """Whether ovs-vswitchd answers; *cause* is empty when it does."""
    if cause:
        return wrong("vswitchd", cause, _as_root(cause) or START_OVS)
    return ok("vswitchd", f"{version.splitlines()[0]} answers")


def bridge(found: Bridge | None, wanted: Settings) -> Finding:
    """Whether the integration bridge is in OVSDB."""
    if found is None:
        return wrong(
            "bridge",
            f"there is no bridge {wanted.bridge}",
            f"`ovs-vsctl add-br {wanted.bridge}`, or mend [df_metadata] integration_bridge",
        )
    return ok("bridge", f"{found.name} is there")


def management_socket(cause: str, wanted: Settings) -> Finding:
    """Whether the bridge's management socket takes connections; *cause* is empty when it does."""
    if cause:
        return wrong(
            "socket",
            cause,
            _as_root(cause)
            or "start or restart ovs-vswitchd (`systemctl restart openvswitch-switch`), which "
            "makes the socket anew, or mend [df_metadata] openflow_connection",
        )
    return ok("socket", f"{wanted.socket} takes connections")


def openflow(cause: str, wanted: Settings) -> Finding:
    """Whether the bridge speaks OpenFlow 1.3; *cause* is empty when it does."""
    if cause:
        return wrong(
            "openflow",
            cause,
            f"`ovs-vsctl add Bridge {wanted.bridge} protocols {OPENFLOW13}`; if it has that "
            "already (`ovs-vsctl get Bridge` shows it), see that OVSDB runs and read "
            "ovs-vswitchd's log",
        )
    return ok("openflow", f"{wanted.bridge} speaks OpenFlow 1.3")


def tap_port(
    found: Interface | None, snapshot: Snapshot, *, wanted: Settings, cut: Cut | None = None
) -> Iterator[Finding]:
    """Whether tap-metadata is a port of the bridge as dfmeta makes it.

    :param cut: what the switch does to its frames before any flow.
    """
    name = wanted.tap
    if found is None:
        elsewhere = [one.bridge for one in snapshot.interfaces if one.name == name]
        if elsewhere:
            yield wrong(
                "tap",
                f"{name} is a port of {elsewhere[0]}, not of {wanted.bridge}",
                f"`ovs-vsctl del-port {elsewhere[0]} {name}`; dfmeta-agent makes it anew",
            )
        else:
            yield wrong(
                "tap",
                f"{name} is not a port of {wanted.bridge}",
                "start dfmeta-agent, which makes it; if it runs, its log says why it cannot",
            )
        return
    key, value = TAP_MARK
    if found.external_ids.get(key) != value or found.type != "internal":
        yield wrong(
            "tap",
            f"{name} lacks dfmeta's mark or is not internal: somebody else made or changed it",
            f"`ovs-vsctl set Interface {name} type=internal external_ids:{key}={value}`, or give "
            "[df_metadata] metadata_interface another name if it is in use",
        )
    elif found.ofport is None:
        yield wrong(
            "tap",
            f"Open vSwitch has given {name} no port number: {found.error or 'it may not run'}",
            f"remove what has the device's name (`ip link del {name}`), and the port "
            f"(`ovs-vsctl del-port {wanted.bridge} {name}`); dfmeta-agent makes it anew",
        )
    elif cut is not None:
        yield wrong("tap", f"{name} is cut off, and all guests with it: {cut.cause}", cut.remedy)
    else:
        yield ok("tap", f"{name} is port {found.ofport} of {wanted.bridge}, with dfmeta's mark")
    tag, mode, inner = TAP_VLAN
    if (found.tag, found.vlan_mode, found.cvlans) != TAP_VLAN:
        yield wrong(
            "tap-vlan",
            f"{name} has tag={found.tag} vlan_mode={found.vlan_mode or '[]'} "
            f"cvlans={list(found.cvlans)}: other guests' broadcasts are flooded to it",
            f"`ovs-vsctl set Port {name} tag={tag} vlan_mode={mode} cvlans={inner[0]}`",
        )
    else:
        yield ok("tap-vlan", f"nothing is flooded to {name}")


def other_ports(snapshot: Snapshot, wanted: Settings) -> Iterator[Finding]:
    """Ports that a guest could be behind and that are no guests'; nothing where there are none."""
    names = [one.name for one in snapshot.interfaces if which.could_be_a_guests(one, wanted)]
    if names:
        yield ok(
            "other-ports",
            f"ports of {wanted.bridge} that are not guests' ({len(names)}): {listed(names)}. An "
            f"uplink is none; `{which.make_guests(names[0])}` makes a port a guest's",
        )


def foreign_flows(
    flows: Iterable[Foreign] | None, ports: Mapping[Endpoint, str], *, wanted: Settings
) -> Iterator[Finding]:
    """Whether somebody's flow in the classification table comes before our hooks.

    :param flows: None when they cannot be read.
    :param ports: names of the guests' ports.
    """
    check, table = "foreign-flows", wanted.layout.classification_table
    hook = wanted.layout.hook_priority
    if flows is None:
        yield unknown(
            check,
            f"table {table} has flows that cannot be read; look with "
            f"`ovs-ofctl dump-flows {wanted.bridge} table={table}`",
        )
        return
    flows, ofports = tuple(flows), {one.ofport for one in ports}
    above = [
        flow
        for flow in flows
        if flow.priority >= hook and not flow.hands_on and takes(flow.match, ofports, ip=wanted.ip)
    ]
    for flow in above:
        ofport = flow.match.get("in_port")
        where = ports.get(Endpoint(ofport), "guests") if isinstance(ofport, int) else "guests"
        yield wrong(
            check,
            f"a flow of somebody else in table {table} takes packets of {where} to {wanted.ip}: "
            f"cookie {flow.cookie:#x}, priority {flow.priority} (our hooks: {hook}), "
            f"actions={flow.actions}",
            f"find its owner, and have it give way; or set [df_metadata] hook_priority above "
            f"{flow.priority} and restart dfmeta-agent; or, if nobody needs it, "
            f"{_removal(flow, flows, wanted)}",
        )
    if not above:
        yield ok(
            check,
            f"nobody's flow in table {table} comes before our hooks for TCP/{METADATA_PORT} and "
            f"ARP of {wanted.ip}",
        )


def _removal(flow: Foreign, flows: Iterable[Foreign], wanted: Settings) -> str:
    """What takes *flow* away and no other: a cookie may be many flows', 0 above all."""
    table = wanted.layout.classification_table
    if sum(other.cookie == flow.cookie for other in flows) == 1:
        where = f"cookie={flow.cookie:#x}/-1,table={table}"
        return f'`ovs-ofctl del-flows {wanted.bridge} "{where}"`'
    return (
        f"`ovs-ofctl --strict del-flows {wanted.bridge} "
        f'"table={table},priority={flow.priority},MATCH"`, with its match as MATCH '
        f"(`ovs-ofctl dump-flows {wanted.bridge} table={table}` shows it): other flows have its "
        "cookie too"
    )


def our_flows(rows: Iterable[Entry] | None, problem: str, *, wanted: Settings) -> Iterator[Finding]:
    """Whether our flows are those that ought to be there.

    :param rows: None when they could not be read.
    :param problem: why they could not be compared; empty when they were.
    """
    if rows is None or problem:
        yield unknown("flows", f"not compared: {problem or 'the switch does not answer'}")
        return
    rows = tuple(rows)
    lost = [row for row in rows if row.state in (State.MISSING, State.DIFFERS)]
    strange = [row for row in rows if row.state is State.UNKNOWN]
    if lost:
        yield wrong(
            "flows",
            f"{len(lost)} of our flows are missing or changed on {wanted.bridge}: "
            f"{listed(_named(row) for row in lost)}",
            "dfmeta-agent puts them back within seconds while it has its connection to the "
            "bridge: see its log and [df_metadata] openflow_connection",
        )
    if strange:
        # No command that removes them: a cookie may be that of flows which serve guests.
        yield wrong(
            "flows",
            f"{len(strange)} flows with dfmeta's cookie ought not to be on {wanted.bridge}: "
            f"{listed(_named(row) for row in strange)}",
            "dfmeta-agent removes them within 30 seconds while it has its connection to the "
            "bridge: see its log and [df_metadata] openflow_connection",
        )
    if not (lost or strange):
        cookie = f"{COOKIE_PREFIX:#x}/{COOKIE_PREFIX_MASK:#x}"
        yield ok("flows", f"all {len(rows)} of our flows are there, and no other (cookie={cookie})")


def _named(row: Entry) -> str:
    return f"{row.purpose}{f' of port {row.ofport}' if row.ofport is not None else ''}"
