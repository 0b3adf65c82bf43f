"""Asks Neutron for the guest next hops of ports: the addresses of their networks' DHCP ports.

Nothing waits for the answers: a port is delivered at once, and again when its next hops are known.
Each network is asked about once, and again every :data:`FRESH` seconds: see
:mod:`dfmeta.sources.rounds`.

Ports whose row in OVSDB names next hops, right or wrong, are not asked about: that source comes
first. Everything runs on the hub.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dfmeta.model import NextHop, Port, PortId
from dfmeta.neutron.client import IDS_AT_ONCE, LIST_FROM, NeutronApi, Row
from dfmeta.ovsdb.external_ids import instance_of
from dfmeta.ovsdb.next_hop_list import MOST, fixed_ips, of_dhcp_ports
from dfmeta.runtime import clock, hub
from dfmeta.sources.rounds import RETRY, Rounds

FRESH: Final = 300.0
"""Seconds after which a network's DHCP ports are asked for again: a new one serves new leases, and
the address of a former one may become another guest's."""
UNKNOWN: Final = RETRY[1]
"""Seconds after which a port that Neutron does not know is asked for again."""
PLACE: Final = ("id", "network_id", "fixed_ips")
"""Fields of a guest's port in Neutron."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The network of a port, and the port's own addresses there."""

    network: str
    """Empty: Neutron does not know the port."""
    own: frozenset[str]
    until: float
    """When it is asked for again, monotonic seconds."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The guest next hops of a network."""

    hops: tuple[NextHop, ...]
    until: float
    """When they are asked for again, monotonic seconds."""


class NextHops:
    """Completes ports with the guest next hops that Neutron knows.

    :param api: Neutron.
    :param deliver: called with each port, and again when its next hops have become known or have
        changed.
    :param drop: called with the id of each removed port.
    :param timeout: seconds that an answer may take.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        api: NeutronApi,
        deliver: Callable[[Port], None],
        drop: Callable[[PortId], None],
        *,
        timeout: float,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._api = api
        self._deliver, self._drop = deliver, drop
        self._clock = clock
        self._rounds = Rounds(
            "the guest next hops", self.round, longest=FRESH, timeout=timeout, clock=clock
        )
        self._ports: dict[PortId, Port] = {}
        self._places: dict[str, _Place] = {}
        """Neutron's id of a port → its place."""
        self._known: dict[str, _Known] = {}
        """Network → its guest next hops."""

    def start(self) -> None:
        """Begin to ask Neutron."""
        self._rounds.start()

    def put(self, port: Port) -> None:
        """Deliver a port that is new or has changed, with the next hops known so far. Never waits.

        A port whose next hops are not known yet is delivered with None.
        """
        before = self._ports.get(port.id)
        self._ports[port.id] = port
        self._deliver(self._complete(port))
        if _asked(port) and (before is None or _asked(before) != _asked(port)):
            self._rounds.ring()

    def forget(self, port_id: PortId) -> None:
        """Drop that port."""
        port = self._ports.pop(port_id, None)
        if port is not None:
            self._places.pop(_asked(port), None)
        self._drop(port_id)

    def round(self) -> float:
        """Ask for all that is due; return seconds until the next round. Waits for Neutron.

        :raises SourceError: when Neutron does not answer; the answers so far count.
        """
        wanted = list(dict.fromkeys(filter(None, map(_asked, list(self._ports.values())))))
        try:
            self._ask_for_places([one for one in wanted if self._is_due(self._places.get(one))])
            places = [self._places[one] for one in wanted if one in self._places]
            networks = sorted({one.network for one in places} - {""})
            self._known = {one: self._known[one] for one in networks if one in self._known}
            due = [one for one in networks if self._is_due(self._known.get(one))]
            for part in _portions(due):
                self._note(part, self._rounds.call(partial(self._api.dhcp_ports, part)))
        finally:
            self._tell()
        moments = [one.until for one in places]
        moments += [one.until for one in self._known.values()]
        return min(moments, default=math.inf) - self._clock()

    def _is_due(self, known: _Place | _Known | None) -> bool:
        return known is None or known.until <= self._clock()

    def _ask_for_places(self, ids: Sequence[str]) -> None:
        if len(ids) >= LIST_FROM:
            self._place(self._rounds.call(partial(self._api.on_host, PLACE)))
            # A port may be bound to another host: the source of its migration.
            ids = [one for one in ids if self._is_due(self._places.get(one))]
        for part in _portions(ids):
            self._place(self._rounds.call(partial(self._api.by_id, part, PLACE)))
            for port_id in part:
                if self._is_due(self._places.get(port_id)):
                    self._places[port_id] = _Place("", frozenset(), self._clock() + UNKNOWN)

    def _place(self, rows: Iterable[Row]) -> None:
        until = self._clock() + FRESH
        for row in rows:
            network = instance_of(str(row.get("network_id") or ""))
            place = _Place(network, frozenset(fixed_ips(row)), until)
            self._places[instance_of(str(row.get("id", "")))] = place

    def _note(self, networks: Iterable[str], rows: Sequence[Row]) -> None:
        of: dict[str, list[Row]] = {}
        for row in rows:
            of.setdefault(instance_of(str(row.get("network_id") or "")), []).append(row)
        until = self._clock() + FRESH
        for network in networks:
            self._known[network] = _Known(of_dhcp_ports(of.get(network, ())), until)

    def _tell(self) -> None:
        """Deliver all ports again: the registry compares them with those that it has."""
        turns = hub.Turns()
        for port_id in [one for one, port in self._ports.items() if _asked(port)]:
            port = self._ports.get(port_id)
            if port is not None:
                self._deliver(self._complete(port))
            turns.give_way()

    def _complete(self, port: Port) -> Port:
        asked = _asked(port)
        if not asked:
            return port
        place = self._places.get(asked)
        if place is not None and not place.network:
            return port
        known = self._known.get(place.network) if place is not None else None
        if place is None or known is None:
            return replace(port, next_hops=None)
        return replace(
            port, next_hops=tuple(hop for hop in known.hops if hop.ip not in place.own)[:MOST]
        )


def _asked(port: Port) -> str:
    """Return Neutron's id of a port whose next hops it is asked for; empty for other ports."""
    if port.next_hops or port.next_hop_faults or port.fault:
        return ""
    return instance_of(port.iface_id)


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]
