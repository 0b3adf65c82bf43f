"""The paths of a guest's SYN and of the SYN-ACK through the bridges, judged for trace. Pure.

Over IPv6, a guest asks for the service's MAC first (neighbour discovery, RFC 4861). Over IPv4, it
may ask for the MAC of a guest next hop. Only numbers that dfmeta itself set (cookies, ports) are
judged. A stop is a sentence that names the place and the cause.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dfmeta.doctor import checks_switch, facts, finding
from dfmeta.doctor.flow_diff import meta_tap_of, purpose_name
from dfmeta.doctor.trace_output import NOTATIONS, ROUTER_MAC, SOURCE_PORT, Hop, Trace, tcp
from dfmeta.flows import family, integration_bridge, meta_bridge, port_down
from dfmeta.flows.openflow import ARP_REQUEST, ND_NEIGHBOR_SOLICIT
from dfmeta.flows.pipeline import METADATA_PORT, TABLES, Layout, Purpose, Stage, table_of
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import Endpoint, GuestAddress, NextHop, PortKind, PortState
from dfmeta.ovsdb.rows import Snapshot

BACK: Final = "on the return path: "
HOP_LIMIT_OF_ND: Final = 255
"""Other hop limits are not accepted in neighbour discovery (RFC 4861, 7.1.1)."""
_RETURNED: Final = "IN_PORT"
"""The action that outputs to the ingress port, as ovs-ofctl(8) prints it."""
Run = Callable[[str, str], Trace]
"""Traces a packet on a bridge: name of the bridge, packet."""


@dataclass(frozen=True, slots=True)
class Leg:
    """The path of one packet through a bridge."""

    steps: tuple[str, ...]
    """The tables and flows on the path, for the operator."""
    stop: str = ""
    """Where and why the path stops; empty if the packet arrives."""
    to_controller: bool = False
    """Whether it leads to the controller, which has to install the address' flows first."""


def _leg(trace: Trace, layout: Layout, stop: str, *, on: str = "") -> Leg:
    """Return a leg with the steps of *trace*.

    :param on: the beginning of the stop.
    """
    return Leg(tuple(step(hop, layout) for hop in trace.hops), f"{on}{stop}" if stop else "")


@dataclass(frozen=True, slots=True)
class GuestPath:
    """A path from an address of a guest through the integration bridge, and back.

    The methods that take a trace judge the path of the packet that they are named for.
    """

    port: facts.KnownPort
    slot: int
    """Slot of the address; without one, the slot whose flows the path shares."""
    address: GuestAddress
    seen: bool
    """Whether the guest has used ``address``; if not, it stands for any address."""
    tap: integration_bridge.Tap
    layout: Layout

    @property
    def service(self) -> str:
        """The address of the service that the guest sends to."""
        return str(self.address.service or self.tap.guest_ip)

    @property
    def _vlan(self) -> Mapping[str, str]:
        """The field of the VLAN tag of the guest's frames; empty: they have none."""
        return {"dl_vlan": str(self.port.vid)} if self.port.vid else {}

    @property
    def _ingress(self) -> str:
        return ",".join([f"in_port={self.port.ofport}", *map("=".join, self._vlan.items())])

    def syn(self, flags: str = "syn") -> str:
        """Return the guest's SYN, or with other *flags* a later packet."""
        return tcp(
            self._ingress,
            macs=(self.address.mac, ROUTER_MAC),
            ips=(self.address.ip, self.service),
            ports=(SOURCE_PORT, METADATA_PORT),
            flags=flags,
        )

    def syn_ack(self) -> str:
        """Return the proxy's SYN-ACK to :meth:`syn`."""
        key = self.tap.keys.key_of(self.port.endpoint, self.slot)
        return tcp(
            f"in_port={self.tap.ofport}",
            macs=(self.tap.mac, self.address.mac),
            ips=(self.tap.service(key.version).ip, key),
            ports=(self.tap.port, SOURCE_PORT),
            flags="syn|ack",
        )

    def solicitation(self) -> str:
        """Return the guest's neighbour solicitation for the service.

        It is sent to the solicited-node multicast address (RFC 4861, 7.2.2), with the guest's MAC.
        """
        mac, group = self.address.mac, family.solicited_node(IPv6Address(self.service))
        return (
            f"icmp6,{self._ingress},dl_src={mac},dl_dst=33:33:{group.packed[-4:].hex(':')},"
            f"ipv6_src={self.address.ip},ipv6_dst={group},nw_ttl={HOP_LIMIT_OF_ND},"
            f"icmpv6_type={ND_NEIGHBOR_SOLICIT},icmpv6_code=0,nd_target={self.service},nd_sll={mac}"
        )

    def arp_request(self, hop: NextHop) -> str:
        """Return a guest's ARP request for a guest next hop.

        Its sender is on the network of the next hop. A guest with addresses of several networks has
        next hops of each of them.
        """
        mac, sender = self.address.mac, IPv4Address(int(IPv4Address(hop.ip)) ^ 1)
        return (
            f"arp,{self._ingress},dl_src={mac},dl_dst=ff:ff:ff:ff:ff:ff,arp_op={ARP_REQUEST},"
            f"arp_spa={sender},arp_tpa={hop.ip},arp_sha={mac},arp_tha=00:00:00:00:00:00"
        )

    def next_hop(self, trace: Trace, hop: NextHop) -> Leg:
        """Judge the request for a guest next hop's MAC, and the answer to the guest.

        A guest without a route through that next hop does not need the answer.
        """
        wanted = {"arp_spa": hop.ip, "arp_sha": hop.mac or self.tap.mac, **self._vlan}
        stop = not_classified(trace, Purpose.GUEST_NEXT_HOP, self.layout) or self._not_returned(
            trace, Purpose.GUEST_NEXT_HOP, wanted
        )
        return _leg(trace, self.layout, stop, on=f"guest next hop {hop.ip}: ")

    def neighbour(self, trace: Trace) -> Leg:
        """Judge the solicitation, and the advertisement back to the guest."""
        clause = f" for {self.service}"
        answering = [(Purpose.GUEST_ND_ANSWER, clause), (Purpose.SERVICE_ND, clause)]
        wanted = {"dl_dst": self.address.mac, "ipv6_src": self.service, "nd_tll": self.tap.mac}
        stop = (
            not_classified(trace, Purpose.GUEST_ND, self.layout)
            or _missed(trace, answering, port=self.port.name, layout=self.layout)
            or self._not_returned(trace, Purpose.SERVICE_ND, {**wanted, **self._vlan})
        )
        return _leg(trace, self.layout, stop, on="neighbour discovery: ")

    def _not_returned(self, trace: Trace, purpose: Purpose, wanted: Mapping[str, str]) -> str:
        """Return why the flow of *purpose* does not answer as *wanted*; empty: it does."""
        if any(hop.purpose is purpose and _RETURNED in hop.actions for hop in trace.hops):
            return differs(trace, wanted)
        return f"the answer does not leave at {self.port.name}"

    def there(self, trace: Trace) -> Leg:
        """Judge the SYN to tap-metadata, or to the patch port of a second bridge."""
        stop, hop = self._not_served(trace), trace.at(self.layout.number(Stage.SERVICE))
        to_controller = not stop and hop is not None and hop.purpose is Purpose.SYN
        if to_controller and self.port.state is PortState.NO_INSTANCE:
            stop = f"stops in the {TABLES[Stage.SERVICE].name} table: {no_instance(self.port)}"
        return replace(_leg(trace, self.layout, stop), to_controller=to_controller)

    def _not_served(self, trace: Trace) -> str:
        """Return why the SYN reaches neither its port nor the controller; empty: it does."""
        if stop := not_classified(trace, Purpose.GUEST_SYN, self.layout):
            return stop
        hop, name = trace.at(self.layout.number(Stage.SERVICE)), TABLES[Stage.SERVICE].name
        if hop is None:
            return f"stops before the {name} table: {dropped(self.port.name)}"
        if not hop.matched:
            return f"stops in the {name} table: no flow matches it"
        if self.port.vid and (tagged := self._not_untagged(trace, hop)):
            return tagged
        if hop.purpose is Purpose.ADDRESS:
            last = trace.at(self.layout.number(Stage.SUBPORT)) if self.port.vid else hop
            return self._misdirected(last or hop, trace)
        if hop.purpose is Purpose.SYN:
            return ""
        if hop.purpose is Purpose.SERVICE_DROP:
            return f"stops in the {name} table: the port's first-SYN flow is missing"
        return f"stops in the {name} table: {stranger(hop)} takes it"

    def _not_untagged(self, trace: Trace, hop: Hop) -> str:
        """Return why a frame of a tagged subport does not pass the subport table; empty: it does.

        :param hop: its flow in the service table.
        """
        wanted = {Purpose.ADDRESS: Purpose.SUBPORT_PROXY, Purpose.SYN: Purpose.SUBPORT_SYN}
        if hop.purpose is None or hop.purpose not in wanted:
            return ""
        if trace.at(self.layout.number(Stage.SUBPORT)) is None:
            name = TABLES[Stage.SUBPORT].name
            return f"stops before the {name} table: {stranger(hop)} does not lead there"
        expected = [(wanted[hop.purpose], "")]
        return _missed(trace, expected, port=self.port.name, layout=self.layout)

    def _misdirected(self, hop: Hop, trace: Trace) -> str:
        tap, version, label = self.tap, self.address.ip.version, self.tap.keys.label(self.slot)
        if not hop.outputs_to(tap.ofport):
            where = "tap-metadata's" if label is None else "the patch"
            return f"its flow does not lead to {where} port ({tap.ofport})"
        if label is not None:
            return differs(trace, {"dl_src": label})
        wanted = {"dl_dst": tap.mac, NOTATIONS[version].destination: tap.service(version).ip}
        return differs(trace, wanted | {"tp_dst": str(tap.port)})

    def after_syn(self, trace: Trace) -> str:
        """Return why packets after the SYN, which take another flow, miss the service table."""
        stop = not_classified(trace, Purpose.GUEST_HTTP, self.layout)
        return f"after the SYN: {stop}" if stop else ""

    def back(self, trace: Trace, *, installed: bool) -> Leg:
        """Judge the SYN-ACK back to the guest.

        :param installed: whether the address has flows; if not, the SYN-ACK only has to reach the
            reply table, where the controller installs one.
        """
        stop = not_classified(trace, Purpose.FROM_TAP, self.layout)
        stop = stop or self._not_answered(trace, installed=installed)
        return _leg(trace, self.layout, stop, on=BACK)

    def _not_answered(self, trace: Trace, *, installed: bool) -> str:
        hop, name = trace.at(self.layout.number(Stage.REPLY)), TABLES[Stage.REPLY].name
        if hop is None:
            return f"stops before the {name} table: {dropped('tap-metadata')}"
        if not hop.ours:
            return f"stops in the {name} table: no flow matches it"
        if not installed:
            return ""
        if hop.purpose is not Purpose.REPLY:
            return f"stops in the {name} table: there is no reply flow for its key"
        if not hop.outputs_to(self.port.ofport or 0):
            return f"it does not leave at {self.port.name} (ofport {self.port.ofport})"
        of = NOTATIONS[self.address.ip.version]
        wanted = {
            of.destination: str(self.address.ip),
            "dl_dst": self.address.mac,
            of.source: self.service,
            "tp_src": str(METADATA_PORT),
        }
        return differs(trace, {**wanted, **self._vlan})


def no_instance(port: facts.KnownPort) -> str:
    """Return why the controller holds the SYN of a port without an instance."""
    missing = "external_ids:vm-uuid is missing"
    if port.kind is PortKind.PARENT:
        missing = "it or its VM's interface on the trunk's bridge has no external_ids:vm-uuid"
    return (
        f"the port {port.name} has no instance ({missing}); the controller holds the SYN for "
        "hold_timeout"
    )


def dropped(name: str) -> str:
    """Return why a packet does not reach the next table though a flow resubmits it there."""
    return (
        f"the switch drops packets from {name} though a flow sends them there: `ovs-ofctl -O "
        "OpenFlow13 show` shows the bits of each port (NO_RECV); also check whether the bridge's "
        "spanning tree blocks the port"
    )


def not_classified(trace: Trace, purpose: Purpose, layout: Layout) -> str:
    """Return why the packet does not take its flow in the classification table; empty: it does.

    :param purpose: purpose of that flow.
    """
    stage = purpose.stage
    number, name, hook = layout.number(stage), table_of(stage).name, layout.priority(purpose)
    # A foreign flow that resubmits passes the packet on: our hook comes next.
    hops = [hop for hop in trace.hops if hop.table == number]
    if any(hop.purpose is purpose for hop in hops):
        return ""
    if not hops:
        first = f"{stranger(trace.hops[0])} takes it first" if trace.hops else "no flow matches it"
        return f"does not reach the {name} table ({number}): {first}"
    hop, stops = hops[0], f"stops in the {name} table: "
    missing = f"{stops}the {purpose_name(purpose)} flow is missing"
    if not hop.matched:
        return missing
    if hop.ours:
        return f"{missing}, {stranger(hop)} takes it"
    if hop.priority >= hook:
        return f"{stops}{stranger(hop)} takes it, before dfmeta's hooks (priority {hook})"
    return f"{missing}, so {stranger(hop)} takes it"


def _missed(
    trace: Trace, expected: Iterable[tuple[Purpose, str]], *, port: str, layout: Layout
) -> str:
    """Return in which table the packet does not take the flow of its purpose; empty: in none.

    :param expected: the purposes in the order of their tables, each with a clause about the flow.
    :param port: name of the port at which the packet came in.
    """
    for purpose, clause in expected:
        name, hop = table_of(purpose.stage).name, trace.at(layout.number(purpose.stage))
        missing = f"stops in the {name} table: the {purpose_name(purpose)} flow{clause} is missing"
        if hop is None:
            return f"stops before the {name} table: {dropped(port)}"
        if not hop.matched:
            return missing
        if hop.purpose is not purpose:
            return f"{missing}, {stranger(hop)} takes it"
    return ""


def differs(trace: Trace, wanted: Mapping[str, str]) -> str:
    """Return in which fields the final packet differs from *wanted*; empty: in none."""
    wrong = [
        f"{name} is {trace.final.get(name)} and should be {value}"
        for name, value in wanted.items()
        if _canonical(trace.final.get(name)) != _canonical(value)
    ]
    return f"it arrives with other addresses: {'; '.join(wrong)}" if wrong else ""


def _canonical(value: str | None) -> str | None:
    """Return *value*; an IP address in the spelling that Python gives it."""
    try:
        return str(ip_address(value)) if value is not None else None
    except ValueError:
        return value


def stranger(hop: Hop) -> str:
    """Return a clause about the flow of a hop that is not the expected one."""
    if not hop.matched:
        return f"table {hop.table}, which has no flow for it,"
    kind = "a flow of dfmeta" if hop.ours else "another program's flow"
    actions = ",".join(hop.actions)
    return f"{kind} (cookie {hop.cookie:#x}, priority {hop.priority}, actions={actions})"


def step(hop: Hop, layout: Layout) -> str:
    """Return the line about a hop."""
    stage = layout.stage(hop.table)
    name = table_of(stage).name if stage is not None else f"table {hop.table}"
    if not hop.matched:
        return f"{name}: no flow"
    purpose = hop.purpose
    if purpose is not None:
        kind = purpose_name(purpose)
    else:
        kind = f"{'unknown' if hop.ours else 'foreign'} flow, cookie {hop.cookie:#x}"
    return f"{name}: {kind}, priority {hop.priority}: {', '.join(hop.actions)}"


# ``ofproto/trace`` follows a frame over the patch by itself, but prints the final packet of the
# first bridge only. So the frame is traced on each bridge. An address that is not known yet has no
# flows on the second bridge. For it, the path of the daemon's own probe is traced, which takes the
# flows that all addresses share.


@dataclass(frozen=True, slots=True)
class MetaPath:
    """A path from the patch through the second bridge to tap-meta, and back."""

    meta: facts.MetaSide
    tap: meta_bridge.MetaTap
    label: str
    """Meta MAC of the path."""
    key: str
    """Meta IP of the path."""
    service: str
    """Address of the service that the path leads to."""

    @property
    def _gateway(self) -> str:
        return self.tap.keys.gateway(ip_address(self.key).version)

    def there(self, address: GuestAddress, syn: Trace | None, run: Run) -> Leg:
        """Trace the SYN from the patch to tap-meta.

        :param syn: the SYN's path through the integration bridge, if it is sent to the patch.
        """
        names = self.meta.names
        if syn is not None and not syn.on(names.bridge).hops:
            return Leg((), _not_crossed(names.patch_int, names.patch_meta, names.bridge))
        packet = tcp(
            f"in_port={self.tap.patch}",
            macs=(self.label, ROUTER_MAC),
            ips=(address.ip, self.service),
            ports=(SOURCE_PORT, METADATA_PORT),
            flags="syn",
        )
        return self.arrival(run(names.bridge, packet).on(names.bridge))

    def arrival(self, trace: Trace) -> Leg:
        """Judge the path of the SYN on the second bridge."""
        of = NOTATIONS[ip_address(self.key).version]
        ways = (
            (Purpose.META_SOURCE, f" of the Meta MAC {self.label}"),
            (Purpose.META_TO_PROXY, f" to {self.service}"),
        )
        wanted = {
            "dl_dst": self.tap.mac,
            of.source: self.key,
            of.destination: self._gateway,
            "tp_dst": str(self.tap.port),
        }
        layout, names = self.meta.layout, self.meta.names
        stop = (
            not_classified(trace, Purpose.META_FROM_PATCH, layout)
            or _missed(trace, ways, port=names.patch_meta, layout=layout)
            or _elsewhere(trace, "tap-meta", self.tap.ofport, wanted)
        )
        return _leg(trace, layout, stop, on=f"on {names.bridge}: ")

    def back(self, bridge: str, run: Run) -> Leg:
        """Trace the proxy's SYN-ACK from tap-meta to the patch, and over it to *bridge*."""
        names = self.meta.names
        packet = tcp(
            f"in_port={self.tap.ofport}",
            macs=(self.tap.mac, NEXT_HOP_MAC),
            ips=(self._gateway, self.key),
            ports=(self.tap.port, SOURCE_PORT),
            flags="syn|ack",
        )
        trace = run(names.bridge, packet)
        leg = self.departure(trace.on(names.bridge))
        if leg.stop or trace.on(bridge).hops:
            return leg
        stop = _not_crossed(names.patch_meta, names.patch_int, bridge)
        return replace(leg, stop=f"{BACK}{stop}")

    def departure(self, trace: Trace) -> Leg:
        """Judge the path of the SYN-ACK on the second bridge."""
        of = NOTATIONS[ip_address(self.key).version]
        wanted = {"dl_dst": self.label, of.source: self.service, "tp_src": str(METADATA_PORT)}
        layout, names = self.meta.layout, self.meta.names
        reply = [(Purpose.META_REPLY, f" to {self.key}")]
        stop = (
            not_classified(trace, Purpose.META_FROM_TAP, layout)
            or _missed(trace, reply, port=names.patch_meta, layout=layout)
            or _elsewhere(trace, names.patch_meta, self.tap.patch, wanted)
        )
        return _leg(trace, layout, stop, on=f"{BACK}on {names.bridge}: ")

    def answer(self, in_port: int) -> str:
        """Return the SYN-ACK as it comes over the patch to the integration bridge.

        :param in_port: its patch port.
        """
        return tcp(
            f"in_port={in_port}",
            macs=(self.tap.mac, self.label),
            ips=(self.service, self.key),
            ports=(METADATA_PORT, SOURCE_PORT),
            flags="syn|ack",
        )


def meta_path(
    path: GuestPath,
    wanted: facts.HostSettings,
    snapshot: Snapshot,
    *,
    bits: Mapping[str, Mapping[int, port_down.PortBits]],
    ip6: tuple[str, ...],
) -> MetaPath | str | None:
    """Return the continuation of *path* on the second bridge, or why there is none.

    :param bits: see :func:`~dfmeta.doctor.checks_switch.meta_patch`.
    :param ip6: the IPv6 addresses at which guests are served.
    :return: None: there is no second bridge.
    """
    meta, slot, version = wanted.meta, path.slot, path.address.ip.version
    if meta is None:
        return None
    findings = (
        checks_switch.meta_bridge(snapshot, wanted, meta),
        *checks_switch.meta_patch(snapshot, wanted, meta, bits),
    )
    if (fault := finding.first_fault(findings)) is not None:
        return f"stops at the patch: {fault.text}; {fault.remedy}"
    tap = meta_tap_of(wanted, snapshot, ip6=ip6)
    if tap is None:
        return f"stops on {meta.names.bridge}: {meta.names.tap} has no port number there"
    if slot == tap.keys.probe_number(version):
        key = tap.keys.probe_key(version)
    else:
        # Keys of this scheme do not depend on the endpoint.
        key = str(tap.keys.key_of(Endpoint(0), slot))
    service = str(path.address.service or tap.guest_ip)
    return MetaPath(meta, tap, tap.keys.label(slot), key, service)


def no_patch(wanted: facts.HostSettings, snapshot: Snapshot) -> str:
    """Return why the integration bridge has no patch port; empty: it needs none, or has it."""
    if wanted.meta is None:
        return ""
    fault = finding.first_fault(checks_switch.meta_patch(snapshot, wanted, wanted.meta))
    return f"{fault.text}; {fault.remedy}" if fault is not None else ""


def _elsewhere(trace: Trace, name: str, number: int, wanted: Mapping[str, str]) -> str:
    """Return why the packet does not leave at the right port as it should; empty: it does."""
    if not any(hop.outputs_to(number) for hop in trace.hops):
        return f"its flow does not lead to the port {name} ({number})"
    if "dl_vlan" in trace.final:
        return "it leaves with a VLAN tag"
    return differs(trace, wanted)


def _not_crossed(port: str, peer: str, bridge: str) -> str:
    """Return why a frame that is sent to a patch port does not reach *bridge*."""
    return (
        f"stops at the patch port {port}: what is sent there does not come out of {peer} on "
        f"{bridge}: `dfmeta doctor` (line meta-patch) shows the cause and the remedy"
    )
