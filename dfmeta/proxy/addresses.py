"""Guests of a store that many hosts share: there is no switch, and the address says who asks.

So it is as good as the network that leads guests here: who can take another's address gets the
other's metadata. dfmeta-agent, on the guest's own host, does not depend on that.

A connection is a peer's, and a request is a guest's: through one connection of a trusted proxy come
the requests of many. The books of the server and of the rates are kept by address here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from weakref import WeakValueDictionary

from eventlet.semaphore import Semaphore

from dfmeta import metrics
from dfmeta.exceptions import BackendError, ForwardedForError, StoreError
from dfmeta.model import Answer, GuestRequest, Identity, Peer, PeerAddress, View
from dfmeta.proxy import access
from dfmeta.proxy.application import Application
from dfmeta.proxy.exchange import Exchange, Turn
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.peers import Peers, described
from dfmeta.registry import Claim
from dfmeta.store.api.trusted import HEADER, TrustedProxies
from dfmeta.store.db.networks import Address
from dfmeta.store.db.record import Record
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest import dialects
from dfmeta.store.guest.backend import StoreBackend, failure

Find = Callable[[Address, str], Record | None]
"""Gives the record that has an address, with what it takes to answer for a path; raises
StoreError."""


@dataclass(frozen=True, slots=True)
class IdentifiedCaller(Identity):
    """Who asks, and the record that says so; None: the address is in no record."""

    record: Record | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Asking(Claim):
    """One request's claim: a record is looked for once, and holds until the answer leaves.

    Nothing is asked of the database before it is the request's turn among its guest's.
    """

    path: str
    """The request's, the guest's words."""
    turn: Callable[[], bool] = field(compare=False)
    """Waits for it; False: it did not come in time."""
    found: list[IdentifiedCaller] = field(default_factory=list, compare=False)


class Addresses(Peers):
    """Who asks, by address; see :class:`~dfmeta.proxy.claims.Claims`.

    :param find: see :data:`Find`; may be replaced at any time.
    :param trusted: whose X-Forwarded-For counts; the same.
    """

    def __init__(self, find: Find, trusted: TrustedProxies) -> None:
        self.find = find
        self.trusted = trusted
        self._proxies = itertools.count(1)

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim:
        """Say whose connection it is; nobody is turned away yet."""
        claim = super().claim(peer)
        if claim.address.ip in self.trusted:
            # As many connections as it likes: they are many guests'.
            return replace(claim, caller=Peer(None, next(self._proxies)))
        return claim

    def asking(self, address: Address, path: str, turn: Callable[[], bool]) -> Asking:
        """Give the claim of one request for *path* from *address*.

        :param turn: see :attr:`Asking.turn`.
        """
        return Asking(described(address), Peer(address), 0, 0, PeerAddress(address), path, turn)

    def current(self, claim: Claim) -> Identity | None:
        """Look for the record of who asks, once for each request.

        :raises BackendError: when nobody can say.
        """
        if not isinstance(claim, Asking):
            return claim.identity
        if not claim.found:
            if not claim.turn():
                raise BackendError(backend="store", cause="has too many requests of it at once")
            claim.found.append(self._look(claim.address.ip, claim.path))
        return claim.found[0]

    def _look(self, address: Address, path: str) -> IdentifiedCaller:
        try:
            # An address that means something on one link alone cannot be in a record.
            zone = getattr(address, "scope_id", None)
            record = None if zone else self.find(address, path)
        except StoreError as error:
            raise failure(error) from error
        return IdentifiedCaller(
            instance_id=record.id if record else "",
            project_id=(record.project_id or "") if record else "",
            # A token is the record's, whichever of its addresses asks.
            port_id="",
            port_name=str(address),
            incarnation=0,
            record=record,
        )


class AddressApplication:
    """Finds out whose request it is, and has it answered as any guest's.

    :param application: answers.
    :param limits: gives those in force.
    """

    def __init__(
        self, application: Application, addresses: Addresses, limits: Callable[[], Limits]
    ) -> None:
        self._application = application
        self._addresses = addresses
        self._limits = limits
        self._places: WeakValueDictionary[Peer, Semaphore] = WeakValueDictionary()
        """Of guests behind proxies, while they have requests."""

    def answer(self, exchange: Exchange) -> Answer:
        """Answer one request; see :data:`~dfmeta.proxy.exchange.Handler`.

        :raises Abandoned: when nothing may be answered.
        """
        peer, request = exchange.claim, exchange.request
        try:
            address = self._addresses.trusted.guest(peer.address.ip, request.headers.get(HEADER))
        except ForwardedForError as error:
            access.refused(peer, 400, "forwarded_for")
            return Answer(400, f"400 Bad Request: {error}\n".encode())
        if peer.caller == Peer(address):
            return self._ask(exchange, address)
        turn = Turn(self._place(Peer(address)))
        request = replace(request, guest_ip=str(address))
        try:
            return self._ask(replace(exchange, request=request, turn=turn), address)
        finally:
            # The proxy takes the answer, not the guest: nothing more is waited for.
            turn.end()

    def _ask(self, exchange: Exchange, address: Address) -> Answer:
        path, turn = exchange.request.path, partial(exchange.turn, exchange.deadline)
        claim = self._addresses.asking(address, path, turn)
        return self._application.answer(replace(exchange, claim=claim, turn=_has_come))

    def _place(self, peer: Peer) -> Semaphore:
        found = self._places.get(peer)
        if found is None:
            found = self._places[peer] = Semaphore(self._limits().requests_per_port)
        return found


class AddressStore:
    """The store as a backend that answers from the record which the address has found.

    :param repository: keeps passwords.
    :param settings: of answers.
    """

    name: metrics.Backend = "store"

    def __init__(self, repository: Repository, settings: dialects.Settings | None = None) -> None:
        self._store = StoreBackend(repository, settings)

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """See :class:`~dfmeta.proxy.backends.Backend`."""
        del deadline, goes_on
        record = identity.record if isinstance(identity, IdentifiedCaller) else None
        return self._store.view(request, identity, record)

    def remark(self, answer: Answer) -> str:
        """See :class:`~dfmeta.proxy.backends.Backend`."""
        return self._store.remark(answer)


def _has_come(_deadline: float) -> bool:
    """The turn that was waited for before."""
    return True
