"""Asks Neutron for the guest next hops of ports: the addresses of their networks' DHCP ports.

Nothing waits for the answers: a port is delivered at once, and again when its next hops are known.
Each network is asked about once, and again every :data:`FRESH` seconds: see
:mod:`dfmeta.sources.neutron`.

Ports whose row in OVSDB names next hops, right or wrong, are not asked about: that source comes
first. Everything runs on the hub.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dfmeta.model import NextHop, Port, PortId
from dfmeta.neutron.client import NeutronApi, Row, portions
from dfmeta.ovsdb.external_ids import NEXT_HOPS_MAX, fixed_ips, instance_of, of_dhcp_ports
from dfmeta.runtime import clock, hub
from dfmeta.sources.neutron import NeutronSource, Rounds

FRESH: Final = 300.0
"""Seconds after which a network's DHCP ports are asked for again: a new one serves new leases, and
the address of a former one may become another guest's."""
UNKNOWN: Final = NeutronSource.retry[1]
"""Seconds after which a port that Neutron does not know is asked for again."""
PLACE: Final = ("id", "network_id", "fixed_ips")
"""Fields of a guest's port in Neutron."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The network of a port, and the port's own addresses there."""

    network: str
    """Empty: Neutron does not know the port."""
    addresses: frozenset[str]
    until: float
    """When it is asked for again, monotonic seconds."""


@dataclass(frozen=True, slots=True)
class _NetworkHops:
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
    """

    def __init__(
        self,
        api: NeutronApi,
        deliver: Callable[[Port], None],
        drop: Callable[[PortId], None],
        *,
        timeout: float,
    ) -> None:
        self._api = api
        self._deliver, self._drop = deliver, drop
        self._rounds = Rounds(
            api, "the guest next hops", self.round, longest=FRESH, timeout=timeout
        )
        self._ports: dict[PortId, Port] = {}
        self._places: dict[str, _Place] = {}
        """Neutron's id of a port → its place."""
        self._known: dict[str, _NetworkHops] = {}
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
        if _port_id(port) and (before is None or _port_id(before) != _port_id(port)):
            self._rounds.ring()

    def forget(self, port_id: PortId) -> None:
        """Drop that port."""
        port = self._ports.pop(port_id, None)
        if port is not None:
            self._places.pop(_port_id(port), None)
        self._drop(port_id)

    def round(self) -> float:
        """Ask for all that is due; return seconds until the next round. Waits for Neutron.

        :raises SourceError: when Neutron does not answer; the answers so far count.
        """
        wanted = list(dict.fromkeys(filter(None, map(_port_id, list(self._ports.values())))))
        try:
            due = [port_id for port_id in wanted if self._is_due(self._places.get(port_id))]
            for rows in self._rounds.ports(due, PLACE):
                self._places.update({port_id: self._place(row) for port_id, row in rows.items()})
            places = [self._places[port_id] for port_id in wanted if port_id in self._places]
            networks = sorted({place.network for place in places} - {""})
            self._known = {name: self._known[name] for name in networks if name in self._known}
            unknown = [name for name in networks if self._is_due(self._known.get(name))]
            for part in portions(unknown):
                self._note(part, self._rounds.call(partial(self._api.dhcp_ports, part)))
        finally:
            self._deliver_all()
        moments = [place.until for place in places]
        moments += [network.until for network in self._known.values()]
        return min(moments, default=math.inf) - clock.now()

    def _is_due(self, answer: _Place | _NetworkHops | None) -> bool:
        return answer is None or answer.until <= clock.now()

    def _place(self, row: Row) -> _Place:
        network = instance_of(str(row.get("network_id") or ""))
        until = clock.now() + (FRESH if network else UNKNOWN)
        return _Place(network, frozenset(fixed_ips(row)), until)

    def _note(self, networks: Iterable[str], rows: Sequence[Row]) -> None:
        by_network: dict[str, list[Row]] = {}
        for row in rows:
            by_network.setdefault(instance_of(str(row.get("network_id") or "")), []).append(row)
        until = clock.now() + FRESH
        for network in networks:
            hops = of_dhcp_ports(by_network.get(network, ()))
            self._known[network] = _NetworkHops(hops, until)

    def _deliver_all(self) -> None:
        """Deliver all ports again: the registry compares them with those that it has."""
        turns = hub.Turns()
        for port_id in [port.id for port in self._ports.values() if _port_id(port)]:
            port = self._ports.get(port_id)
            if port is not None:
                self._deliver(self._complete(port))
            turns.give_way()

    def _complete(self, port: Port) -> Port:
        port_id = _port_id(port)
        place = self._places.get(port_id)
        if not port_id or (place is not None and not place.network):
            return port
        network = self._known.get(place.network) if place is not None else None
        if place is None or network is None:
            return replace(port, next_hops=None)
        hops = [hop for hop in network.hops if hop.ip not in place.addresses]
        return replace(port, next_hops=tuple(hops[:NEXT_HOPS_MAX]))


def _port_id(port: Port) -> str:
    """Return Neutron's id of a port whose next hops it is asked for; empty for other ports."""
    if port.next_hops or port.next_hop_faults or port.fault:
        return ""
    return instance_of(port.iface_id)
