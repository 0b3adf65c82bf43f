"""Claims of guests: the registry's interface for the proxy, and its mirror in a worker.

A mirror holds the state of each endpoint that the daemon has sent, and reads all pending messages
before each answer of its own. The daemon lets the guest of an endpoint go on only when the messages
are in the worker's pipe. So a worker never takes a guest for the previous guest of its port,
however late the worker is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Protocol

from dfmeta.errors import KeyRangeError
from dfmeta.http.server import ClaimSource
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Caller, Endpoint, GuestAddress, Identity

WAITS_KEPT = 16
"""Waiting times of one port that a worker remembers; only few of them are used."""


@dataclass(slots=True)
class _MirroredGuest:
    identity: Identity
    slots: dict[int, tuple[GuestAddress, int]]
    """Slot → address and epoch."""
    waits: dict[int, float]
    """Source port → seconds; one of the workers uses each of them once."""
    certain: bool


class Claims(ClaimSource[Claim], Protocol):
    """The part of :class:`~dfmeta.identity.registry.Registry` that the proxy uses."""

    def current(self, claim: Claim) -> Identity | None:
        """Return the present identity of the claim's guest; None: the claim does not hold."""
        return claim.identity

    def certain(self, endpoint: Caller) -> bool:
        """Whether the endpoint's ofport is certain; requests wait while it is in doubt."""
        return True

    def holds(self, claim: Claim) -> bool:
        """Whether the same guest is certainly still there, so that an answer may leave."""
        return True


class Mirror:
    """A worker's copy of the registry.

    :param count: called for each connection that begins (1) or ends (-1), for the daemon's count.
    :param catch_up: handle all pending messages of the daemon, which call :meth:`learn`.
    :param keys: the daemon's key scheme.
    """

    def __init__(
        self,
        count: Callable[[Claim, int], None],
        catch_up: Callable[[], object] = lambda: None,
        *,
        keys: Keys = IN_PORT,
    ) -> None:
        self._count = count
        self.keys = keys
        """The daemon's key scheme."""
        self._catch_up = catch_up
        self._guests: dict[Caller, _MirroredGuest] = {}
        self._listeners: list[Callable[[Endpoint], None]] = []

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """See :class:`Claims`."""
        self._listeners.append(listener)

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """See :class:`Claims`."""
        # The owner of a number may be a message that is not read yet.
        self._catch_up()
        try:
            endpoint, number = self.keys.parse(peer)
        except KeyRangeError:
            return None
        guest = self._guests.get(endpoint)
        slot = guest.slots.get(number) if guest else None
        if guest is None or slot is None:
            return None
        return Claim(guest.identity, endpoint, number, slot[1], slot[0])

    def certain(self, endpoint: Caller) -> bool:
        """See :class:`Claims`."""
        # An unread doubt in the pipe would make holds() fail and close the request. It must wait.
        self._catch_up()
        guest = self._guests.get(endpoint)
        return guest is None or guest.certain

    def holds(self, claim: Claim) -> bool:
        """See :class:`Claims`."""
        return self.certain(claim.caller) and self._identity(claim) is not None

    def current(self, claim: Claim) -> Identity | None:
        """See :class:`Claims`."""
        self._catch_up()
        return self._identity(claim)

    def _identity(self, claim: Claim) -> Identity | None:
        guest = self._guests.get(claim.caller)
        slot = guest.slots.get(claim.slot) if guest else None
        if guest is None or slot is None or slot[1] != claim.epoch:
            return None
        same = guest.identity.incarnation == claim.identity.incarnation
        return guest.identity if same else None

    def opened(self, claim: Claim, now: float) -> None:
        """See :class:`Claims`."""
        self._count(claim, 1)

    def closed(self, claim: Claim, now: float) -> None:
        """See :class:`Claims`."""
        self._count(claim, -1)

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """See :class:`Claims`."""
        guest = self._guests.get(endpoint)
        return guest.waits.pop(source_port, 0.0) if guest else 0.0

    def learn(self, messages: Iterable[Any]) -> None:
        """Apply states of :func:`endpoint_state`; call the listeners where a guest has left."""
        for message in messages:
            endpoint = Endpoint(*message["endpoint"])
            before = self._guests.pop(endpoint, None)
            for slot in before.slots if before is not None else ():
                self.keys.disown(endpoint, slot)
            if message["identity"] is not None:
                waits = {**(before.waits if before else {}), **dict(message["waits"])}
                # Older waits may belong to connections of other workers.
                self._guests[endpoint] = _MirroredGuest(
                    Identity(**message["identity"]),
                    {
                        slot: (_address(mac, ip, service), epoch)
                        for slot, mac, ip, service, epoch in message["slots"]
                    },
                    dict([*waits.items()][-WAITS_KEPT:]),
                    message["certain"],
                )
                for slot in self._guests[endpoint].slots:
                    self.keys.own(endpoint, slot)
            if before is not None and _lost(before, self._guests.get(endpoint)):
                for listener in self._listeners:
                    listener(endpoint)


def _address(mac: str, ip: str, service: str) -> GuestAddress:
    return GuestAddress(mac, ip_address(ip), IPv6Address(service) if service else None)


def _lost(before: _MirroredGuest, after: _MirroredGuest | None) -> bool:
    """Whether a claim that held before does not hold any more."""
    if after is None or after.identity.incarnation != before.identity.incarnation:
        return True
    return any(after.slots.get(number) != slot for number, slot in before.slots.items())


def identity_fields(identity: Identity) -> dict[str, Any]:
    """Return an identity as JSON values."""
    return {name: getattr(identity, name) for name in Identity.__slots__}


def endpoint_state(registry: Registry, endpoint: Endpoint, *, waits: bool = True) -> dict[str, Any]:
    """Return the state of *endpoint* for a mirror, as JSON values.

    :param waits: include the waiting times and remove them from the registry.
    """
    identity = registry.identity(endpoint)
    return {
        "endpoint": [endpoint.ofport, endpoint.vid],
        "identity": None if identity is None else identity_fields(identity),
        "slots": [
            [
                number,
                slot.address.mac,
                str(slot.address.ip),
                str(slot.address.service or ""),
                slot.epoch,
            ]
            for number, slot in registry.slots(endpoint).items()
        ],
        "waits": registry.take_waits(endpoint) if waits else [],
        "certain": registry.certain(endpoint),
    }
