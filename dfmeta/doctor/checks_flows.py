"""Checks of the flows: dfmeta's own, and those of other programs that come before them. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final

from dfmeta.doctor.facts import HostSettings, MetaSide
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.doctor.flow_diff import FlowEntry, FlowState, drops_flood
from dfmeta.flows import openflow, pipeline
from dfmeta.flows.family import IPV6, family_of, solicited_node
from dfmeta.model import Endpoint
from dfmeta.ovsdb.rows import Snapshot

_LOG: Final = "`journalctl -u dfmeta-agent`"
_ACTIVATION = _PAUSE, _ANNOUNCEMENT = 1000, 1010
"""Priorities of OVN's flows of a port that waits for activation."""
_ETH_RARP: Final = 0x8035
_MAPPINGS: Final = ("bridge-mappings", "bridge_mappings")
"""Ends of the keys in Open_vSwitch's external_ids with a mapping of networks to bridges."""
_NORMAL: Final = "NORMAL"


def our_flows(
    rows: Iterable[FlowEntry] | None, problem: str, *, bridge: str, alone: bool = True
) -> Iterator[Finding]:
    """Check that dfmeta's flows on one bridge are the desired ones.

    A remedy has no command to delete flows: flows that serve guests may share the cookie.

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
        names = listed(_named(row) for row in lost)
        yield wrong(
            f"{len(lost)} of dfmeta's flows are missing or changed on {bridge}: {names}", _LOG
        )
    if strange:
        names = listed(_named(row) for row in strange)
        yield wrong(
            f"{len(strange)} stray flows with dfmeta's cookie are on {bridge}: {names}", _LOG
        )
    if not (lost or strange):
        cookie = f"{pipeline.COOKIE_PREFIX:#x}/{pipeline.COOKIE_PREFIX_MASK:#x}"
        where = "" if alone else f" on {bridge}"
        yield ok(f"all {len(rows)} of dfmeta's flows exist{where}, no stray flow (cookie={cookie})")


def _named(row: FlowEntry) -> str:
    name = f"{row.purpose}{f' of port {row.ofport}' if row.ofport is not None else ''}"
    # Over IPv4, the service has only one address.
    return f"{name} to {row.service}" if row.family == IPV6.version and row.service else name


def floods(flows: Iterable[openflow.Seen], names: Mapping[Endpoint, str]) -> Finding:
    """Name the guests whose packets the switch drops; they harm no other guest.

    :param flows: dfmeta's flows on the switch.
    :param names: endpoint → name of the guest's port.
    """
    flooding = {
        names.get(endpoint, f"ofport {endpoint.ofport}")
        for seen in flows
        if seen.flow is not None and drops_flood(seen.flow)
        if (endpoint := openflow.comes_in_at(seen.flow)) is not None
    }
    if not flooding:
        return ok("no guest floods the service")
    return warning(
        f"{listed(sorted(flooding))}: the guest sends too many SYNs, and the switch drops them",
        "look in the guest for a program that connects to 169.254.169.254 in a loop",
    )


def foreign_flows(
    flows: Iterable[openflow.Foreign] | None,
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
    table, hook = wanted.layout.classification_table, wanted.layout.hook_priority
    if flows is None:
        yield unknown(
            f"table {table} has flows that doctor cannot parse; see `ovs-ofctl dump-flows "
            f"{wanted.bridge} table={table}`"
        )
        return
    flows = tuple(flows)
    waiting = _awaiting_activation(flows)
    paused = [ports[Endpoint(ofport)] for ofport in waiting if Endpoint(ofport) in ports]
    if paused:
        yield ok(
            f"waits for activation (live migration): {listed(paused)}: OVN drops what comes from "
            "it until its guest runs on this host"
        )
    first = [
        flow
        for flow in flows
        if flow.priority >= hook
        and not flow.hands_on
        and not (flow.priority in _ACTIVATION and flow.match.get("in_port") in waiting)
    ]
    taken = [
        (flow, next((ip for ip in (wanted.ip, *ip6) if takes(flow.match, ports, ip=ip)), ""))
        for flow in first
    ]
    above = [(flow, ip) for flow, ip in taken if ip]
    for flow, ip in above:
        ofport = flow.match.get("in_port")
        where = ports.get(Endpoint(ofport), "guests") if isinstance(ofport, int) else "guests"
        yield wrong(
            f"another program's flow in table {table} takes packets of {where} to {ip}: cookie "
            f"{flow.cookie:#x}, priority {flow.priority} (dfmeta's hooks: {hook}), "
            f"actions={flow.actions}",
            f"set [df_metadata] hook_priority above {flow.priority}; or, if no program needs the "
            f"flow, {_deletion(flow, flows, wanted)}",
        )
    if not above:
        of_ip6 = f", or for TCP/{pipeline.METADATA_PORT} and neighbour discovery of {listed(ip6)}"
        yield ok(
            f"no other program's flow in table {table} precedes dfmeta's hooks for "
            f"TCP/{pipeline.METADATA_PORT} and ARP of {wanted.ip}{of_ip6 if ip6 else ''}"
        )


def _awaiting_activation(flows: Iterable[openflow.Foreign]) -> frozenset[int]:
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


def _deletion(
    flow: openflow.Foreign, flows: Iterable[openflow.Foreign], wanted: HostSettings
) -> str:
    """Return the command that deletes *flow* alone: many flows may share a cookie, 0 above all."""
    table = wanted.layout.classification_table
    if sum(other.cookie == flow.cookie for other in flows) == 1:
        return _deletion_by_cookie(wanted.bridge, flow)
    return (
        f"`ovs-ofctl --strict del-flows {wanted.bridge} "
        f'"table={table},priority={flow.priority},MATCH"`, with its match as MATCH '
        f"(`ovs-ofctl dump-flows {wanted.bridge} table={table}` shows it): other flows have the "
        "same cookie"
    )


def _deletion_by_cookie(bridge: str, flow: openflow.Foreign) -> str:
    return f'`ovs-ofctl del-flows {bridge} "cookie={flow.cookie:#x}/-1,table={flow.table}"`'


def mappings(
    snapshot: Snapshot, flows: Iterable[openflow.Foreign] | None, meta: MetaSide
) -> Iterator[Finding]:
    """Check that no other program configures the second bridge or has flows that matter there.

    Neutron's agent does so for each bridge of its bridge_mappings, which metadata_path needs: it
    adds the action NORMAL and drops, and sets fail_mode.

    :param flows: flows of other programs on the second bridge; None if they are not known.
    """
    name = meta.names.bridge
    remedy = f"remove meta:{name} from [ovs] bridge_mappings of Neutron's Open vSwitch agent"
    faults = [_mapped(snapshot, name, remedy)]
    if flows is not None:
        flows, names = tuple(flows), (meta.names.tap, meta.names.patch_meta)
        ports = (snapshot.interface(port, name) for port in names)
        ofports = tuple(row.ofport for row in ports if row is not None)
        faults += [_before(flows, meta, remedy, ofports), _normal(flows, meta, remedy)]
    findings = [fault for fault in faults if fault is not None]
    yield from findings
    if not findings and flows is None:
        yield unknown(f"the flows of {name} cannot be read")
    elif not findings:
        yield ok(f"there is no sign that another program configures {name}")


def _mapped(snapshot: Snapshot, name: str, remedy: str) -> Finding | None:
    """Return a warning if OVSDB itself has a mapping to the second bridge."""
    for key, value in sorted(snapshot.external_ids.items()):
        pairs = [pair.strip().partition(":")[::2] for pair in value.split(",")]
        physical = [network for network, to in pairs if to == name]
        if key.endswith(_MAPPINGS) and physical:
            return warning(
                f"external_ids:{key} of Open_vSwitch maps the network {physical[0]} to {name}",
                remedy,
            )
    return None


def _before(
    flows: tuple[openflow.Foreign, ...],
    meta: MetaSide,
    remedy: str,
    ofports: tuple[int | None, ...],
) -> Finding | None:
    """Return a fault if a flow of another program may take frames before dfmeta's flows.

    :param ofports: dfmeta's ports on the bridge.
    """
    layout = meta.layout
    least = {
        layout.number(stage): layout.priority(purpose)
        for stage, purpose in (
            (pipeline.Stage.META_CLASSIFY, pipeline.Purpose.META_FROM_PATCH),
            (pipeline.Stage.META_SOURCE, pipeline.Purpose.META_SOURCE),
            (pipeline.Stage.META_PROXY, pipeline.Purpose.META_TO_PROXY),
            (pipeline.Stage.META_NEIGHBOURS, pipeline.Purpose.META_KEY_ARP),
            (pipeline.Stage.META_REPLY, pipeline.Purpose.META_REPLY),
        )
    }
    taking = [
        flow
        for flow in flows
        if flow.priority >= least.get(flow.table, flow.priority + 1)
        and flow.match.get("in_port") in (None, *ofports)
    ]
    if not taking:
        return None
    flow = taking[0]
    return wrong(
        f"{len(taking)} flows of another program on {meta.names.bridge} may take guests' packets "
        f"before dfmeta's flows, the first in table {flow.table}: cookie {flow.cookie:#x}, "
        f"priority {flow.priority}, actions={flow.actions}",
        f"{remedy}; then {_deletion_by_cookie(meta.names.bridge, flow)}",
    )


def _normal(flows: tuple[openflow.Foreign, ...], meta: MetaSide, remedy: str) -> Finding | None:
    """Return a warning if another program forwards frames on the second bridge."""
    normal = [flow for flow in flows if _NORMAL in flow.actions]
    least = meta.layout.priority(pipeline.Purpose.META_OTHER_DROP)
    if not normal or any(flow.priority >= least for flow in normal):
        return None
    flow = normal[0]
    return warning(
        f"another program has a flow with the action NORMAL on {meta.names.bridge} (cookie "
        f"{flow.cookie:#x}, priority {flow.priority}): other ports of it can reach each other",
        f"{remedy}; then {_deletion_by_cookie(meta.names.bridge, flow)}",
    )


_ZERO: Final = ("reg", "xreg", "xxreg", "metadata", "tun", "ct_", "conj_id")
"""Prefixes of the fields that are zero in a packet that has just entered at a guest's port."""
_OTHER_PROTOCOLS: Final = ("icmp", "nd_", "ipv6_nd_", "udp", "sctp", "pbb", "mpls")
"""Prefixes of the fields that none of these packets has; it has those that it needs by name."""
_OTHER_VERSIONS: Final = {4: ("ipv6",), 6: ("ipv4", "arp")}
_Packet = Mapping[str, int | str]
_ARP: Final[_Packet] = {"eth_type": openflow.ETH_TYPE_ARP, "arp_op": openflow.ARP_REQUEST}
_SOLICITATION: Final[_Packet] = {
    "eth_type": openflow.ETH_TYPE_IPV6,
    "ip_proto": openflow.IPPROTO_ICMPV6,
    "icmpv6_type": openflow.ND_NEIGHBOR_SOLICIT,
    "icmpv6_code": 0,
}


def takes(match: Mapping[str, openflow.Value], endpoints: Collection[Endpoint], *, ip: str) -> bool:
    """Return whether *match* takes a guest's TCP to port 80 of *ip*, or its request for the MAC.

    :param endpoints: endpoints of guests.
    :param ip: address of the service; its version decides whether the MAC is requested with ARP or
        with neighbour discovery.
    """
    ofports: dict[int, set[int]] = {}
    for endpoint in endpoints:
        ofports.setdefault(endpoint.vid, set()).add(endpoint.ofport)
    absent = (*_OTHER_PROTOCOLS, *_OTHER_VERSIONS[ip_address(ip).version])

    def fits(packet: _Packet, numbers: Collection[int]) -> bool:
        return all(
            _fits(name.removesuffix("_nxm"), value, packet, numbers, absent)
            for name, value in match.items()
        )

    return any(
        fits({"vlan_vid": tci, "vlan_tci": tci, **packet}, numbers)
        for vid, numbers in ofports.items()
        for tci in (openflow.TAGGED | vid if vid else openflow.UNTAGGED,)
        for packet in _packets(ip)
    )


def _packets(ip: str) -> Iterator[_Packet]:
    """Yield the packets that a guest sends to an address of the service, without a VLAN tag."""
    address = ip_address(ip)
    family = family_of(address.version)
    to_service: _Packet = {"eth_type": family.eth_type, family.destination: ip}
    yield {**to_service, "ip_proto": openflow.IPPROTO_TCP, "tcp_dst": pipeline.METADATA_PORT}
    if not isinstance(address, IPv6Address):
        yield {**_ARP, family.target: ip}
        return
    # A solicitation is sent to the target itself or to its group (RFC 4861, 4.3).
    for target in (address, solicited_node(address)):
        yield {**_SOLICITATION, "ipv6_dst": str(target), family.target: ip}


def _fits(
    name: str,
    value: openflow.Value,
    packet: _Packet,
    ofports: Collection[int],
    absent: tuple[str, ...],
) -> bool:
    """Return whether a packet that comes in at one of *ofports* may have the value of a field.

    :param absent: prefixes of the fields that the packet does not have, except those in *packet*.
    """
    if name == "in_port":
        return _number(value[0] if isinstance(value, tuple) else value) in ofports
    if name in packet:
        return _matches(value, packet[name])
    if name.startswith(_ZERO):
        return _matches(value, 0)
    return not name.startswith(absent)


def _matches(value: openflow.Value, actual: int | str) -> bool:
    wanted, mask = value if isinstance(value, tuple) else (value, None)
    bits = -1 if mask is None else _number(mask)
    return _number(wanted) & bits == _number(actual) & bits


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else int(ip_address(value))
