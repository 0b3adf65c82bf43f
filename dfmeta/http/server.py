"""A server: accept connections, give each a place and supervise all of them.

A connection gets its claim from the peer's address when it is accepted, and keeps it until it
ends. An unknown peer gets no answer at all.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Generic, NamedTuple, Protocol

from dfmeta.http import exchange, limits, sockets
from dfmeta.http.connection import ServerConnection
from dfmeta.http.service import HttpService
from dfmeta.model import Caller, Endpoint
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.throttle import ALL_GUESTS, FIRST_PAUSE, PORTS, Complaints

LOG = logging.getLogger(__name__)

AT_ONCE = 32
"""Connections that are accepted before existing connections get their turn."""


_address = functools.lru_cache(PORTS)(ip_address)


class ClaimSource(Protocol[exchange.K]):
    """Identifies the clients of connections. By default, a claim holds until its connection ends.

    The registry of a host with a switch is such a source.
    """

    def claim(self, peer: IPv4Address | IPv6Address) -> exchange.K | None:
        """Return the claim of the client that sends from *peer*; None: there is none."""
        ...

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """Call *listener* with each endpoint whose guest has changed."""
        del listener

    def current(self, claim: exchange.K) -> object | None:
        """Return None when the claim does not hold any more."""
        return claim

    def opened(self, claim: exchange.K, now: float) -> None:
        """Count an open connection of *claim*."""
        del claim, now

    def closed(self, claim: exchange.K, now: float) -> None:
        """Undo the count of :meth:`opened`."""
        del claim, now

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """Return and forget the seconds that the SYN of that connection was held."""
        del endpoint, source_port
        return 0.0


class Introduction(NamedTuple):
    """The client of a connection."""

    ip: IPv4Address | IPv6Address
    port: int
    waited: float = 0.0
    """Seconds of hold_timeout that the connection has used already."""
    counted: bool = False
    """Whether it is counted as accepted already."""


class HttpServer(Generic[exchange.K]):
    """Serves clients until :meth:`stop`.

    :param listeners: listening sockets of eventlet, with the same port number.
    :param connect: makes a connection; see :class:`~dfmeta.http.connection.ServerConnection`.
    :param device: name of tap-metadata, through which answers leave; empty: through any device.
    :param introduce: returns the client of an accepted socket, and may wait for data of it; raises
        OSError to close it. None: the client is the socket's peer.
    :param name: of each thread that accepts connections.
    :param complaints: errors of connections.
    """

    def __init__(
        self,
        listeners: Sequence[Any],
        claims: ClaimSource[exchange.K],
        service: HttpService[exchange.K],
        *,
        connect: Callable[..., ServerConnection[exchange.K]] = ServerConnection,
        device: str = "",
        introduce: Callable[[Any], Introduction] | None = None,
        name: str = "guests' listener",
        complaints: Complaints | None = None,
    ) -> None:
        self.service = service
        self._claims = claims
        self._connect = connect
        self._introduce = introduce
        self._name = name
        self._listeners = tuple(listeners)
        self._device = device
        self._threads: list[Any] = []
        self._complaints = complaints or Complaints(LOG)
        claims.subscribe(self._endpoint_changed)

    def start(self) -> None:
        """Accept connections from now on."""
        for sock in self._listeners:
            self._threads.append(hub.VITAL.spawn(self._name, self._accept_loop, sock))

    def rebind(self) -> None:
        """Bind the open connections to the device after it was created again."""
        for connection in self.service.limiter:
            sockets.keep_to(connection.sock, self._device, anew=True)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all connections."""
        return [connection.sock.fileno() for connection in self.service.limiter]

    def stop(self, grace: float) -> None:
        """Stop accepting, let running requests finish, close the rest after *grace* seconds."""
        self.service.draining = True
        for thread in self._threads:
            thread.kill()
        for connection in list(self.service.limiter):
            if connection.between:
                connection.cut()
        threads.wait_until(lambda: not len(self.service.limiter), grace)
        for connection in list(self.service.limiter):
            connection.cut()

    # Accepting

    def _accept_loop(self, sock: Any) -> None:
        loop, accepting = threads.get_hub(), threads.current()
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
                    threads.sleep(FIRST_PAUSE)
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
                ALL_GUESTS,
                "accept",
                "Cannot accept a connection: %s. Check the daemon's limits on file "
                "descriptors and memory",
                error.strerror,
            )
        else:
            self.service.observer.closed("defect")
            self._complaints.about(
                ALL_GUESTS,
                "defect",
                "A connection failed while it was accepted. Report this with the traceback below",
                level=logging.ERROR,
                exc_info=True,
            )

    def _admit(self, client: Any, address: Any) -> None:
        if self._introduce is None:
            peer, port = address[:2]
            self._enter(client, Introduction(_address(peer), port))
        else:
            threads.spawn_detached(self._admit_introduced, client, self._introduce)

    def _admit_introduced(self, client: Any, introduce: Callable[[Any], Introduction]) -> None:
        try:
            self._enter(client, introduce(client))
        except OSError as error:
            LOG.debug("A connection of %s ended: %s", self._name, error)
            sockets.close_now(client)
        except Exception as error:
            client.close()
            self._complain_of_accept(error)

    def _enter(self, client: Any, peer: Introduction) -> None:
        """Give a connection its place."""
        claim = self._claims.claim(peer.ip)
        if claim is None:
            # An unknown peer: not even an error is sent.
            self.service.observer.closed("unknown_peer")
            sockets.close_now(client)
            return
        if not peer.counted:
            self.service.observer.accepted(claim)
        waited = peer.waited + self._claims.take_wait(claim.caller, peer.port)
        now = clock.now()
        connection = self._connect(
            client, claim, self.service, began=now - waited, source_port=peer.port
        )
        result = self.service.limiter.enter(claim.caller, connection, claim.vm)
        if result.limit:
            self.service.observer.limited(result.limit)
        for idle in result.close:
            idle.cut()
        if result.gone is not None:
            self.service.observer.closed("too_many")
            self._discard(result.gone)
        if result.admission is limits.Admission.REFUSED:
            self.service.observer.closed("too_many")
            sockets.abort(client)
            client.close()
            return
        if self._device:
            sockets.keep_to(client, self._device)
        self._claims.opened(claim, now)
        if result.admission is limits.Admission.SERVED:
            self._start(connection)

    def _start(self, connection: ServerConnection[exchange.K]) -> None:
        """Serve a connection from the next turn of its virtual machine on."""
        serve = functools.partial(self._serve, connection)
        self.service.scheduler.spawn(connection.claim.sharer, serve)

    def _serve(self, connection: ServerConnection[exchange.K]) -> None:
        try:
            connection.run()
        except Exception:
            # A defect of dfmeta must cost only this connection.
            self.service.observer.closed("defect")
            self._complaints.about(
                connection.claim.caller,
                "defect",
                "A connection of %s failed; its client did not get an answer. Report this with "
                "the traceback below",
                connection.claim.name,
                level=logging.ERROR,
                exc_info=True,
            )
        finally:
            self._leave(connection)

    def _leave(self, connection: ServerConnection[exchange.K]) -> None:
        caller = connection.claim.caller
        following = self.service.limiter.leave(caller, connection)
        self._forget(connection)
        if following is not None:
            self._start(following)
        elif not self.service.limiter.of(caller):
            self.service.forget(caller)

    def _forget(self, connection: ServerConnection[exchange.K]) -> None:
        self._claims.closed(connection.claim, clock.now())
        connection.sock.close()

    def _discard(self, connection: ServerConnection[exchange.K]) -> None:
        """End a waiting connection that the limiter has forgotten."""
        connection.abort()
        self._forget(connection)

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        for connection in self.service.limiter.of(endpoint):
            if self._claims.current(connection.claim) is not None:
                continue
            self.service.observer.closed("changed")
            if self.service.limiter.waits(endpoint, connection):
                self.service.limiter.leave(endpoint, connection)
                self._discard(connection)
            else:
                connection.abort()
