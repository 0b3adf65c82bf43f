"""The paths of a SYN and of the SYN-ACK through the second bridge, described for trace. Pure.

``ofproto/trace`` follows a frame over the patch by itself, but prints the final packet of the first
bridge only. So the frame is traced on each bridge; see :mod:`dfmeta.doctor.trace_paths`.

An address that is not known yet has no flows. For it, the path of the daemon's own probe is traced,
which takes the flows that all addresses share.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from dfmeta.doctor.flow_diff import purpose_name
from dfmeta.doctor.trace_paths import (
    NOTATIONS,
    ROUTER_MAC,
    SOURCE_PORT,
    TTL,
    Leg,
    differs,
    dropped,
    not_classified,
    step,
    stranger,
)
from dfmeta.doctor.tracing import Trace, packet
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import METADATA_PORT, Layout, MetaPurpose, table_name
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.model import GuestAddress

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
            (MetaPurpose.META_SOURCE, f"of the Meta MAC {self.label}"),
            (MetaPurpose.META_TO_PROXY, f"to {self.service}"),
        )
        wanted = {
            "dl_dst": self.tap.mac,
            of.source: self.key,
            of.destination: self.tap.keys.gateway(self.version),
            "tp_dst": str(self.tap.port),
        }
        stop = not_classified(trace, MetaPurpose.META_FROM_PATCH, self.layout)
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
        stop = not_classified(trace, MetaPurpose.META_FROM_TAP, self.layout)
        stop = stop or self._astray(trace, ((MetaPurpose.META_REPLY, f"to {self.key}"),))
        stop = stop or self._elsewhere(trace, self.patch, wanted)
        return Leg(self._steps(trace), f"{BACK}on {self.bridge}: {stop}" if stop else "")

    def _steps(self, trace: Trace) -> tuple[str, ...]:
        return tuple(step(hop, self.layout) for hop in trace.hops)

    def _astray(self, trace: Trace, ways: tuple[tuple[MetaPurpose, str], ...]) -> str:
        """Return in which table the packet does not take the flow of its purpose; empty: none.

        :param ways: the purposes in the order of their tables, each with the flow's address.
        """
        for purpose, of in ways:
            stage = self.layout.pipeline.stage(purpose)
            name, hop = table_name(stage), trace.at(self.layout.number(stage))
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
