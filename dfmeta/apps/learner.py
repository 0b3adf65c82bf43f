"""Packet-ins: first SYNs, and the solicitations that no flow can answer.

An address gets a slot at its first SYN, then its flows, and only then is the SYN sent on. A SYN is
held while the instance of its port is unknown or the number of the port is in doubt. The contents
of a frame are under the guest's control; only the in_port that the switch reports identifies the
guest.
"""

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from dfmeta import errors, metrics
from dfmeta.apps.reconciler import Reconciler
from dfmeta.flows import integration_bridge, openflow
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import Learned
from dfmeta.model import Endpoint, GuestAddress
from dfmeta.packets import Solicitation, Syn, parse_solicitation, parse_syn, write_advertisement
from dfmeta.runtime import clock, threads
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)
P = TypeVar("P", Syn, Solicitation)

HELD_PER_PORT = 4
HELD_IN_ALL = 1024
SETTLE = 0.05
"""Seconds that a SYN waits when its slot belonged to another address a moment ago.

A barrier reply means that the tables have changed. Until ovs-vswitchd has revalidated its cache,
the answer still goes to the previous address, and the guest gets none until the SYN-ACK is repeated
a second later (observed for one such connection in six).
"""


_Connection = tuple[Endpoint, GuestAddress, int]
"""A guest's end of a connection: endpoint, addresses and source port."""


@dataclass(frozen=True, slots=True)
class HeldSyn:
    """A SYN that is held until its port's instance is known."""

    endpoint: Endpoint
    syn: Syn
    frame: bytes
    since: float
    vm: str = ""
    """See :attr:`~dfmeta.model.Port.vm`."""


class Holds:
    """The held SYNs: the newest of each connection, limited for each port and in total.

    When there are too many in all, the virtual machine with most, its containers included, loses
    its oldest: those of others stay.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[_Connection, HeldSyn] = OrderedDict()
        self._of: dict[Endpoint, dict[_Connection, None]] = {}
        """Endpoint → its connections with a held SYN, the oldest first."""

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: HeldSyn) -> None:
        """Hold a SYN; a repeated SYN replaces the earlier one and keeps its waiting time."""
        key = (held.endpoint, held.syn.address, held.syn.source_port)
        before = self._held.get(key)
        if before is not None:
            self._drop(key)
            held = replace(held, since=before.since)
        keys = self._of.get(held.endpoint, {})
        if len(keys) >= HELD_PER_PORT:
            self._drop(next(iter(keys)))
        elif len(self._held) >= HELD_IN_ALL:
            ((most, _count),) = Counter(each.vm for each in self._held.values()).most_common(1)
            self._drop(next(key for key, each in self._held.items() if each.vm == most))
        self._held[key] = held
        self._of.setdefault(held.endpoint, {})[key] = None

    def take(self, endpoint: Endpoint) -> list[HeldSyn]:
        """Return the held SYNs of *endpoint*, and remove them."""
        return [self._drop(key) for key in list(self._of.get(endpoint, ()))]

    def endpoints(self) -> set[Endpoint]:
        """Return the endpoints that have held SYNs."""
        return set(self._of)

    def expire(self, before: float) -> int:
        """Drop the SYNs that are held since a time earlier than *before*; return how many."""
        stale = [key for key, held in self._held.items() if held.since < before]
        for key in stale:
            self._drop(key)
        return len(stale)

    def _drop(self, key: _Connection) -> HeldSyn:
        held = self._held.pop(key)
        del self._of[held.endpoint][key]
        if not self._of[held.endpoint]:
            del self._of[held.endpoint]
        return held


class Learner:
    """Answers the switch's packet-ins.

    :param hold_timeout: seconds that a SYN, and then its request, may wait in all.
    :param admit: counts a first packet of an endpoint; returns False when the guest floods.
    :param meta: installs the flows behind the patch to a second bridge; None: there is none.
    :param informed: waits until every worker has received the registry's latest changes.
    :param clock: monotonic seconds.
    :param pause: sleeps for that many seconds, so that other threads run.
    """

    def __init__(
        self,
        registry: Registry,
        reconciler: Reconciler,
        *,
        hold_timeout: float,
        admit: Callable[[Endpoint], bool] = lambda _endpoint: True,
        meta: Reconciler | None = None,
        informed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = clock.now,
        pause: Callable[[float], object] = threads.sleep,
    ) -> None:
        self.registry = registry
        self.reconciler = reconciler
        self._meta = meta
        self.holds = Holds()
        self.hold_timeout = hold_timeout
        self._admit = admit
        self._informed = informed
        self._clock = clock
        self._pause = pause

    def packet_in(self, ofport: int, frame: bytes) -> None:
        """Process a SYN that came in at *ofport*. Never waits.

        If the flows of its address are already being installed, the SYN is sent on after the same
        confirmation.
        """
        syn = self._admitted(parse_syn, ofport, frame)
        if syn is None:
            return
        endpoint = Endpoint(ofport, syn.vid)
        guest = self.registry.guest(endpoint)
        if guest is not None and guest.identity is not None and syn.opens:
            guest.first_syns += 1
        if not self._is_source(syn.address):
            LOG.debug("A SYN from ofport %d has the source %s", ofport, syn.address.ip)
            metrics.PACKET_INS.labels("malformed").inc()
        elif not self._may_learn(endpoint):
            # Only a SYN is held: the guest repeats all other segments for longer.
            if syn.opens:
                self._hold(endpoint, syn, frame)
        else:
            self._learn(endpoint, syn, frame)

    def answer_solicitation(self, ofport: int, frame: bytes) -> None:
        """Answer a neighbour solicitation that came in at *ofport*, on that port. Never waits.

        A flow turns the option with the sender's MAC into the option with the target's. Only a
        solicitation without it comes here, which is rare (RFC 4861, 7.2.2, allows it for unicast
        solicitations). It counts as a first packet.

        Trust: a guest wrote the frame. The answer contains its own addresses and tap-metadata's.
        """
        solicitation, tap = self._admitted(parse_solicitation, ofport, frame), self.reconciler.tap
        if solicitation is None or tap is None:
            return
        if str(solicitation.target) in tap.guest_ip6:
            metrics.PACKET_INS.labels("solicitation").inc()
            advertisement = write_advertisement(solicitation, tap.mac)
            try:
                self._send(ofport, (openflow.Output(openflow.PORT_IN_PORT),), advertisement)
            except errors.DfmetaError as error:
                LOG.info("A solicitation at ofport %d was not answered: %s", ofport, error)

    def _admitted(self, parse: Callable[[bytes], P], ofport: int, frame: bytes) -> P | None:
        """Parse a frame; None when it is malformed, its guest floods, or its port was removed."""
        try:
            packet = parse(frame)
        except errors.PacketError as error:
            LOG.debug("A frame from ofport %d is malformed: %s", ofport, error)
            metrics.PACKET_INS.labels("malformed").inc()
            return None
        endpoint = Endpoint(ofport, packet.vid)
        if not self._admit(endpoint):
            return None
        if self.registry.guest(endpoint) is None:
            metrics.PACKET_INS.labels("unknown_port").inc()
            return None
        return packet

    def release(self, endpoint: Endpoint) -> None:
        """Send on the held SYNs of *endpoint* if its instance is certain now."""
        if not len(self.holds) or not self._may_learn(endpoint):
            return
        now = self._clock()
        for held in self.holds.take(endpoint):
            waited = now - held.since
            if waited < self.hold_timeout:
                self.registry.note_wait(endpoint, held.syn.source_port, waited)
                self._learn(endpoint, held.syn, held.frame)
        metrics.HELD_SYNS.set(len(self.holds))

    def release_all(self) -> None:
        """Send on the SYNs that were held until the first reconcile had adopted the addresses."""
        turns = Turns()
        for endpoint in self.holds.endpoints():
            self.release(endpoint)
            turns.give_way()

    def expire(self) -> None:
        """Drop SYNs that have waited longer than the hold timeout; called periodically."""
        gone = self.holds.expire(self._clock() - self.hold_timeout)
        if gone:
            LOG.info(
                "Dropped %d held SYNs: hold_timeout passed before the instance and the number of "
                "their port were known",
                gone,
            )
        metrics.HELD_SYNS.set(len(self.holds))

    def _is_source(self, address: GuestAddress) -> bool:
        """Return whether a guest's own IPv6 address may be *address*, for a service that exists.

        A key or an address of the service as a source would be the host's own on the way back.
        """
        tap = self.reconciler.tap
        if address.service is None or tap is None:
            return True
        is_hosts = tap.keys.covers(address.ip) or str(address.ip) in (tap.ip6, *tap.guest_ip6)
        return not is_hosts and str(address.service) in tap.guest_ip6

    def _may_learn(self, endpoint: Endpoint) -> bool:
        # Before the adoption, an address that already has a slot would get a second one.
        is_certain = self.registry.identity(endpoint) is not None and self.registry.certain(
            endpoint
        )
        return is_certain and self.reconciler.adopted

    def _hold(self, endpoint: Endpoint, syn: Syn, frame: bytes) -> None:
        metrics.PACKET_INS.labels("held").inc()
        port = self.registry.port_at(endpoint)
        vm = port.vm if port is not None else ""
        self.holds.put(HeldSyn(endpoint, syn, frame, self._clock(), vm))
        metrics.HELD_SYNS.set(len(self.holds))

    def _learn(self, endpoint: Endpoint, syn: Syn, frame: bytes) -> None:
        since = self._clock()
        learned = self.registry.learn(endpoint, syn.address, since)
        if learned is None:
            metrics.PACKET_INS.labels("no_slot").inc()
            return
        metrics.PACKET_INS.labels("learned" if learned.new else "known").inc()
        # A busy host may need longer than EXPECTED for the flows, and with them the guest's next
        # SYN reaches the proxy before this one.
        self.registry.expect(endpoint, learned, math.inf)
        threads.spawn_detached(self._send_on, endpoint, learned, frame, since)

    def _send_on(self, endpoint: Endpoint, learned: Learned, frame: bytes, since: float) -> None:
        try:
            # Before the flows: once they are installed, later SYNs reach the proxy directly.
            self._informed()
            for reconciler in (self._meta, self.reconciler):
                if reconciler is not None:
                    reconciler.apply(endpoint)
                    reconciler.wait_for(endpoint)
            if learned.displaced is not None:
                self._pause(SETTLE)
            tap = self.reconciler.tap
            # Meanwhile another guest may have taken the port.
            if tap is not None and self.registry.has_slot(endpoint, learned):
                actions = integration_bridge.towards_proxy(endpoint, learned.slot, tap=tap)
                self._send(endpoint.ofport, actions, frame)
                metrics.FIRST_SYN_SECONDS.observe(self._clock() - since)
        except errors.DfmetaError as error:
            LOG.info("A first SYN at %s was dropped: %s", endpoint, error)
        finally:
            self.registry.expect(endpoint, learned, self._clock())

    def _send(self, ofport: int, actions: Iterable[openflow.Action], frame: bytes) -> None:
        channel = self.reconciler.channel
        channel.post([channel.wire.packet_out(ofport, actions, frame)])
