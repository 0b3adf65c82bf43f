"""The paths of a SYN and of the SYN-ACK through the second bridge, described for trace.

``ofproto/trace`` follows a frame over the patch by itself, but prints the final packet of the first
bridge only. So the frame is traced on each bridge; see :mod:`dfmeta.doctor.trace_paths`.

An address that is not known yet has no flows. For it, the path of the daemon's own probe is traced,
which takes the flows that all addresses share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from dfmeta.apps.switch_ports import PortBits
from dfmeta.doctor import checks_meta
from dfmeta.doctor.facts import HostSettings, MetaSide
from dfmeta.doctor.finding import Finding, first_fault
from dfmeta.doctor.flow_diff import meta_tap_of, purpose_name
from dfmeta.doctor.trace_paths import (
    NOTATIONS,
    ROUTER_MAC,
    SOURCE_PORT,
    TTL,
    Leg,
    Trace,
    differs,
    dropped,
    not_classified,
    packet,
    parse,
    step,
    stranger,
)
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import METADATA_PORT, Layout, Purpose, table_of
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import Endpoint, GuestAddress
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, run_folder

BACK: Final = "on the return path: "


@dataclass(frozen=True, slots=True)
class Beyond:
    """The second bridge, as one path goes through it."""

    bridge: str
    tap: MetaTap
    layout: Layout
    patch: str
    """Name of its patch port."""
    label: str
    """Meta MAC of the path."""
    key: str
    """Meta IP of the path."""
    service: str
    """Address of the service that the path leads to."""

    @property
    def version(self) -> int:
        """Version of IP."""
        return ip_address(self.key).version

    def syn(self, address: GuestAddress) -> str:
        """Return the SYN as it comes over the patch, for ``ofproto/trace`` on this bridge."""
        of = NOTATIONS[self.version]
        return packet(
            of.tcp,
            in_port=self.tap.patch,
            dl_src=self.label,
            dl_dst=ROUTER_MAC,
            **{of.source: address.ip, of.destination: self.service},
            nw_ttl=TTL,
            tcp_src=SOURCE_PORT,
            tcp_dst=METADATA_PORT,
            tcp_flags="syn",
        )

    def syn_ack(self) -> str:
        """Return the proxy's SYN-ACK, for ``ofproto/trace`` on this bridge."""
        of = NOTATIONS[self.version]
        return packet(
            of.tcp,
            in_port=self.tap.ofport,
            dl_src=self.tap.mac,
            dl_dst=NEXT_HOP_MAC,
            **{of.source: self.tap.keys.gateway(self.version), of.destination: self.key},
            nw_ttl=TTL,
            tcp_src=self.tap.port,
            tcp_dst=SOURCE_PORT,
            tcp_flags="syn|ack",
        )

    def answer(self, in_port: int) -> str:
        """Return the SYN-ACK as it comes over the patch, for the integration bridge.

        :param in_port: its patch port.
        """
        of = NOTATIONS[self.version]
        return packet(
            of.tcp,
            in_port=in_port,
            dl_src=self.tap.mac,
            dl_dst=self.label,
            **{of.source: self.service, of.destination: self.key},
            nw_ttl=TTL,
            tcp_src=METADATA_PORT,
            tcp_dst=SOURCE_PORT,
            tcp_flags="syn|ack",
        )

    def there(self, trace: Trace) -> Leg:
        """Judge the path of :meth:`syn` to tap-meta."""
        of = NOTATIONS[self.version]
        ways = (
            (Purpose.META_SOURCE, f"of the Meta MAC {self.label}"),
            (Purpose.META_TO_PROXY, f"to {self.service}"),
        )
        wanted = {
            "dl_dst": self.tap.mac,
            of.source: self.key,
            of.destination: self.tap.keys.gateway(self.version),
            "tp_dst": str(self.tap.port),
        }
        stop = not_classified(trace, Purpose.META_FROM_PATCH, self.layout)
        stop = stop or self._astray(trace, ways) or self._elsewhere(trace, "tap-meta", wanted)
        return Leg(self._steps(trace), f"on {self.bridge}: {stop}" if stop else "")

    def back(self, trace: Trace) -> Leg:
        """Judge the path of :meth:`syn_ack` to the patch."""
        of = NOTATIONS[self.version]
        wanted = {
            "dl_dst": self.label,
            of.source: self.service,
            "tp_src": str(METADATA_PORT),
        }
        stop = not_classified(trace, Purpose.META_FROM_TAP, self.layout)
        stop = stop or self._astray(trace, ((Purpose.META_REPLY, f"to {self.key}"),))
        stop = stop or self._elsewhere(trace, self.patch, wanted)
        return Leg(self._steps(trace), f"{BACK}on {self.bridge}: {stop}" if stop else "")

    def _steps(self, trace: Trace) -> tuple[str, ...]:
        return tuple(step(hop, self.layout) for hop in trace.hops)

    def _astray(self, trace: Trace, ways: tuple[tuple[Purpose, str], ...]) -> str:
        """Return in which table the packet does not take the flow of its purpose; empty: none.

        :param ways: the purposes in the order of their tables, each with the flow's address.
        """
        for purpose, of in ways:
            stage = purpose.stage
            name, hop = table_of(stage).name, trace.at(self.layout.number(stage))
            missing = f"the {purpose_name(purpose)} flow {of} is missing"
            if hop is None:
                return f"stops before the {name} table: {dropped(self.patch)}"
            if not hop.matched:
                return f"stops in the {name} table: {missing}"
            if hop.purpose is not purpose:
                return f"stops in the {name} table: {missing}, {stranger(hop)} takes it"
        return ""

    def _elsewhere(self, trace: Trace, name: str, wanted: dict[str, str]) -> str:
        """Return why the packet does not leave at the right port as it should; empty: it does."""
        number = self.tap.patch if name == self.patch else self.tap.ofport
        if not any(hop.outputs_to(number) for hop in trace.hops):
            return f"its flow does not lead to the port {name} ({number})"
        if "dl_vlan" in trace.final:
            return "it leaves with a VLAN tag"
        return differs(trace, wanted)


def not_crossed(trace: Trace, *, port: str, peer: str, bridge: str) -> str:
    """Return why a frame that is sent to a patch port does not reach the other bridge.

    :param trace: the trace of the frame on its first bridge.
    :param port: name of the patch port.
    :param peer: its peer on *bridge*.
    :return: empty if it reaches *bridge*.
    """
    if trace.on(bridge).hops:
        return ""
    return (
        f"stops at the patch port {port}: what is sent there does not come out of {peer} on "
        f"{bridge}: `dfmeta doctor` (line meta-patch) shows the cause and the remedy"
    )


@dataclass(frozen=True, slots=True)
class Patch:
    """The patch between the bridges, and one path over it."""

    wanted: HostSettings
    meta: MetaSide
    findings: tuple[Finding, ...]
    """Doctor's findings about the bridge and the patch."""
    beyond: Beyond | None
    """None while a port of the second bridge is missing."""

    def there(self, address: GuestAddress, syn: Trace | None) -> Iterator[Leg]:
        """Yield the path of the SYN from the patch to tap-meta; a leg with a stop ends it.

        :param syn: the SYN's path through the integration bridge, if it is sent to the patch.
        """
        names = self.meta.names
        wrong = first_fault(self.findings)
        if wrong is not None:
            yield Leg((), f"stops at the patch: {wrong.text}; {wrong.remedy}")
        if self.beyond is None:
            yield Leg((), f"stops on {names.bridge}: {names.tap} has no port number there")
            return
        if syn is not None:
            ends = names.patch_int, names.patch_meta
            yield Leg(
                (),
                not_crossed(syn, port=ends[0], peer=ends[1], bridge=names.bridge),
            )
        trace = self._traced(self.meta.names.bridge, self.beyond.syn(address))
        yield self.beyond.there(trace.on(self.meta.names.bridge))

    def back(self) -> Iterator[Leg]:
        """Yield the path of the SYN-ACK from tap-meta to the patch, and over it."""
        if self.beyond is None:
            return
        names = self.meta.names
        trace = self._traced(names.bridge, self.beyond.syn_ack())
        yield self.beyond.back(trace.on(names.bridge))
        ends = names.patch_meta, names.patch_int
        stop = not_crossed(trace, port=ends[0], peer=ends[1], bridge=self.wanted.bridge)
        yield Leg((), f"{BACK}{stop}" if stop else "")

    def answer(self, in_port: int) -> str:
        """Return the SYN-ACK as the integration bridge gets it; see :meth:`Beyond.answer`."""
        return self.beyond.answer(in_port) if self.beyond is not None else ""

    def _traced(self, bridge: str, packet: str) -> Trace:
        return parse(Vswitchd(run_folder(self.wanted.ovsdb)).trace(bridge, packet))


def of_way(
    wanted: HostSettings,
    snapshot: Snapshot,
    *,
    bits: Mapping[str, Mapping[int, PortBits]],
    slot: int,
    address: GuestAddress,
    ip6: tuple[str, ...],
) -> Patch | None:
    """Return the patch and the path of the address with *slot* over it.

    :param bits: see :func:`~dfmeta.doctor.checks_meta.patch`.
    :param slot: the slot of the address, or that of the daemon's own probe.
    :param ip6: the IPv6 addresses at which guests are served.
    :return: None: there is no second bridge.
    """
    meta = wanted.meta
    if meta is None:
        return None
    findings = (
        checks_meta.bridge(snapshot, wanted, meta),
        *checks_meta.patch(snapshot, wanted, meta, bits),
    )
    tap = meta_tap_of(wanted, snapshot, ip6=ip6)
    beyond = None
    if tap is not None:
        version = address.ip.version
        is_probe = slot == tap.keys.probe_number(version)
        key = tap.keys.probe_key(version)
        if not is_probe:
            # Keys of this scheme do not depend on the endpoint.
            key = str(tap.keys.key_of(Endpoint(0), slot))
        beyond = Beyond(
            bridge=meta.names.bridge,
            tap=tap,
            layout=meta.layout,
            patch=meta.names.patch_meta,
            label=tap.keys.label(slot),
            key=key,
            service=str(address.service or tap.guest_ip),
        )
    return Patch(wanted, meta, findings, beyond)


def missing(wanted: HostSettings, snapshot: Snapshot) -> str:
    """Return why the integration bridge has no patch port; empty: it needs none, or has it."""
    if wanted.meta is None:
        return ""
    findings = checks_meta.patch(snapshot, wanted, wanted.meta)
    wrong = first_fault(findings)
    return f"{wrong.text}; {wrong.remedy}" if wrong is not None else ""
