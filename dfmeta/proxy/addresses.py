"""Guests of the central store: there is no switch, and the source address identifies a guest.

This identity is only as trustworthy as the network between the guests and the store: a guest that
can use another guest's address gets the other guest's metadata. dfmeta-agent, on the guest's own
host, does not depend on addresses.

A connection belongs to a peer, a request to a guest: one connection of a trusted proxy carries
requests of many guests. The server and the rate limits count by address here.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from weakref import WeakValueDictionary

from dfmeta.errors import BackendError, ForwardedForError, StoreError
from dfmeta.http.exchange import Exchange, RequestSlot
from dfmeta.http.limits import Limits
from dfmeta.identity.registry import Claim
from dfmeta.model import (
    ANYTIME,
    Answer,
    AnswerTerms,
    GuestRequest,
    Identity,
    Peer,
    PeerAddress,
    View,
)
from dfmeta.proxy import access, claims
from dfmeta.proxy.application import Application
from dfmeta.runtime.threads import Semaphore
from dfmeta.store.db.record import Address, Record
from dfmeta.store.guest.backend import StoreBackend, failure
from dfmeta.store.guest.requests import HEADER, TrustedProxies

Find = Callable[[Address, str], Record | None]
"""Return the record with an address, with the halves that the answer to a path needs; raise
StoreError."""


@dataclass(frozen=True, slots=True)
class IdentifiedCaller(Identity):
    """Identity of a guest, and the record that it comes from; None: no record has the address."""

    record: Record | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RequestClaim(Claim):
    """The claim of one request: its record is looked up once and used until the answer leaves.

    The database is not queried before the request has its turn among the requests of its guest.
    """

    path: str
    """Path of the request. Trust: it comes from the guest."""
    turn: Callable[[], bool] = field(compare=False)
    """Wait for the turn; False: it did not come in time."""
    lookup: list[IdentifiedCaller] = field(default_factory=list, compare=False)


class Addresses(claims.Claims):
    """Identify guests by address.

    :param find: see :data:`Find`; may be replaced at any time.
    :param trusted: proxies with an accepted X-Forwarded-For; may be replaced at any time.
    """

    def __init__(self, find: Find, trusted: TrustedProxies) -> None:
        self.find = find
        self.trusted = trusted
        self._proxies = itertools.count(1)

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim:
        """Return the claim of a new connection; no peer is refused yet."""
        address = getattr(peer, "ipv4_mapped", None) or peer
        # Without a limit for a proxy's address: its connections carry many guests' requests.
        trusted = address in self.trusted
        caller = Peer(None, next(self._proxies)) if trusted else Peer(address)
        return Claim(described(address), caller, 0, 0, PeerAddress(address))

    def asking(self, address: Address, path: str, turn: Callable[[], bool]) -> RequestClaim:
        """Return the claim of one request for *path* from *address*.

        :param turn: see :attr:`RequestClaim.turn`.
        """
        peer = PeerAddress(address)
        return RequestClaim(described(address), Peer(address), 0, 0, peer, path, turn)

    def current(self, claim: Claim) -> Identity | None:
        """Return the identity of the claim; look up the record once for each request.

        :raises BackendError: when the store cannot be queried, or the turn did not come in time.
        """
        if not isinstance(claim, RequestClaim):
            return claim.identity
        if not claim.lookup:
            if not claim.turn():
                raise BackendError(backend="store", cause="has too many requests of this guest")
            claim.lookup.append(self._look(claim.address.ip, claim.path))
        return claim.lookup[0]

    def _look(self, address: Address, path: str) -> IdentifiedCaller:
        try:
            # An address with a zone is valid on one link only and cannot be in a record.
            zone = getattr(address, "scope_id", None)
            record = None if zone else self.find(address, path)
        except StoreError as error:
            raise failure(error) from error
        return IdentifiedCaller(
            instance_id=record.id if record else "",
            project_id=(record.project_id or "") if record else "",
            # A token belongs to the record and is valid for each of its addresses.
            port_id="",
            port_name=str(address),
            incarnation=0,
            record=record,
        )


class AddressApplication:
    """Identify the guest of a request and pass the request to the application.

    :param application: makes the answers.
    :param limits: return the limits in force.
    """

    def __init__(
        self, application: Application, addresses: Addresses, limits: Callable[[], Limits]
    ) -> None:
        self._application = application
        self._addresses = addresses
        self._limits = limits
        self._places: WeakValueDictionary[Peer, Semaphore] = WeakValueDictionary()
        """Semaphores of guests behind proxies, while they have requests."""

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Answer one request; see :data:`~dfmeta.http.exchange.Handler`.

        :raises Abandoned: when the connection is to be closed without an answer.
        """
        peer, request = exchange.claim, exchange.request
        try:
            address = self._addresses.trusted.guest(peer.address.ip, request.headers.get(HEADER))
        except ForwardedForError as error:
            access.refused(peer, 400, "forwarded_for")
            return Answer(400, f"400 Bad Request: {error}\n".encode())
        if peer.caller == Peer(address):
            return self._ask(exchange, address)
        slot = RequestSlot(self._place(Peer(address)))
        request = replace(request, guest_ip=str(address))
        try:
            return self._ask(exchange._replace(request=request, acquire=slot), address)
        finally:
            # The proxy receives the answer, not the guest: the slot need not last until it is sent.
            slot.end()

    def _ask(self, exchange: Exchange[Claim], address: Address) -> Answer:
        path, turn = exchange.request.path, partial(exchange.acquire, exchange.deadline)
        claim = self._addresses.asking(address, path, turn)
        return self._application.answer(exchange._replace(claim=claim, acquire=_is_acquired))

    def _place(self, peer: Peer) -> Semaphore:
        semaphore = self._places.get(peer)
        if semaphore is None:
            semaphore = self._places[peer] = Semaphore(self._limits().requests_per_port)
        return semaphore


class AddressStore(StoreBackend):
    """The store as a backend that answers from the record that was found by address."""

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms = ANYTIME) -> View:
        """See :class:`~dfmeta.proxy.application.Backend`."""
        record = identity.record if isinstance(identity, IdentifiedCaller) else None
        return self.view(request, identity, record)


def described(address: Address) -> Identity:
    """Return an identity for the logs that contains only the address."""
    return Identity("by its address", "", "", str(address), 0)


def _is_acquired(_deadline: float) -> bool:
    """Return True: the request has its slot already."""
    return True
