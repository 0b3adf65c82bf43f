"""First SYNs: give the address a slot, put its flows in, and only then let the SYN go on.

A SYN of a port whose instance is not known yet, or whose number is in doubt, is kept and goes on
when it is. Everything in a frame is the guest's claim; who it is comes from the in_port that the
switch names.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import eventlet

from dfmeta import metrics
from dfmeta.apps.reconciler import Reconciler
from dfmeta.exceptions import DfmetaError, PacketError
from dfmeta.flows.service import towards_proxy
from dfmeta.guest_counts import GuestCounts
from dfmeta.hub import Turns
from dfmeta.model import Endpoint
from dfmeta.packets import Syn, parse_syn
from dfmeta.registry import Registry
from dfmeta.slots import Learned

LOG = logging.getLogger(__name__)

HELD_PER_PORT = 4
HELD_IN_ALL = 1024
SETTLE = 0.05
"""Seconds that the SYN of an address waits whose slot was another's a moment ago.

A barrier says that the tables have changed; until ovs-vswitchd has revalidated its cache, the
answer still goes to the address before, and the guest gets none until the SYN-ACK is repeated a
second later (seen: one such connection in six).
"""


_Connection = tuple[Endpoint, str, str, int]
"""A guest's end of it: endpoint, MAC, IP and source port."""


@dataclass(frozen=True, slots=True)
class Held:
    """A SYN that waits for its port's instance."""

    endpoint: Endpoint
    syn: Syn
    frame: bytes
    since: float


class Holds:
    """The SYNs that wait: the newest of each connection, a few for each port, bounded in all."""

    def __init__(self) -> None:
        self._held: OrderedDict[_Connection, Held] = OrderedDict()
        self._of: dict[Endpoint, dict[_Connection, None]] = {}
        """Endpoint → its own, in their order."""

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: Held) -> None:
        """Keep *held*; a repeated SYN takes the place, and the waiting time, of the one before."""
        address = held.syn.address
        key = (held.endpoint, address.mac, str(address.ip), held.syn.source_port)
        before = self._held.get(key)
        if before is not None:
            self._drop(key)
            held = Held(held.endpoint, held.syn, held.frame, before.since)
        mine = self._of.get(held.endpoint, {})
        if len(mine) >= HELD_PER_PORT:
            self._drop(next(iter(mine)))
        elif len(self._held) >= HELD_IN_ALL:
            self._drop(next(iter(self._held)))
        self._held[key] = held
        self._of.setdefault(held.endpoint, {})[key] = None

    def take(self, endpoint: Endpoint) -> list[Held]:
        """Give back all that *endpoint* has, and forget them."""
        return [self._held.pop(key) for key in self._of.pop(endpoint, {})]

    def endpoints(self) -> set[Endpoint]:
        """Endpoints that have some."""
        return set(self._of)

    def expire(self, before: float) -> int:
        """Drop those that wait since earlier than *before*; say how many."""
        stale = [key for key, held in self._held.items() if held.since < before]
        for key in stale:
            self._drop(key)
        return len(stale)

    def _drop(self, key: _Connection) -> None:
        del self._held[key]
        mine = self._of[key[0]]
        del mine[key]
        if not mine:
            del self._of[key[0]]


class Learner:
    """Answers the switch's packet-ins.

    :param hold_timeout: seconds that a SYN, and then its request, may wait in all.
    :param informed: waits until every process that answers guests knows what the registry knows.
    :param clock: monotonic seconds.
    :param pause: lets others run for so many seconds.
    """

    def __init__(
        self,
        registry: Registry,
        reconciler: Reconciler,
        *,
        hold_timeout: float,
        informed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = eventlet.sleep,
    ) -> None:
        self.registry = registry
        self.reconciler = reconciler
        self.holds = Holds()
        self.first_syns = GuestCounts()
        """Packet-ins of guests whose instance was known then."""
        self.hold_timeout = hold_timeout
        self._informed = informed
        self._clock = clock
        self._pause = pause

    def packet_in(self, ofport: int, frame: bytes) -> None:
        """Take a SYN that came in at *ofport*. Never waits.

        A second SYN of an address whose flows are on their way waits for the same confirmation.
        """
        try:
            syn = parse_syn(frame)
        except PacketError as error:
            LOG.debug("ofport %d sent what is no SYN: %s", ofport, error)
            metrics.PACKET_INS.labels("malformed").inc()
            return
        endpoint = Endpoint(ofport, syn.vid)
        identity = self.registry.identity(endpoint)
        if identity is not None:
            self.first_syns.add(endpoint, identity.incarnation)
        if self.registry.port_at(endpoint) is None:
            metrics.PACKET_INS.labels("unknown_port").inc()
        elif not self._may_learn(endpoint):
            self._hold(endpoint, syn, frame)
        else:
            self._learn(endpoint, syn, frame)

    def release(self, endpoint: Endpoint) -> None:
        """Let the SYNs of *endpoint* go on if its instance is certain now, else keep them."""
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
        """Let the SYNs go on that came before the first reconcile had adopted what was there."""
        turns = Turns()
        for endpoint in self.holds.endpoints():
            self.release(endpoint)
            turns.give_way()

    def expire(self) -> None:
        """Forget SYNs that have waited for too long; called every now and then."""
        gone = self.holds.expire(self._clock() - self.hold_timeout)
        if gone:
            LOG.info("%d SYNs of ports without a certain instance were given up", gone)
        metrics.HELD_SYNS.set(len(self.holds))

    def _may_learn(self, endpoint: Endpoint) -> bool:
        # Before the adoption, an address that has a slot already would be given another.
        known = self.registry.identity(endpoint) is not None and self.registry.certain(endpoint)
        return known and self.reconciler.adopted

    def _hold(self, endpoint: Endpoint, syn: Syn, frame: bytes) -> None:
        metrics.PACKET_INS.labels("held").inc()
        self.holds.put(Held(endpoint, syn, frame, self._clock()))
        metrics.HELD_SYNS.set(len(self.holds))

    def _learn(self, endpoint: Endpoint, syn: Syn, frame: bytes) -> None:
        since = self._clock()
        learned = self.registry.learn(endpoint, syn.address, since)
        if learned is None:
            metrics.PACKET_INS.labels("no_slot").inc()
            return
        metrics.PACKET_INS.labels("learned" if learned.new else "known").inc()
        eventlet.spawn_n(self._send_on, endpoint, learned, frame, since)

    def _send_on(self, endpoint: Endpoint, learned: Learned, frame: bytes, since: float) -> None:
        try:
            # Before the flows: further SYNs of the address follow them at once.
            self._informed()
            self.reconciler.apply(endpoint)
            self.reconciler.wait_for(endpoint)
            if learned.displaced is not None:
                self._pause(SETTLE)
            tap = self.reconciler.tap
            # Meanwhile the port may have become another guest's.
            if tap is not None and self.registry.has_slot(endpoint, learned):
                channel = self.reconciler.channel
                actions = towards_proxy(endpoint, learned.slot, tap=tap)
                channel.post([channel.wire.packet_out(endpoint.ofport, actions, frame)])
                metrics.FIRST_SYN_SECONDS.observe(self._clock() - since)
        except DfmetaError as error:
            LOG.info("A first SYN at %s is lost: %s", endpoint, error)
