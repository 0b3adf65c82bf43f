"""The guests' server: accept connections, give each a place and supervise all of them.

A connection gets its claim from the peer's address when it is accepted, and keeps it until it
ends. An unknown peer gets no answer at all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Protocol

from dfmeta import metrics
from dfmeta.errors import BodyFault, HeadFault
from dfmeta.http.complaints import NOBODY, Complaints
from dfmeta.http.connection import GuestConnection
from dfmeta.http.connection_limiter import Decision, Room
from dfmeta.http.fairness import Rounds
from dfmeta.http.limits import CROWDED, Limits
from dfmeta.http.refusals import Refusals
from dfmeta.http.sockets import abort, close_now, keep_to
from dfmeta.identity.registry import Claim
from dfmeta.identity.syn_accounting import ACCEPTED
from dfmeta.model import Caller, Endpoint, Identity
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.threads import Semaphore, get_hub

LOG = logging.getLogger(__name__)

ACCEPT_PAUSE = 0.1
"""Seconds until accept is tried again after an error, for example without free descriptors."""
AT_ONCE = 32
"""Connections that are accepted before existing connections get their turn."""
POLL = 0.01
KEYS = 8192
"""Number of cached parsed addresses of peers."""


_address = functools.lru_cache(KEYS)(ip_address)


class Claims(Protocol):
    """The part of :class:`~dfmeta.identity.registry.Registry` that the proxy uses."""

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """Call *listener* with each endpoint whose guest has changed."""
        ...

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """Return the claim of the guest that sends from *peer*; None: there is no such guest."""
        ...

    def certain(self, endpoint: Caller) -> bool:
        """Whether the endpoint's ofport is certain; requests wait while it is in doubt."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether the same guest is certainly still there, so that an answer may leave."""
        ...

    def current(self, claim: Claim) -> Identity | None:
        """Return the present identity of the claim's guest; None: the claim does not hold."""
        ...

    def opened(self, claim: Claim, now: float) -> None:
        """Count an open connection of *claim*."""
        ...

    def closed(self, claim: Claim, now: float) -> None:
        """Undo the count of :meth:`opened`."""
        ...

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """Return and forget the seconds that the SYN of that connection was held."""
        ...


class Observer(Protocol):
    """Counts and logs what a connection does instead of a request."""

    def silent(self, claim: Claim, /) -> None:
        """Count a connection that sent nothing in time."""
        ...

    def refused(self, claim: Claim, status: int, reason: HeadFault | BodyFault, /) -> None:
        """Count input that is not an acceptable request."""
        ...


class GuestServer:
    """Serves guests until :meth:`stop`.

    :param listeners: listening sockets of eventlet, with the same port number.
    :param device: name of tap-metadata, through which answers leave; empty: through any device.
    :param application: what the connections call for each request: for guests, a
        :data:`~dfmeta.http.exchange.Handler`.
    :param hold_timeout: seconds that a request may wait in total, including the time that its first
        SYN was held.
    :param observer: counts connections that send no acceptable request.
    :param port: TCP port that guests' connections arrive at; 0: that of the listeners.
    """

    thread_name = "guests' listener"
    """Name of each thread that accepts connections."""

    def __init__(
        self,
        listeners: Sequence[Any],
        device: str,
        registry: Claims,
        application: Callable[..., Any],
        *,
        hold_timeout: float,
        limits: Limits,
        observer: Observer,
        port: int = 0,
    ) -> None:
        self.registry = registry
        self.hold_timeout = hold_timeout
        self.application = application
        self.observer = observer
        self.port = port or int(listeners[0].getsockname()[1])
        """TCP port that guests' connections arrive at."""
        self.draining = False
        self._listeners = tuple(listeners)
        self._device = device
        self._room: Room[GuestConnection] = Room(limits, quiet=lambda one: one.may_go)
        self._slots: dict[Caller, Semaphore] = {}
        self._rounds = Rounds()
        self._refusals = Refusals()
        self._threads: list[Any] = []
        self._complaints = Complaints(LOG)
        self._show_count(lambda: len(self._room))
        registry.subscribe(self._endpoint_changed)

    def start(self) -> None:
        """Accept connections from now on."""
        for sock in self._listeners:
            self._threads.append(hub.VITAL.spawn(self.thread_name, self._accept_loop, sock))

    @property
    def limits(self) -> Limits:
        """Limits of guests; new limits apply from the next connection and request on."""
        return self._room.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Replace the limits."""
        self._room.limits = limits
        self._slots.clear()

    def rebind(self) -> None:
        """Bind the open connections to the device after it was created again."""
        for connection in self._room:
            keep_to(connection.sock, self._device, anew=True)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all connections."""
        return [connection.sock.fileno() for connection in self._room]

    def stop(self, grace: float) -> None:
        """Stop accepting, let running requests finish, close the rest after *grace* seconds."""
        self.draining = True
        for thread in self._threads:
            thread.kill()
        for connection in list(self._room):
            if connection.between:
                connection.cut()
        with threads.Timeout(grace, False):
            while len(self._room):
                threads.sleep(POLL)
        for connection in list(self._room):
            connection.cut()

    # For the connections

    def may_keep(self, connection: GuestConnection) -> bool:
        """Whether the connection may be kept open after an answer.

        It is not when others of its port wait for a place: the answer says so.
        """
        limits = self.limits
        if not limits.keepalive_timeout or len(self._room) >= CROWDED * limits.connections:
            return False
        return connection.spared or not self._room.awaited(connection.claim.caller)

    def slots(self, connection: GuestConnection) -> Semaphore:
        """Return the semaphore for requests of the connection's port."""
        caller = connection.claim.caller
        found = self._slots.get(caller)
        if found is None:
            found = self._slots[caller] = Semaphore(self.limits.requests_per_port)
        return found

    def turn(self, connection: GuestConnection) -> None:
        """Wait for the turn of the connection's virtual machine on the hub."""
        self._rounds.turn(connection.claim.sharer)

    def hold_back(self, connection: GuestConnection) -> None:
        """Keep the place of a closed connection until its guest is within its share of refusals."""
        pause = self._refusals.pause(connection.claim.sharer)
        if pause and not self.draining:
            threads.sleep(pause)

    def idle(self, connection: GuestConnection) -> None:
        """Note that the connection waits for another request."""
        self._room.idle(connection.claim.caller, connection)

    def busy(self, connection: GuestConnection) -> None:
        """Note that another request has begun on the connection."""
        self._room.busy(connection.claim.caller, connection)

    # Overridden for other kinds of connections

    def _connection(self, client: Any, claim: Claim, began: float) -> GuestConnection:
        return GuestConnection(client, claim, self, began=began)

    def _show_count(self, count: Callable[[], int]) -> None:
        metrics.CONNECTIONS.set_function(count)

    def _note_crowd(self) -> None:
        """Note that a connection waits for a place; it gets the next free place of its port."""

    def _note_closed(self, reason: metrics.Closed) -> None:
        metrics.CLOSED.labels(reason).inc()

    def _note_limit(self, limit: metrics.Limit) -> None:
        metrics.LIMITS.labels(limit).inc()

    # Accepting

    def _accept_loop(self, sock: Any) -> None:
        loop, accepting = get_hub(), threads.current()
        listener = None
        try:
            while True:
                if listener is None:
                    # Once, not for each connection: the hub switches to this greenlet, and this
                    # greenlet switches only back to the hub.
                    listener = loop.add(
                        loop.READ, sock.fileno(), accepting.switch, accepting.throw, None
                    )
                loop.switch()
                try:
                    self._accept_some(sock)
                except Exception as error:
                    # Any error: a server that stops accepting would fail all guests.
                    loop.remove(listener)
                    listener = None
                    self._complain_of_accept(error)
                    threads.sleep(ACCEPT_PAUSE)
        finally:
            if listener is not None:
                loop.remove(listener)
            sock.close()

    def _accept_some(self, sock: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            # Limited, so that existing connections get their turn.
            for _ in range(AT_ONCE):
                client, address = sock.fd.accept()
                try:
                    client.setblocking(False)
                    self._admit(client, address)
                except BaseException:
                    client.close()
                    raise

    def _complain_of_accept(self, error: Exception) -> None:
        if isinstance(error, OSError):
            self._complaints.about(
                NOBODY,
                "accept",
                "Cannot accept a connection: %s. Check the daemon's limits on file "
                "descriptors and memory",
                error.strerror,
            )
        else:
            self._note_closed("defect")
            self._complaints.about(
                NOBODY,
                "defect",
                "A connection failed while it was accepted. Report this with the traceback below",
                level=logging.ERROR,
                exc_info=True,
            )

    def _admit(self, client: Any, address: Any) -> None:
        peer, port = address[:2]
        self._enter(client, _address(peer), port)

    def _enter(
        self,
        client: Any,
        peer: IPv4Address | IPv6Address,
        port: int,
        *,
        waited: float = 0.0,
        counted: bool = False,
    ) -> None:
        """Give a connection its place.

        :param waited: seconds of hold_timeout that it has used already.
        :param counted: whether it is counted among the guest's connections already.
        """
        claim = self.registry.claim(peer)
        if claim is None:
            # An unknown peer: not even an error is sent.
            self._note_closed("unknown_peer")
            close_now(client)
            return
        if not counted:
            ACCEPTED.add(claim.caller, claim.identity.incarnation)
        waited += self.registry.take_wait(claim.caller, port)
        now = clock.now()
        connection = self._connection(client, claim, now - waited)
        entry = self._room.enter(claim.caller, connection, claim.identity.vm)
        if entry.limit:
            self._note_limit(entry.limit)
        for idle in entry.close:
            idle.cut()
        if entry.gone is not None:
            self._note_closed("too_many")
            self._discard(entry.gone)
        if entry.decision is Decision.REFUSED:
            self._note_closed("too_many")
            abort(client)
            client.close()
            return
        if self._device:
            keep_to(client, self._device)
        self.registry.opened(claim, now)
        if entry.decision is Decision.SERVED:
            self._start(connection)
        else:
            self._note_crowd()

    def _start(self, connection: GuestConnection) -> None:
        """Serve a connection from the next turn of its virtual machine on."""
        serve = functools.partial(self._serve, connection)
        self._rounds.spawn(connection.claim.sharer, serve)

    def _serve(self, connection: GuestConnection) -> None:
        try:
            connection.run()
        except Exception:
            # A defect of dfmeta must cost only this connection.
            self._note_closed("defect")
            self._complaints.about(
                connection.claim.caller,
                "defect",
                "A connection of %s failed; its client did not get an answer. Report this with "
                "the traceback below",
                connection.claim.identity.port_name,
                level=logging.ERROR,
                exc_info=True,
            )
        finally:
            self._leave(connection)

    def _leave(self, connection: GuestConnection) -> None:
        caller = connection.claim.caller
        following = self._room.leave(caller, connection)
        self._forget(connection)
        if following is not None:
            self._start(following)
        elif not self._room.of(caller):
            self._slots.pop(caller, None)

    def _forget(self, connection: GuestConnection) -> None:
        self.registry.closed(connection.claim, clock.now())
        connection.sock.close()

    def _discard(self, connection: GuestConnection) -> None:
        """End a waiting connection that the room has forgotten."""
        connection.abort()
        self._forget(connection)

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        for connection in self._room.of(endpoint):
            if self.registry.current(connection.claim) is not None:
                continue
            self._note_closed("changed")
            if self._room.waits(endpoint, connection):
                self._room.leave(endpoint, connection)
                self._discard(connection)
            else:
                connection.abort()
