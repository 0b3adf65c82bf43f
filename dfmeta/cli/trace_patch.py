"""``dfmeta trace`` over the patch: the path through the second bridge, and back to the patch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dfmeta.doctor import checks_meta, meta_trace_paths
from dfmeta.doctor.facts import MetaSide, Settings
from dfmeta.doctor.finding import Finding, Status
from dfmeta.doctor.flow_diff import meta_tap_of
from dfmeta.doctor.meta_trace_paths import Beyond
from dfmeta.doctor.trace_paths import Leg
from dfmeta.doctor.tracing import Trace, parse
from dfmeta.flows.port_down import PortBits
from dfmeta.model import Endpoint, GuestAddress
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, run_folder


@dataclass(frozen=True, slots=True)
class Patch:
    """The patch between the bridges, and one path over it."""

    wanted: Settings
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
        wrong = next((finding for finding in self.findings if finding.status is Status.WRONG), None)
        if wrong is not None:
            yield Leg((), f"stops at the patch: {wrong.text}; {wrong.remedy}")
        if self.beyond is None:
            yield Leg((), f"stops on {names.bridge}: {names.tap} has no port number there")
            return
        if syn is not None:
            ends = names.patch_int, names.patch_meta
            yield Leg(
                (),
                meta_trace_paths.not_crossed(syn, port=ends[0], peer=ends[1], bridge=names.bridge),
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
        stop = meta_trace_paths.not_crossed(
            trace, port=ends[0], peer=ends[1], bridge=self.wanted.bridge
        )
        yield Leg((), f"{meta_trace_paths.BACK}{stop}" if stop else "")

    def answer(self, in_port: int) -> str:
        """Return the SYN-ACK as the integration bridge gets it; see :meth:`Beyond.answer`."""
        return self.beyond.answer(in_port) if self.beyond is not None else ""

    def _traced(self, bridge: str, packet: str) -> Trace:
        return parse(Vswitchd(run_folder(self.wanted.ovsdb)).trace(bridge, packet))


def of_way(
    wanted: Settings,
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


def missing(wanted: Settings, snapshot: Snapshot) -> str:
    """Return why the integration bridge has no patch port; empty: it needs none, or has it."""
    if wanted.meta is None:
        return ""
    findings = checks_meta.patch(snapshot, wanted, wanted.meta)
    wrong = next((finding for finding in findings if finding.status is Status.WRONG), None)
    return f"{wrong.text}; {wrong.remedy}" if wrong is not None else ""
