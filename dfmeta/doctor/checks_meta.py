"""Checks of the second bridge of ``identity_scheme = meta_ip``, and of Meta IPs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dfmeta.doctor.facts import KnownPort, MetaSide, Settings
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.flows.dump import Foreign
from dfmeta.flows.pipeline import MetaPurpose, MetaStage
from dfmeta.flows.port_down import PortBits, cut_of
from dfmeta.model import TAP_VLAN, MetaIds, MetaNames, PortState
from dfmeta.ovsdb.rows import Interface, Snapshot

MAKES: Final = "start dfmeta-agent, which makes it; if it runs, its log says why it could not"
SECURE: Final = "secure"
_MAPPINGS: Final = ("bridge-mappings", "bridge_mappings")
"""Ends of the keys in Open_vSwitch's external_ids with a mapping of networks to bridges."""
_NORMAL: Final = "NORMAL"
_SYSTEM: Final = "system"
"""The datapath type that an empty column means."""
_MARK: Final = "dfmeta"
"""Key in external_ids of rows that dfmeta has created."""


def bridge(snapshot: Snapshot, wanted: Settings, meta: MetaSide, *, cause: str = "") -> Finding:
    """Check that the second bridge exists, answers and is configured as dfmeta does it.

    :param cause: why its flows could not be read; empty if they were, or were not asked for.
    """
    check, name = "meta-bridge", meta.names.bridge
    found, main = snapshot.bridge(name), snapshot.bridge(wanted.bridge)
    if found is None:
        return wrong(check, f"there is no bridge {name}", MAKES)
    others = _others(snapshot, meta)
    mode = found.fail_mode or "standalone"
    # dfmeta-agent does not set it on a bridge of others, who may rely on it.
    keeps = bool(others) and _MARK not in found.external_ids
    if mode != SECURE and not keeps:
        return wrong(
            check,
            f"{name} has fail_mode={mode}: without dfmeta's flows it would pass frames between its "
            "ports",
            f"`ovs-vsctl set-fail-mode {name} {SECURE}`; a running dfmeta-agent does so by itself",
        )
    kinds = [one.datapath_type or _SYSTEM for one in (found, main or found)]
    if kinds[0] != kinds[1]:
        by = (
            f"set [df_metadata] meta_bridge to another name, or remove the ports of others: "
            f"{listed(others)}"
            if others
            else f"`ovs-vsctl set Bridge {name} datapath_type={kinds[1]}`; a running dfmeta-agent "
            "does so by itself"
        )
        return wrong(
            check,
            f"{name} has datapath_type={kinds[0]} and {wanted.bridge} has {kinds[1]}: no frame "
            "passes a patch between two datapaths",
            by,
        )
    if cause:
        return wrong(
            check,
            f"{name}: {cause}",
            f"`ovs-vsctl add Bridge {name} protocols OpenFlow13`, or restart ovs-vswitchd "
            "(`systemctl restart openvswitch-switch`)",
        )
    beside = f", and ports of others: {listed(others)}" if others else ""
    return ok(check, f"OVSDB has the bridge {name}, with fail_mode={mode}{beside}")


def _others(snapshot: Snapshot, meta: MetaSide) -> list[str]:
    """Return the names of the ports of others on the second bridge."""
    names = meta.names
    known = {names.bridge, names.tap, names.patch_meta}
    there = (one.name for one in snapshot.interfaces if one.bridge == names.bridge)
    return [one for one in there if one not in known]


def patch(
    snapshot: Snapshot,
    wanted: Settings,
    meta: MetaSide,
    bits: Mapping[str, Mapping[int, PortBits]] | None = None,
) -> Iterator[Finding]:
    """Check that the two bridges are connected, and that no frames are flooded over the patch.

    :param bits: bridge → number of a port → the switch's description of the port, as far as it is
        known.
    """
    check, names = "meta-patch", meta.names
    ends = (
        (names.patch_int, wanted.bridge, names.patch_meta),
        (names.patch_meta, names.bridge, names.patch_int),
    )
    bits = bits or {}
    faults = [
        one for end in ends if (one := _end(snapshot, *end, bits.get(end[1], {}))) is not None
    ]
    yield from faults
    if not faults:
        yield ok(
            check,
            f"{names.patch_int} and {names.patch_meta} connect {wanted.bridge} and {names.bridge}",
        )
    yield from _unflooded(snapshot, ends)


def _unflooded(snapshot: Snapshot, ends: Iterable[tuple[str, str, str]]) -> Iterator[Finding]:
    """Check the VLAN columns of both ends; no line if none exists."""
    there = [one for name, of, _peer in ends if (one := snapshot.interface(name, of)) is not None]
    flooded = [one for one in there if (one.tag, one.vlan_mode, one.cvlans) != TAP_VLAN]
    tag, mode, inner = TAP_VLAN
    for end in flooded:
        yield wrong(
            "meta-patch-vlan",
            f"{end.name} has tag={end.tag} vlan_mode={end.vlan_mode or '[]'} "
            f"cvlans={list(end.cvlans)}: frames of other ports of {end.bridge} are flooded to it",
            f"`ovs-vsctl set Port {end.name} tag={tag} vlan_mode={mode} cvlans={inner[0]}`; a "
            "running dfmeta-agent does so by itself",
        )
    if there and not flooded:
        yield ok("meta-patch-vlan", f"no frames are flooded to {listed(one.name for one in there)}")


def _end(
    snapshot: Snapshot, name: str, of: str, peer: str, bits: Mapping[int, PortBits], /
) -> Finding | None:
    """Return the fault of one end of the patch; None: it has none."""
    check, found = "meta-patch", snapshot.interface(name, of)
    if found is None:
        elsewhere = [one.bridge for one in snapshot.interfaces if one.name == name]
        if elsewhere:
            return wrong(
                check,
                f"{name} is a port of {elsewhere[0]}, not of {of}",
                f"`ovs-vsctl del-port {elsewhere[0]} {name}`; dfmeta-agent makes it again",
            )
        return wrong(check, f"{name} is not a port of {of}", MAKES)
    if found.type != "patch" or found.options.get("peer") != peer:
        return wrong(
            check,
            f"{name} is not a patch port with the peer {peer}: type={found.type or '[]'}, "
            f"peer={found.options.get('peer', '[]')}",
            f"`ovs-vsctl set Interface {name} type=patch options:peer={peer}`; a running "
            "dfmeta-agent does so by itself",
        )
    if found.ofport is None:
        return wrong(
            check,
            f"Open vSwitch has given {name} no port number: {found.error or 'it may not run'}",
            f"`ovs-vsctl del-port {of} {name}`; dfmeta-agent makes it again",
        )
    known = bits.get(found.ofport)
    cut = cut_of(known.of_switch() if known is not None else None, name, bridge=of)
    if cut is not None:
        return wrong(check, f"{name} is cut off, so no guest is served: {cut.cause}", cut.remedy)
    return None


def tap_fault(found: Interface, names: MetaNames) -> Finding | None:
    """Return the fault of tap-meta that tap-metadata cannot have; None: it has none."""
    if found.type != "internal":
        return wrong(
            "tap",
            f"{found.name} is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {found.name} type=internal`; a running dfmeta-agent does so "
            "by itself",
        )
    if found.mac_in_use and found.mac_in_use != names.mac:
        return wrong(
            "tap",
            f"{found.name} has the MAC {found.mac_in_use}, not {names.mac}, the gateway's Meta MAC",
            f"`ovs-vsctl set Interface {found.name} mac='\"{names.mac}\"'`; a running dfmeta-agent "
            "does so by itself",
        )
    return None


def mappings(
    snapshot: Snapshot, flows: Iterable[Foreign] | None, meta: MetaSide
) -> Iterator[Finding]:
    """Check that no other program configures the second bridge or has flows that matter there.

    Neutron's agent does so for each bridge of its bridge_mappings, which metadata_path needs: it
    adds the action NORMAL and drops, and sets fail_mode.

    :param flows: flows of other programs on the second bridge; None if they are not known.
    """
    check, name = "meta-mappings", meta.names.bridge
    remedy = (
        f"remove meta:{name} from [ovs] bridge_mappings of Neutron's Open vSwitch agent, and "
        "metadata_path from its [agent] extensions, and restart it"
    )
    faults = [_mapped(snapshot, name, remedy)]
    if flows is not None:
        flows, names = tuple(flows), (meta.names.tap, meta.names.patch_meta)
        ports = (snapshot.interface(one, name) for one in names)
        ofports = tuple(one.ofport for one in ports if one is not None)
        faults += [_before(flows, meta, remedy, ofports), _normal(flows, meta, remedy)]
    found = [one for one in faults if one is not None]
    yield from found
    if not found and flows is None:
        yield unknown(check, f"the flows of {name} cannot be read")
    elif not found:
        yield ok(check, f"there is no sign that another program configures {name}")


def _mapped(snapshot: Snapshot, name: str, remedy: str) -> Finding | None:
    """Return a warning if OVSDB itself has a mapping to the second bridge."""
    for key, value in sorted(snapshot.external_ids.items()):
        pairs = [one.strip().partition(":")[::2] for one in value.split(",")]
        physical = [one for one, to in pairs if to == name]
        if key.endswith(_MAPPINGS) and physical:
            return warning(
                "meta-mappings",
                f"external_ids:{key} of Open_vSwitch maps the network {physical[0]} to {name}, "
                "which another program then configures as well",
                f"{remedy}; `ovs-vsctl get Open_vSwitch . external_ids:{key}` shows the mapping",
            )
    return None


def _before(
    flows: tuple[Foreign, ...], meta: MetaSide, remedy: str, ofports: tuple[int | None, ...]
) -> Finding | None:
    """Return a fault if a flow of another program may take frames before dfmeta's flows.

    :param ofports: dfmeta's ports on the bridge.
    """
    layout = meta.layout
    least = {
        layout.number(stage): layout.priority(purpose)
        for stage, purpose in (
            (MetaStage.CLASSIFY, MetaPurpose.META_FROM_PATCH),
            (MetaStage.SOURCE, MetaPurpose.META_SOURCE),
            (MetaStage.PROXY, MetaPurpose.META_TO_PROXY),
            (MetaStage.NEIGHBOURS, MetaPurpose.META_KEY_ARP),
            (MetaStage.REPLY, MetaPurpose.META_REPLY),
        )
    }
    taking = [
        one
        for one in flows
        if one.priority >= least.get(one.table, one.priority + 1)
        and one.match.get("in_port") in (None, *ofports)
    ]
    if not taking:
        return None
    one = taking[0]
    return wrong(
        "meta-mappings",
        f"{len(taking)} flows of another program on {meta.names.bridge} may take guests' packets "
        f"before dfmeta's flows, the first in table {one.table}: cookie {one.cookie:#x}, priority "
        f"{one.priority}, actions={one.actions}",
        f"{remedy}; then {_removal(meta, one)}",
    )


def _normal(flows: tuple[Foreign, ...], meta: MetaSide, remedy: str) -> Finding | None:
    """Return a warning if another program forwards frames on the second bridge."""
    normal = [one for one in flows if _NORMAL in one.actions]
    least = meta.layout.priority(MetaPurpose.META_OTHER_DROP)
    if not normal or any(one.priority >= least for one in normal):
        return None
    one = normal[0]
    return warning(
        "meta-mappings",
        f"another program has a flow with the action NORMAL on {meta.names.bridge} (cookie "
        f"{one.cookie:#x}, priority {one.priority}), as Neutron's agent has on each bridge of its "
        "bridge_mappings; guests are served, and other ports of that bridge can reach each other",
        f"{remedy}; then {_removal(meta, one)}",
    )


def _removal(meta: MetaSide, flow: Foreign) -> str:
    where = f"cookie={flow.cookie:#x}/-1,table={flow.table}"
    return f'`ovs-ofctl del-flows {meta.names.bridge} "{where}"`'


def room(known: Iterable[KnownPort], wanted: Settings, *, running: bool) -> Finding:
    """Check that each port has a Meta IP.

    :param known: the guests' ports, from the running daemon.
    :param running: whether the daemon runs.
    """
    if not running:
        return unknown("meta-range", "not checked: dfmeta-agent, which gives them, does not answer")
    known = tuple(known)
    without = [
        f"{one.name} (VID {one.vid})" if one.vid else one.name
        for one in known
        if one.state is PortState.NO_META_IP
    ]
    network = wanted.keys.network(4)
    size = len(wanted.keys.slots(4))
    if without:
        return wrong(
            "meta-range",
            f"all {size} Meta IPs of {network} are taken, so {len(without)} ports have none and "
            f"their guests are not served: {listed(without)}",
            "set [METADATA] provider_cidr to a larger network, such as 240.0.0.0/16, and restart "
            "dfmeta-agent; a Meta IP of a removed port is free again after some minutes",
        )
    used = sum(len(one.addresses) for one in known)
    return ok(
        "meta-range",
        f"each port has its Meta IP: {len(known)} ports, {used} addresses in use, {size} Meta IPs "
        f"in {network}",
    )


def ids(known: Iterable[KnownPort], stored: Mapping[str, MetaIds], *, running: bool) -> Finding:
    """Check that OVSDB has the Meta IP of each port, which the next daemon reads there.

    :param known: the guests' ports, from the running daemon.
    :param stored: name of a port → its Meta addresses in OVSDB.
    :param running: whether the daemon runs.
    """
    check = "meta-ids"
    if not running:
        return unknown(check, "not compared: dfmeta-agent, which knows them, does not answer")
    differing = [
        f"{port.name} ({there or 'none'}, in use: {used})"
        for port in known
        if port.name in stored
        for there, used in _differences(stored[port.name], port)
    ]
    if differing:
        return wrong(
            check,
            f"OVSDB has other Meta IPs than dfmeta-agent uses for {listed(differing)}: after a "
            "restart, these guests would get others",
            "a running dfmeta-agent writes them again within a second: if this line stays, another "
            "program changes external_ids:dfmeta-meta-ip, dfmeta-meta-mac or dfmeta-meta-ip6, or "
            "OVSDB refuses the change (see the log of dfmeta-agent)",
        )
    return ok(check, "OVSDB has the Meta IPs that dfmeta-agent uses")


def _differences(stored: MetaIds, port: KnownPort) -> Iterator[tuple[str, str]]:
    """Return those Meta addresses of OVSDB, each with the one in use, that differ from it."""
    for there, used in zip(stored, MetaIds(port.key, port.label, port.key6), strict=True):
        if used and there != used:
            yield there, used


def no_ids(cause: str) -> Finding:
    """Return the line about Meta IPs in OVSDB that could not be compared."""
    return unknown("meta-ids", f"not compared: {cause}")
