"""Who asks: what the guests' server needs of the registry, and the registry's mirror in a worker.

A mirror holds what the daemon has said of each endpoint, and takes in what has come of that since
before each of its answers. The daemon lets the guest of an endpoint go on only once all of it is
where the worker finds it. So a worker never takes a guest for the one that had its port before,
however late it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Protocol

from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.key import IN_PORT, Keys
from dfmeta.model import Caller, Endpoint, GuestAddress, Identity
from dfmeta.registry import Claim, Registry

WAITS_KEPT = 16
"""Waiting times of one port that a worker remembers; few are asked for."""


class Claims(Protocol):
    """The registry, as far as the proxy asks it; see :class:`~dfmeta.registry.Registry`."""

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """Call *listener* with each endpoint whose guest has changed."""
        ...

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """Say who sends from *peer*."""
        ...

    def certain(self, endpoint: Caller) -> bool:
        """Whether the endpoint's number is not in doubt; while it is, requests wait."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether the same guest is still there, for certain: whether an answer may leave."""
        ...

    def current(self, claim: Claim) -> Identity | None:
        """What is known of it now."""
        ...

    def opened(self, claim: Claim, now: float) -> None:
        """Count a connection."""
        ...

    def closed(self, claim: Claim, now: float) -> None:
        """Take back what :meth:`opened` counted."""
        ...

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """Seconds that the SYN of that connection was held."""
        ...


@dataclass(slots=True)
class _Known:
    identity: Identity
    slots: dict[int, tuple[GuestAddress, int]]
    """Slot → address and epoch."""
    waits: dict[int, float]
    """Source port → seconds; each is asked for once, by one of the workers."""
    certain: bool


class Mirror:
    """What a worker knows of the guests.

    :param count: told of each connection that begins (1) or ends (-1), for the daemon's count.
    :param catch_up: has :meth:`learn` called with what the daemon has said by now.
    :param keys: the daemon's scheme.
    """

    def __init__(
        self,
        count: Callable[[Claim, int], None],
        catch_up: Callable[[], object] = lambda: None,
        *,
        keys: Keys = IN_PORT,
    ) -> None:
        self._count = count
        self._keys = keys
        self._catch_up = catch_up
        self._known: dict[Caller, _Known] = {}
        self._listeners: list[Callable[[Endpoint], None]] = []

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """See :class:`Claims`."""
        self._listeners.append(listener)

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """See :class:`Claims`."""
        try:
            endpoint, number = self._keys.parse(peer)
        except KeyRangeError:
            return None
        self._catch_up()
        known = self._known.get(endpoint)
        slot = known.slots.get(number) if known else None
        if known is None or slot is None:
            return None
        return Claim(known.identity, endpoint, number, slot[1], slot[0])

    def certain(self, endpoint: Caller) -> bool:
        """See :class:`Claims`."""
        # A doubt that the pipe still has would end the request, which is to wait for its end.
        self._catch_up()
        known = self._known.get(endpoint)
        return known is None or known.certain

    def holds(self, claim: Claim) -> bool:
        """See :class:`Claims`."""
        return self.certain(claim.endpoint) and self._identity(claim) is not None

    def current(self, claim: Claim) -> Identity | None:
        """See :class:`Claims`."""
        self._catch_up()
        return self._identity(claim)

    def _identity(self, claim: Claim) -> Identity | None:
        known = self._known.get(claim.endpoint)
        slot = known.slots.get(claim.slot) if known else None
        if known is None or slot is None or slot[1] != claim.epoch:
            return None
        same = known.identity.incarnation == claim.identity.incarnation
        return known.identity if same else None

    def opened(self, claim: Claim, now: float) -> None:
        """See :class:`Claims`."""
        del now
        self._count(claim, 1)

    def closed(self, claim: Claim, now: float) -> None:
        """See :class:`Claims`."""
        del now
        self._count(claim, -1)

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """See :class:`Claims`."""
        known = self._known.get(endpoint)
        return known.waits.pop(source_port, 0.0) if known else 0.0

    def learn(self, told: Iterable[Any]) -> None:
        """Take in what :func:`tell` has written, and say which endpoints' guests have gone."""
        for one in told:
            endpoint = Endpoint(*one["endpoint"])
            before = self._known.pop(endpoint, None)
            if one["identity"] is not None:
                self._known[endpoint] = _Known(
                    Identity(**one["identity"]),
                    {
                        slot: (GuestAddress(mac, IPv4Address(ip)), epoch)
                        for slot, mac, ip, epoch in one["slots"]
                    },
                    _latest({**(before.waits if before else {}), **dict(one["waits"])}),
                    one["certain"],
                )
            if before is not None and _lost(before, self._known.get(endpoint)):
                for listener in self._listeners:
                    listener(endpoint)


def _latest(waits: dict[int, float]) -> dict[int, float]:
    """Those that were told last: of each, another worker may have the connection."""
    return dict(list(waits.items())[-WAITS_KEPT:])


def _lost(before: _Known, after: _Known | None) -> bool:
    """Whether a claim that held does not hold any more."""
    if after is None or after.identity.incarnation != before.identity.incarnation:
        return True
    return any(after.slots.get(number) != slot for number, slot in before.slots.items())


def tell(registry: Registry, endpoint: Endpoint, *, waits: bool = True) -> dict[str, Any]:
    """What a mirror has to know of *endpoint*, as values that JSON has.

    :param waits: give the waiting times away with it: the workers have them from then on.
    """
    identity = registry.identity(endpoint)
    return {
        "endpoint": [endpoint.ofport, endpoint.vid],
        "identity": None
        if identity is None
        else {
            "instance_id": identity.instance_id,
            "project_id": identity.project_id,
            "port_id": identity.port_id,
            "port_name": identity.port_name,
            "incarnation": identity.incarnation,
            "unverified": identity.unverified,
            "instance_name": identity.instance_name,
        },
        "slots": [
            [number, slot.address.mac, str(slot.address.ip), slot.epoch]
            for number, slot in registry.slots(endpoint).items()
        ],
        "waits": registry.take_waits(endpoint) if waits else [],
        "certain": registry.certain(endpoint),
    }
