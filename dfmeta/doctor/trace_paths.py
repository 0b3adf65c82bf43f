"""The paths of a guest's SYN and of the SYN-ACK through the bridges, judged for trace. Pure.

Over IPv6, a guest asks for the service's MAC first (neighbour discovery, RFC 4861). Over IPv4, it
may ask for the MAC of a guest next hop. Only numbers that dfmeta itself set (cookies, ports) are
judged. A stop is a sentence that names the place and the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from dfmeta.doctor import checks_switch
from dfmeta.doctor.facts import HostSettings, KnownPort, MetaSide
from dfmeta.doctor.finding import first_fault
from dfmeta.doctor.flow_diff import meta_tap_of, purpose_name
from dfmeta.doctor.trace_output import (
    NOTATIONS,
    ROUTER_MAC,
    SOURCE_PORT,
    Hop,
    Trace,
    service_of,
    tcp,
    vlan_tag,
)
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import METADATA_PORT, TABLES, Layout, Purpose, Stage, table_of
from dfmeta.flows.port_down import PortBits
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import Endpoint, GuestAddress, NextHop, PortKind, PortState
from dfmeta.ovsdb.rows import Snapshot

BACK: Final = "on the return path: "
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


def next_hop(trace: Trace, port: KnownPort, *, hop: NextHop, tap: Tap, layout: Layout) -> Leg:
    """Judge the path of a request for a guest next hop's MAC, and of the answer to the guest.

    A guest without a route through that next hop does not need the answer.
    """
    wanted = {"arp_spa": hop.ip, "arp_sha": hop.mac or tap.mac, **vlan_tag(port)}
    stop = (
        not_classified(trace, Purpose.GUEST_NEXT_HOP, layout)
        or _not_returned(trace, Purpose.GUEST_NEXT_HOP, port)
        or differs(trace, wanted)
    )
    return _leg(trace, layout, stop, on=f"guest next hop {hop.ip}: ")


def neighbour(
    trace: Trace, port: KnownPort, address: GuestAddress, *, tap: Tap, layout: Layout
) -> Leg:
    """Judge the path of the solicitation, and of the advertisement back to the guest."""
    target = service_of(address, tap)
    answering = [(of, f" for {target}") for of in (Purpose.GUEST_ND_ANSWER, Purpose.SERVICE_ND)]
    wanted = {"dl_dst": address.mac, "ipv6_src": target, "nd_tll": tap.mac, **vlan_tag(port)}
    stop = (
        not_classified(trace, Purpose.GUEST_ND, layout)
        or _missed(trace, answering, port=port.name, layout=layout)
        or _not_returned(trace, Purpose.SERVICE_ND, port)
        or differs(trace, wanted)
    )
    return _leg(trace, layout, stop, on="neighbour discovery: ")


def _not_returned(trace: Trace, purpose: Purpose, port: KnownPort) -> str:
    """Return why the flow of *purpose* does not answer at the ingress port; empty: it does."""
    if any(hop.purpose is purpose and _RETURNED in hop.actions for hop in trace.hops):
        return ""
    return f"the answer does not leave at {port.name}"


def there(
    trace: Trace,
    port: KnownPort,
    address: GuestAddress,
    *,
    tap: Tap,
    layout: Layout,
    label: str | None = None,
) -> Leg:
    """Judge the path of the SYN to tap-metadata, or to the patch port of a second bridge.

    :param label: Meta MAC of its address; None: there is no second bridge.
    """
    stop, to_controller = not_classified(trace, Purpose.GUEST_SYN, layout), False
    hop = trace.at(layout.number(Stage.SERVICE))
    stops = f"stops in the {TABLES[Stage.SERVICE].name} table: "
    if stop:
        pass
    elif hop is None:
        stop = f"stops before the {TABLES[Stage.SERVICE].name} table: {dropped(port.name)}"
    elif not hop.matched:
        stop = f"{stops}no flow matches it"
    elif port.vid and (tagged := _not_untagged(trace, hop, port, layout)):
        stop = tagged
    elif hop.purpose is Purpose.ADDRESS:
        last = trace.at(layout.number(Stage.SUBPORT)) if port.vid else hop
        stop = _misdirected(last or hop, trace, tap, address.ip.version, label)
    elif hop.purpose is Purpose.SYN:
        to_controller = True
        if port.state is PortState.NO_INSTANCE:
            stop = f"{stops}{no_instance(port)}"
    elif hop.purpose is Purpose.SERVICE_DROP:
        stop = f"{stops}the port's first-SYN flow is missing"
    else:
        stop = f"{stops}{stranger(hop)} takes it"
    return replace(_leg(trace, layout, stop), to_controller=to_controller)


def _not_untagged(trace: Trace, hop: Hop, port: KnownPort, layout: Layout) -> str:
    """Return why a frame of a tagged subport does not pass the subport table; empty if it does.

    :param hop: its flow in the service table.
    """
    wanted = {Purpose.ADDRESS: Purpose.SUBPORT_PROXY, Purpose.SYN: Purpose.SUBPORT_SYN}
    if hop.purpose is None or hop.purpose not in wanted:
        return ""
    if trace.at(layout.number(Stage.SUBPORT)) is None:
        name = TABLES[Stage.SUBPORT].name
        return f"stops before the {name} table: {stranger(hop)} does not lead there"
    return _missed(trace, [(wanted[hop.purpose], "")], port=port.name, layout=layout)


def _misdirected(hop: Hop, trace: Trace, tap: Tap, version: int, label: str | None) -> str:
    if not hop.outputs_to(tap.ofport):
        where = "tap-metadata's" if label is None else "the patch"
        return f"its flow does not lead to {where} port ({tap.ofport})"
    if label is not None:
        return differs(trace, {"dl_src": label})
    wanted = {"dl_dst": tap.mac, NOTATIONS[version].destination: tap.service(version).ip}
    return differs(trace, wanted | {"tp_dst": str(tap.port)})


def after_syn(trace: Trace, layout: Layout) -> str:
    """Return why packets after the SYN, which take another flow, miss the service table."""
    stop = not_classified(trace, Purpose.GUEST_HTTP, layout)
    return f"after the SYN: {stop}" if stop else ""


def back(
    trace: Trace, port: KnownPort, *, address: GuestAddress | None, tap: Tap, layout: Layout
) -> Leg:
    """Judge the path of the SYN-ACK back to the guest.

    :param address: None if no address is known yet: then the SYN-ACK only has to reach the reply
        table, where the controller installs the address' flow.
    """
    stop, hop = (
        not_classified(trace, Purpose.FROM_TAP, layout),
        trace.at(layout.number(Stage.REPLY)),
    )
    name = TABLES[Stage.REPLY].name
    if stop:
        pass
    elif hop is None:
        stop = f"stops before the {name} table: {dropped('tap-metadata')}"
    elif not hop.ours:
        stop = f"stops in the {name} table: no flow matches it"
    elif address is None:
        pass
    elif hop.purpose is not Purpose.REPLY:
        stop = f"stops in the {name} table: there is no reply flow for its key"
    elif not hop.outputs_to(port.ofport or 0):
        stop = f"it does not leave at {port.name} (ofport {port.ofport})"
    else:
        of = NOTATIONS[address.ip.version]
        wanted = {
            of.destination: str(address.ip),
            "dl_dst": address.mac,
            of.source: service_of(address, tap),
            "tp_src": str(METADATA_PORT),
        }
        stop = differs(trace, {**wanted, **vlan_tag(port)})
    return _leg(trace, layout, stop, on=BACK)


def no_instance(port: KnownPort) -> str:
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

    meta: MetaSide
    tap: MetaTap
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
        stop = (
            ""
            if syn is None
            else _not_crossed(syn, names.patch_int, names.patch_meta, names.bridge)
        )
        packet = tcp(
            f"in_port={self.tap.patch}",
            macs=(self.label, ROUTER_MAC),
            ips=(address.ip, self.service),
            ports=(SOURCE_PORT, METADATA_PORT),
            flags="syn",
        )
        return Leg((), stop) if stop else self.arrival(run(names.bridge, packet).on(names.bridge))

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
        stop = leg.stop or _not_crossed(trace, names.patch_meta, names.patch_int, bridge, on=BACK)
        return replace(leg, stop=stop)

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
    wanted: HostSettings,
    snapshot: Snapshot,
    *,
    bits: Mapping[str, Mapping[int, PortBits]],
    slot: int,
    address: GuestAddress,
    ip6: tuple[str, ...],
) -> MetaPath | str | None:
    """Return the path of the address with *slot* over the patch, or why there is none.

    :param bits: see :func:`~dfmeta.doctor.checks_switch.meta_patch`.
    :param slot: the slot of the address, or that of the daemon's own probe.
    :param ip6: the IPv6 addresses at which guests are served.
    :return: None: there is no second bridge.
    """
    meta = wanted.meta
    if meta is None:
        return None
    findings = (
        checks_switch.meta_bridge(snapshot, wanted, meta),
        *checks_switch.meta_patch(snapshot, wanted, meta, bits),
    )
    if (fault := first_fault(findings)) is not None:
        return f"stops at the patch: {fault.text}; {fault.remedy}"
    tap = meta_tap_of(wanted, snapshot, ip6=ip6)
    if tap is None:
        return f"stops on {meta.names.bridge}: {meta.names.tap} has no port number there"
    version = address.ip.version
    if slot == tap.keys.probe_number(version):
        key = tap.keys.probe_key(version)
    else:
        # Keys of this scheme do not depend on the endpoint.
        key = str(tap.keys.key_of(Endpoint(0), slot))
    return MetaPath(meta, tap, tap.keys.label(slot), key, str(address.service or tap.guest_ip))


def no_patch(wanted: HostSettings, snapshot: Snapshot) -> str:
    """Return why the integration bridge has no patch port; empty: it needs none, or has it."""
    if wanted.meta is None:
        return ""
    fault = first_fault(checks_switch.meta_patch(snapshot, wanted, wanted.meta))
    return f"{fault.text}; {fault.remedy}" if fault is not None else ""


def _elsewhere(trace: Trace, name: str, number: int, wanted: Mapping[str, str]) -> str:
    """Return why the packet does not leave at the right port as it should; empty: it does."""
    if not any(hop.outputs_to(number) for hop in trace.hops):
        return f"its flow does not lead to the port {name} ({number})"
    if "dl_vlan" in trace.final:
        return "it leaves with a VLAN tag"
    return differs(trace, wanted)


def _not_crossed(trace: Trace, port: str, peer: str, bridge: str, *, on: str = "") -> str:
    """Return why a frame that is sent to a patch port does not reach *bridge*; empty: it does.

    :param trace: the trace of the frame on its first bridge.
    :param port: name of the patch port.
    :param peer: its peer on *bridge*.
    :param on: the beginning of the text.
    """
    if trace.on(bridge).hops:
        return ""
    return (
        f"{on}stops at the patch port {port}: what is sent there does not come out of {peer} on "
        f"{bridge}: `dfmeta doctor` (line meta-patch) shows the cause and the remedy"
    )
