"""The daemon's own SYN to the proxy: out of the switch to tap-metadata, and its answer back.

The segment takes the same path through the host as guests' frames: the packet filters of all
hooks, rp_filter, the listener and its socket filter, and for the answer the rules, the route and
the neighbour. A separate flow (:attr:`~dfmeta.flows.pipeline.Purpose.PROBE`) sends the answer to
the controller. No connection is established: the answer is reset.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from os_ken.lib.packet.tcp import TCP_ACK, TCP_RST, TCP_SYN
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import errors, model, packets
from dfmeta.apps.channel import Channel
from dfmeta.flows import integration_bridge, pipeline
from dfmeta.flows.openflow import Output
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.clock import CHECK_INTERVAL

LOG = logging.getLogger(__name__)

TIMEOUT: Final = 2.0
"""Seconds that an answer may take; the SYN is sent again after half of them."""
INTERVAL: Final = 10.0
"""Seconds between two probes while probes are answered; else one takes place at each check."""
FAILURES: Final = 2
"""Number of consecutive probes without an answer after which the path counts as interrupted."""
_LOWEST_PORT: Final = 32768
_PORTS: Final = 28232

Pause = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Result:
    """How a probe ended."""

    answered: bool
    sent: bool = True
    """Whether the SYN was sent: the switch was connected and tap-metadata existed."""
    cause: str = ""
    """Reason in words why the probe was not answered; empty when it was."""
    seconds: float = 0.0
    """Time from the SYN to its answer."""
    whole: bool = True
    """Whether the answer's TCP checksum was right: a guest drops a segment with a wrong one."""


class Probe:
    """Sends a SYN to tap-metadata, and waits for the answer of the proxy's listener.

    :param tap: returns the port and the address of the proxy; None while they are not known.
    :param version: version of IP, 4 or 6.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        channel: Channel,
        tap: Callable[[], integration_bridge.Tap | None],
        *,
        version: int = 4,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._channel = channel
        self._tap = tap
        self._version = version
        self._clock = clock
        self._awaited: tuple[packets.Segment, integration_bridge.Tap, threads.Event] | None = None
        """SYN of the probe under way, its tap, and the event for its answer."""
        self._shared: threads.Event | None = None
        """The result of the probe under way, for all callers of :meth:`ask` meanwhile."""
        self.last: Result | None = None
        """Result of the latest probe that was sent."""
        self.passes = False
        """Whether the path works, according to the latest probes; False before the first one."""
        self._proved = False
        """Whether any probe has been answered."""
        self.answered = False
        """Whether a probe has been answered on this connection to the switch."""
        self._failures = 0
        self._ended_at = float("-inf")

    def ask(self, timeout: float = TIMEOUT) -> Result:
        """Send a probe and wait; simultaneous callers share one probe and its result.

        :param timeout: seconds; see :func:`dfmeta.runtime.hub.wait`.
        """
        if self._shared is not None:
            shared: Result = self._shared.wait()
            return shared
        self._shared = threads.Event()
        result = Result(answered=False, sent=False, cause="dfmeta-agent could not send it")
        try:
            result = self._try(timeout)
        except errors.DfmetaError as error:
            result = Result(answered=False, sent=False, cause=str(error))
        finally:
            event, self._shared = self._shared, None
            self._note(result)
            event.send(result)
        return result

    def report(self) -> dict[str, Any]:
        """Send a probe, and return its result as values for JSON."""
        result = self.ask()
        return {
            "sent": result.sent,
            "answered": result.answered,
            "cause": result.cause,
            "seconds": round(result.seconds, 6),
            "whole_checksum": result.whole,
        }

    @property
    def bridge(self) -> str:
        """The name of the bridge that sends the SYN."""
        return self._channel.bridge

    def reconnected(self) -> None:
        """Note a new connection to the switch, which may be another process: probe it at once."""
        self.answered, self._ended_at = False, float("-inf")

    def fault(self) -> str:
        """Return why guests' SYNs do not reach the proxy, according to the latest probe."""
        cause = self.last.cause if self.last is not None else "no probe has ended yet"
        return f"guests' SYNs do not reach the proxy: {cause}; run `dfmeta doctor`"

    def packet_in(self, frame: bytes) -> None:
        """Take a packet-in from the probe's flow. Never waits."""
        try:
            segment, whole = packets.parse_segment(frame)
        except errors.PacketError as error:
            LOG.debug("The answer to a probe cannot be read: %s", error)
            return
        if self._awaited is None:
            return
        syn, tap, event = self._awaited
        # The probe's sequence number is random: no other program of the host can know it.
        expected = syn.source_port, syn.sequence + 1 & 0xFFFFFFFF
        if event.ready() or (segment.destination_port, segment.acknowledgement) != expected:
            return
        event.send((segment.flags, whole))
        if not segment.flags & TCP_RST:
            # So no half-open connection stays in the listener's queue.
            self._send(
                packets.Segment(
                    segment.destination,
                    segment.source,
                    segment.destination_port,
                    segment.source_port,
                    segment.acknowledgement,
                    0,
                    TCP_RST,
                ),
                tap,
            )

    def run(self, ready: Callable[[], bool], pause: Pause = threads.sleep) -> None:
        """Probe periodically and without end; run this in a separate thread.

        :param ready: returns whether the flows are confirmed and the proxy listens; no probe is
            sent before that.
        """
        while True:
            due = self._ended_at + (CHECK_INTERVAL if self._failures else INTERVAL)
            left = due - self._clock()
            if left <= 0 and ready():
                self.ask()
            # The pause is short: a failure in another caller's probe makes the next one due sooner.
            pause(min(max(left, CHECK_INTERVAL / 4), CHECK_INTERVAL))

    def _note(self, result: Result) -> None:
        passed, self._ended_at = self.passes, self._clock()
        if not result.sent:
            # This shows nothing about the host; readiness names the missing part.
            return
        self.last = result
        self._failures = 0 if result.answered else self._failures + 1
        self.answered |= result.answered
        self._proved |= result.answered
        # While no flow of the bridge's owner leads to the classification table, a missing answer
        # proves nothing.
        unknown = bool(self._channel.layout.classification_table) and not self._proved
        self.passes = result.answered or unknown or (passed and self._failures < FAILURES)

    def _try(self, timeout: float) -> Result:
        tap = self._tap()
        if tap is None:
            return Result(answered=False, sent=False, cause="tap-metadata is not in place")
        service = tap.service(self._version)
        if not service.guest_ips:
            return Result(answered=False, sent=False, cause="guests are not served over IPv6")
        # A second bridge translates the address of the service to that of the listener.
        ip, to_port = service.ip, tap.port
        if tap.keys.probe_label(self._version) is not None:
            ip, to_port = service.guest_ips[0], pipeline.METADATA_PORT
        syn = packets.Segment(
            ip_address(tap.keys.probe_key(self._version)),
            ip_address(ip),
            _LOWEST_PORT + secrets.randbelow(_PORTS),
            to_port,
            secrets.randbits(32),
            0,
            TCP_SYN,
        )
        event = threads.Event()
        self._awaited = syn, tap, event
        begun = self._clock()
        try:
            answer = None
            for _ in range(2):
                self._send(syn, tap)
                if hub.wait(event, timeout / 2):
                    answer = event.wait()
                    break
        finally:
            self._awaited = None
        seconds = self._clock() - begun
        where = model.HttpHost(service.ip, tap.port).authority
        if answer is None:
            return Result(
                answered=False,
                cause=f"the host does not answer a SYN to {where} on tap-metadata: a packet "
                f"filter, rp_filter or the return path drops it{self._or_no_lead()}",
                seconds=seconds,
            )
        flags, whole = answer
        if flags & TCP_RST or flags & (TCP_SYN | TCP_ACK) != TCP_SYN | TCP_ACK:
            return Result(
                answered=False,
                cause=f"the host refuses a SYN to {where} on tap-metadata: no program listens "
                "there, or a packet filter rejects it",
                seconds=seconds,
            )
        return Result(answered=True, seconds=seconds, whole=whole)

    def _send(self, segment: packets.Segment, tap: integration_bridge.Tap) -> None:
        label = tap.keys.probe_label(self._version)
        source = label if label is not None else NEXT_HOP_MAC
        frame = packets.write_segment(segment, source_mac=source, destination_mac=tap.mac)
        wire = self._channel.wire
        self._channel.post([wire.packet_out(ofp.OFPP_CONTROLLER, (Output(tap.ofport),), frame)])

    def _or_no_lead(self) -> str:
        table = self._channel.layout.classification_table
        return f", or no flow leads to the classification table {table}" if table else ""
