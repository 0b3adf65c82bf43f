"""Keeps the switch's flows equal to the desired flows, and sends only the difference.

Desired flows are a function of the registry (:mod:`dfmeta.flows.integration_bridge`). Two paths
lead to the switch:

- An *event* changes one endpoint. :meth:`Reconciler.apply` compares the desired flows of the
  endpoint with those that were sent for it, and sends the difference at once.
- A *reconcile* compares the flows of all endpoints with a dump of the switch.

Both lead to the same state, so the flows become right even if an event is lost.

A reconcile of thousands of ports takes seconds and yields to other threads. Events occur meanwhile,
and the dump is older than they are. These rules keep an old dump from undoing an event:

1. A reconcile goes endpoint by endpoint. The desired flows of an endpoint are computed from the
   registry at that moment and compared, and the messages are in the outbox before another thread
   runs. Messages of a later event come behind them.
2. An event notes the keys (:attr:`Flow.match_key`) of the flows that it changes. From the request
   of the dump on, these keys are *overtaken*: the dump is not valid for them, and the reconcile
   sends nothing for them.
3. The flow-mods of a bundle that the switch refuses are sent one by one, except those whose flow
   has changed meanwhile.
4. A dump is valid for its own connection only: a reconcile ends when its connection is lost.
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, NamedTuple

from dfmeta import errors, metrics, model
from dfmeta.apps.channel import CONFIRM_TIMEOUT, Channel, Pending
from dfmeta.apps.floods import Drops
from dfmeta.flows import integration_bridge, openflow, pipeline
from dfmeta.flows.reading import read_address, read_next_hop
from dfmeta.flows.wire import DumpedFlow, Wire
from dfmeta.identity.registry import Registry
from dfmeta.runtime import clock, threads
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

BATCH = 100
"""Flow-mods in one bundle of a reconcile; fewer when a thread's turn ends earlier."""
UNCONFIRMED = 4
"""Bundles of a reconcile that may be unconfirmed: os-ken's messages are large, and the switch has
other work to do."""

ByKey = dict[Any, openflow.Flow]
Remembered = tuple[model.Endpoint, int, model.GuestAddress]
"""An address of the previous run: its endpoint and its slot."""
Grouped = dict[model.Endpoint | None, list[DumpedFlow]]
"""Endpoint → its flows in a dump; None → flows that belong to no endpoint."""


@dataclass(slots=True)
class _Mod:
    """A flow-mod of a reconcile, with the flow and the endpoint that it serves."""

    endpoint: model.Endpoint | None
    key: Any
    """:attr:`Flow.match_key`; None for the removal of a flow that is not as declared."""
    flow: openflow.Flow | None
    """The desired flow with that key; None when there should be no flow."""
    message: Any


class Builders(NamedTuple):
    """Builds the desired flows of one bridge, for a target that names its ports: a Tap or a
    MetaTap."""

    fixed: Callable[[Any], tuple[openflow.Flow, ...]]
    """Returns the flows that do not depend on guests, for a target."""
    guest: Callable[[integration_bridge.ServedEndpoint, Any], tuple[openflow.Flow, ...]]
    """Returns the flows of a guest, for a target."""


class Reconciler:
    """Installs the flows of the registry's guests on the switch.

    :param builders: build the desired flows of the bridge.
    :param adopts: returns whether the addresses of an endpoint that are found on the switch at
        start may be kept: its port still has the instance for which they were installed.
    :param remembered: returns the addresses of such endpoints in the state file, for those that the
        switch has lost.
    :param floods: returns the purposes whose packets an endpoint sends at too high a rate.
    :param reconciled: called after each reconcile, the first of which adopts those addresses.
    """

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        *,
        builders: Builders,
        adopts: Callable[[model.Endpoint], bool] = lambda _endpoint: False,
        remembered: Callable[[], Iterable[Remembered]] = tuple,
        floods: Callable[[model.Endpoint], Collection[pipeline.Purpose]] = lambda _endpoint: (),
        reconciled: Callable[[], object] = lambda: None,
    ) -> None:
        self.channel = channel
        self.registry = registry
        self.tap: Any = None
        """Ports to which the flows lead, as the builders take them; None: not known."""
        self._builders, self._pipeline = builders, channel.layout.pipeline
        self.confirmed = False
        """Whether the switch has confirmed all flows since the connection came up."""
        self._adopts, self._remembered, self._floods = adopts, remembered, floods
        self.adopted = False
        """Whether the addresses of an earlier run have been adopted."""
        self._on_reconciled = reconciled
        self._fixed: ByKey = {}
        self._sent: dict[model.Endpoint, ByKey] = {}
        self._last: dict[model.Endpoint, Pending] = {}
        self._one_reconcile = threads.Semaphore()
        self._overtaken: dict[model.Endpoint, set[Any]] = {}
        """Keys of flows that events have changed since the last dump was requested."""
        self._refused = 0
        self.refusals: dict[model.Endpoint, str] = {}
        """Endpoint → why the switch refused one of its flows in the latest reconcile."""
        self._removed_at: dict[Any, float] = {}
        """Match key → when its removal was sent, for flows whose removal the switch reports."""
        self._keys = registry.keys
        self._drops = Drops()
        self._doubted = False
        self.doubts = threads.Queue(1)
        """Full after :meth:`doubt`, until the thread that watches the flows takes it."""
        self._swept = False
        """Whether all tables were read on this connection: those of other programs, too, where a
        run with another ``table_base`` may have left flows."""
        self._removed = True
        """Whether the switch has removed all stray flows of the latest reconcile so far."""

    @property
    def busy(self) -> bool:
        """Whether a reconcile is under way."""
        return bool(self._one_reconcile.locked())

    # One endpoint

    def apply(self, endpoint: model.Endpoint) -> None:
        """Send the changes of the flows of *endpoint*, without waiting.

        Nothing is sent before the first reconcile or without a connection: the next reconcile sends
        the changes.
        """
        if not self.channel.connected or self.tap is None or not self.adopted:
            return
        wanted = self._wanted(endpoint, self.tap)
        before = self._sent.get(endpoint, {})
        self._keep(endpoint, wanted)
        mods = self._difference(before, wanted)
        if mods:
            changed = {key for key, _flow in before.items() ^ wanted.items()}
            self._overtaken.setdefault(endpoint, set()).update(changed)
            what = f"the flows of {self.registry.name(endpoint)}"
            self._last[endpoint] = pending = self.channel.commit(mods, what)
            threads.spawn_detached(self._watch, endpoint, pending)

    def wait_for(self, endpoint: model.Endpoint, timeout: float = CONFIRM_TIMEOUT) -> None:
        """Wait until the switch has confirmed the flows of *endpoint*.

        :param timeout: seconds.
        :raises SwitchError: when the switch refused them.
        :raises SwitchTimeoutError: when it did not confirm them, or a reconcile, in time.
        :raises NotConnectedError: when the connection was lost meanwhile.
        """
        deadline = clock.now() + timeout
        threads.wait_until(lambda: self.confirmed or not self.channel.connected, timeout)
        if not self.confirmed:
            if not self.channel.connected:
                raise errors.NotConnectedError(bridge=self.channel.bridge)
            raise errors.SwitchTimeoutError(what="a reconcile", seconds=timeout)
        pending = self._last.get(endpoint)
        if pending is not None:
            pending.wait(max(0.0, deadline - clock.now()))

    def _watch(self, endpoint: model.Endpoint, pending: Pending) -> None:
        try:
            pending.wait()
        except errors.DfmetaError as error:
            LOG.warning("%s; reconciling", error)
            self.doubt()
        finally:
            if self._last.get(endpoint) is pending:
                del self._last[endpoint]

    # All endpoints

    def reconcile_quietly(self) -> None:
        """Reconcile; a failure is logged and counted, and the next reconcile tries again."""
        try:
            self.reconcile()
        except errors.DfmetaError as error:
            LOG.warning("Reconcile failed: %s", error)
            metrics.RECONCILES.labels("failed").inc()

    def reconcile(self) -> int:
        """Compare a dump with the desired flows and send the difference.

        :return: number of flow-mods sent.
        :raises DfmetaError: when the switch does not answer, or refuses a flow that no guest can do
            without. The refusal of any other flow is logged, and the next reconcile tries that
            flow again.
        """
        with self._one_reconcile:
            if self.tap is None or not self.channel.connected:
                return 0
            wire, tap, turns = self.channel.wire, self.tap, Turns()
            self._doubted = False
            self._overtaken = {}
            oldest = clock.now() - CONFIRM_TIMEOUT
            self._removed_at = {k: at for k, at in self._removed_at.items() if at >= oldest}
            self._removed = True
            if self._pipeline.shows_numbers:
                self.registry.allocator.begin_sweep()
            dump = self._dump(turns, everywhere=not self._swept)
            self._drops.add(_each(dump, turns))
            if not self.adopted:
                self._adopt_addresses(dump, wire, turns)
                self._restore_addresses(wire, turns)
                self.adopted = True
            count = self._send_differences(dump, tap, wire=wire, turns=turns)
            self.confirmed, self._swept = not self._doubted, True
            if self._pipeline.shows_numbers and self.confirmed and self._removed:
                self.registry.allocator.end_sweep()
            self._on_reconciled()
            metrics.RECONCILES.labels("changed" if count else "unchanged").inc()
            if count:
                LOG.info("Reconciled the flows of %s: %d flow-mods", self.channel.bridge, count)
            return count

    def clear(self) -> int:
        """Remove all of dfmeta's flows, and return their number.

        :raises SwitchError: when the switch refuses the removal.
        """
        with self._one_reconcile:
            dump = self._dump(Turns(), everywhere=True)
            removal = [self.channel.wire.remove_all()]
            self.channel.commit(removal, "the removal of flows").wait()
            return sum(map(len, dump.values()))

    def doubt(self) -> None:
        """Note that flows may be wrong, even if a reconcile under way finds no difference.

        This requests a reconcile, soon and once for many calls.
        """
        self.confirmed = False
        self._doubted = True
        if not self.doubts.full():
            self.doubts.put_nowait(None)

    def disconnected(self) -> None:
        """Note that the connection has ended: flows that were sent may or may not be installed."""
        self.confirmed = self._swept = False
        self._last.clear()

    def misses(self, removed: openflow.Flow) -> bool:
        """Return whether *removed*, of the classification table, should still be on the switch.

        The switch reports every removal in that table, whichever program requested it. It reports
        one of ours later than it confirms the batch: the flow may have been added again by then.
        """
        key, endpoint = removed.match_key, read_address(removed, self._keys).endpoint
        if clock.now() - self._removed_at.pop(key, -math.inf) <= CONFIRM_TIMEOUT:
            return False
        if endpoint is None:
            return key in self._fixed
        return key in self._sent.get(endpoint, {})

    def flow_count(self) -> int:
        """Return the number of dfmeta's flows that should be on the switch."""
        return len(self._fixed) + sum(map(len, self._sent.values())) - self._refused

    def flows(self) -> Iterator[openflow.Flow]:
        """Yield the flows that should be on the switch."""
        for flows in (self._fixed, *self._sent.values()):
            yield from flows.values()

    def _dump(self, turns: Turns, *, everywhere: bool = False) -> Grouped:
        wire = self.channel.wire
        requests = [wire.dump_all()] if everywhere else wire.dump_tables()
        entries = self.channel.gather(requests, "the dump of flows")
        entries.reverse()  # so that each one is freed once it is read
        dump: Grouped = {}
        while entries:
            dumped = wire.found(entries.pop())
            if dumped is not None:
                owner = read_address(dumped.flow, self._keys).endpoint if dumped.flow else None
                dump.setdefault(owner, []).append(dumped)
            turns.give_way()
        return dump

    def _send_differences(self, dump: Grouped, tap: Any, *, wire: Wire, turns: Turns) -> int:
        """Send the difference, first for flows that belong to no endpoint, then by endpoint."""
        self._fixed = _by_key(self._builders.fixed(tap))
        others = dict.fromkeys((*dump, *self.registry.endpoints(), *self._sent))
        others.pop(None, None)
        count = refused = 0
        batch: list[_Mod] = []
        under_way: deque[tuple[list[_Mod], Pending]] = deque()
        odd: dict[model.Endpoint, str] = {}
        for endpoint in (None, *others):
            batch += self._compare(endpoint, dump.pop(endpoint, ()), tap)
            # No other thread may run between the comparison of an endpoint and the sending.
            if len(batch) >= BATCH or turns.over:
                count += len(batch)
                self._send(batch, under_way)
                batch = []
                turns.give_way()
                while len(under_way) > UNCONFIRMED:
                    refused += self._confirm(*under_way.popleft(), odd)
                self._require_connection(wire)
        count += len(batch)
        self._send(batch, under_way)
        while under_way:
            refused += self._confirm(*under_way.popleft(), odd)
        self._require_connection(wire)
        self._refused, self.refusals = refused, odd
        return count

    def _compare(
        self, endpoint: model.Endpoint | None, dump: Iterable[DumpedFlow], tap: Any
    ) -> list[_Mod]:
        """Return the missing and the stray flows of *endpoint* as flow-mods, and note them as sent.

        :param endpoint: None stands for the flows that belong to no endpoint.
        """
        wanted = self._fixed
        newer: set[Any] = set()  # keys for which the dump is not valid any more
        if endpoint is not None:
            wanted, sent = self._wanted(endpoint, self.tap or tap), self._sent.get(endpoint)
            if sent is not None and sent == wanted:
                # Keep the old objects: thousands of new ones at once slow Python's collector down.
                wanted = sent
            self._keep(endpoint, wanted)
            newer = self._overtaken.get(endpoint, newer)
        present = {flow.match_key: flow for dumped in dump if (flow := dumped.current) is not None}
        # A flow of another release with a desired key is replaced by the addition.
        strays = [dumped for dumped in dump if dumped.key not in wanted]
        if endpoint is None:
            strays = [dumped for dumped in strays if not self._is_owned(dumped)]
        wire = self.channel.wire
        removals = [
            _Mod(endpoint, dumped.key, None, wire.remove_found(dumped))
            for dumped in self._in_removal_order(strays)
            if dumped.key not in newer
        ]
        additions = [
            _Mod(endpoint, key, flow, wire.add(flow))
            for key, flow in wanted.items()
            if present.get(key) != flow and key not in newer
        ]
        self._note_removals(dumped.flow for dumped in strays if dumped.flow is not None)
        metrics.FLOW_MODS.labels("delete").inc(len(removals))
        metrics.FLOW_MODS.labels("add").inc(len(additions))
        return removals + additions

    def _is_owned(self, stray: DumpedFlow) -> bool:
        """Return whether an endpoint owns a flow by now that had no owner when it was dumped.

        The next reconcile compares it with the flows of that endpoint.
        """
        if stray.flow is None or read_address(stray.flow, self._keys).endpoint is None:
            return False
        self._doubted = True
        return True

    def _send(self, mods: list[_Mod], under_way: deque[tuple[list[_Mod], Pending]]) -> None:
        for start in range(0, len(mods), BATCH):
            part = mods[start : start + BATCH]
            messages = [mod.message for mod in part]
            under_way.append((part, self.channel.commit(messages, "the reconciled flows")))

    def _confirm(self, part: Sequence[_Mod], batch: Pending, odd: dict[model.Endpoint, str]) -> int:
        """Wait for a bundle; return how many of its flows are not on the switch.

        The flow-mods of a refused bundle are sent one by one, so that a fault of one port does not
        affect the others. After a refusal, the later additions of the same endpoint are left out,
        so that no path to the proxy exists without a return path. Flow-mods that an event has
        overtaken meanwhile are left out as well.

        :param odd: endpoint with a refused addition → the cause; extended.
        :raises SwitchError: when the switch refused a flow that no guest can do without.
        """
        try:
            batch.wait()
        except errors.SwitchError as error:
            LOG.info("%s; sending them one by one", error)
        else:
            return 0
        refused = 0
        for mod in filter(self._stands, part):
            if mod.flow is None:
                self._removed &= not self._commit_one(mod.message)
            elif mod.endpoint in odd:
                refused += 1
            elif cause := self._commit_one(mod.message):
                refused += 1
                odd |= {mod.endpoint: cause} if mod.endpoint is not None else {}
        return refused

    def _stands(self, mod: _Mod) -> bool:
        """Return whether the flow of *mod* is still the desired one for its key."""
        placed = self._fixed if mod.endpoint is None else self._sent.get(mod.endpoint, {})
        return mod.key is None or placed.get(mod.key) == mod.flow

    def _require_connection(self, wire: Wire) -> None:
        """Raise unless *wire*, the connection of the dump, is still in use.

        :raises NotConnectedError: when another connection is in use, or none.
        """
        if self.channel.wire is not wire:
            raise errors.NotConnectedError(bridge=self.channel.bridge)

    def _commit_one(self, mod: Any) -> str:
        """Send one flow-mod; return why the switch refused it, empty if it did not.

        :raises SwitchError: when no guest can do without the flow.
        """
        what = f"a flow of table {mod.table_id}, {mod.match}"
        mod.xid = None  # it still has the one from the bundle
        try:
            self.channel.commit([mod], what, bundle=False).wait()
        except errors.SwitchError as error:
            purpose = pipeline.purpose_of(mod.cookie)
            if purpose is not None and purpose.is_needed:
                raise
            LOG.warning("%s", error)
            return error.cause
        return ""

    def _adopt_addresses(self, dump: Grouped, wire: Wire, turns: Turns) -> None:
        kept = 0
        for dumped in (dumped for flows in list(dump.values()) for dumped in flows):
            if dumped.flow is None:
                continue
            self._adopt_next_hop(dumped.flow)
            if dumped.flow.purpose is not pipeline.Purpose.ADDRESS:
                continue
            read = read_address(dumped.flow, self._keys)
            endpoint, number, address = read.endpoint, read.slot, read.address
            if endpoint is None:
                continue
            if number is None or address is None:
                self._quarantine_key(endpoint, read.key)
            elif self._adopts(endpoint):
                kept += self.registry.adopt(endpoint, number, address, clock.now())
            else:
                self.registry.rest(endpoint, [number])
            if turns.give_way():
                self._require_connection(wire)
        if kept:
            LOG.info("Kept %d addresses of guests from an earlier run", kept)

    def _restore_addresses(self, wire: Wire, turns: Turns) -> None:
        """Restore the addresses whose flows somebody has deleted while no daemon ran.

        Their guests may have connections under way, and send no SYN that would teach an address.
        """
        restored = 0
        for endpoint, number, address in self._remembered():
            restored += self.registry.restore(endpoint, number, address, clock.now())
            if turns.give_way():
                self._require_connection(wire)
        if restored:
            LOG.info("Restored %d addresses of guests that the switch has lost", restored)

    def _adopt_next_hop(self, flow: openflow.Flow) -> None:
        """Keep the flow of a guest next hop that is not known yet, because Neutron does not answer.

        Otherwise each start would remove it, and a guest would not find the service until then.
        """
        hop, endpoint = read_next_hop(flow), openflow.comes_in_at(flow)
        if hop is not None and endpoint is not None and self._adopts(endpoint):
            self.registry.adopt_next_hop(endpoint, hop)

    def _quarantine_key(self, endpoint: model.Endpoint, key: str) -> None:
        """Let the number of a flow's key rest if the key may become another guest's."""
        with contextlib.suppress(ValueError):
            number = self._keys.number_of(ip_address(key))
            if number is not None:
                self.registry.quarantine(endpoint, number)

    def _wanted(self, endpoint: model.Endpoint, tap: Any) -> ByKey:
        guest = self.registry.guest(endpoint)
        if guest is None:
            return {}
        served = integration_bridge.ServedEndpoint(
            endpoint,
            {number: slot.address for number, slot in guest.slots.items()},
            guest.next_hops,
            guest.port.only_mac,
            guest.port.binding,
            self._floods(endpoint),
        )
        return _by_key(self._builders.guest(served, tap))

    def _in_removal_order(self, strays: list[DumpedFlow]) -> list[DumpedFlow]:
        """Order removals so that a path to the proxy is removed before its return path."""
        rank, last = self._pipeline.removal_rank, len(self._pipeline.removal_rank)
        return sorted(
            strays, key=lambda dumped: rank.get(dumped.flow.purpose, last) if dumped.flow else 0
        )

    def _keep(self, endpoint: model.Endpoint, wanted: ByKey) -> None:
        if wanted:
            self._sent[endpoint] = wanted
        else:
            self._sent.pop(endpoint, None)

    def _note_removals(self, flows: Iterable[openflow.Flow]) -> None:
        now = clock.now()
        self._removed_at |= {flow.match_key: now for flow in flows if flow.purpose.is_shared}

    def _difference(self, before: ByKey, wanted: ByKey) -> list[Any]:
        gone = [flow for key, flow in before.items() if key not in wanted]
        new = [flow for key, flow in wanted.items() if before.get(key) != flow]
        self._note_removals(gone)
        metrics.FLOW_MODS.labels("delete").inc(len(gone))
        metrics.FLOW_MODS.labels("add").inc(len(new))
        wire = self.channel.wire
        return [*map(wire.remove, reversed(gone)), *map(wire.add, new)]


def _by_key(flows: Iterable[openflow.Flow]) -> ByKey:
    return {flow.match_key: flow for flow in flows}


def _each(dump: Grouped, turns: Turns) -> Iterator[DumpedFlow]:
    """Yield all flows of *found*; other threads run in between."""
    for flows in dump.values():
        for dumped in flows:
            yield dumped
            turns.give_way()
