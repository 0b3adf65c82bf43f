"""Limits of the proxy for one guest and for all guests together, and the limiter of connections.

The limiter decides which connections are served, wait or are closed. No I/O.
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from dfmeta.http.http1 import HeadLimits
from dfmeta.metrics import Limit
from dfmeta.model import Caller

C = TypeVar("C")

BACKLOG = 4096
SYN_ACK_RETRIES = 3
"""Half-open connections are given up after 15 seconds instead of 63 (tcp(7), TCP_SYNCNT).

A guest may answer late, because it was paused for a snapshot or because ovs-vswitchd was busy for
5 seconds with the deletion of 400 ports; after the end its ACK is answered by a reset. When a flood
fills more than half of the queue, Linux itself makes fewer retries
(net/ipv4/inet_connection_sock.c, reqsk_timer_handler), and a full queue sends SYN cookies."""
SEND_BUFFER = 65536
RECEIVE_BUFFER = 16384
"""Bytes that the kernel buffers of an answer that the guest does not read, and of input that is not
read yet (socket(7); Linux doubles the value for its own overhead). Without them, the buffers grow
up to megabytes for each connection (tcp(7), tcp_wmem)."""


VM_PART = 8
"""Part of all connections that a virtual machine may have with its containers, as a divisor."""
CROWDED = 0.75
"""Share of all connections from which on a virtual machine gets only :data:`FEW`, and no connection
is kept for another request; share of a virtual machine's connections from which on each of its
ports gets only :data:`FEW`."""
SCARCE = 0.875
"""Share of all connections from which on a virtual machine gets only one."""
FEW = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of guests, in seconds and bytes; each has an option of its own."""

    head: HeadLimits = field(default_factory=HeadLimits)
    header_timeout: float = 10.0
    """Seconds until the request line and headers must be complete."""
    body: int = 4096
    """Bytes of the body of a guest's POST; Nova accepts 1,020 for a password. See also
    :data:`~dfmeta.http.http1.CHUNKS`."""
    body_timeout: float = 10.0
    """Seconds until the body must be complete."""
    keepalive_timeout: float = 15.0
    """Seconds between an answer and the first byte of the next request; 0: one request for each
    connection."""
    send_timeout: float = 30.0
    """Seconds without progress until an answer is given up, see
    :class:`~dfmeta.http.connection.SendProgress`."""
    connections_per_port: int = 16
    """Connections of a port that are served at a time; cloud-init uses one."""
    waiting_per_port: int = 48
    """Accepted connections of a port that wait until others of the port end."""
    connections: int = 4096
    """Connections of all guests, including those that wait."""
    requests_per_port: int = 8
    """Requests of a port at a time, from the request to the last byte of its answer; further
    requests wait."""

    @property
    def per_port(self) -> int:
        """Connections of a port, including those that wait."""
        return self.connections_per_port + self.waiting_per_port

    def of_vm(self, most: int) -> int:
        """Return how many connections a virtual machine may have, with its containers.

        :param most: connections of all guests.
        """
        return max(2 * self.per_port, most // VM_PART)

    def shares(self, most: int) -> tuple[tuple[int, int], ...]:
        """Return how many connections a virtual machine may have, by those of all guests.

        So many guests that each stay within their own limits still leave places for the others.

        :param most: connections of all guests.
        :returns: number of all guests' connections from which on the share applies, and the share;
            the last one that applies counts.
        """
        return (
            (0, self.of_vm(most)),
            (int(most * CROWDED), FEW),
            (int(most * SCARCE), 1),
        )


class Admission(enum.Enum):
    """Decision about an accepted connection."""

    SERVED = enum.auto()
    WAITS = enum.auto()
    """It waits until :meth:`ConnectionLimiter.leave` returns it."""
    REFUSED = enum.auto()


@dataclass(frozen=True, slots=True)
class LimiterResult(Generic[C]):
    """Result of :meth:`ConnectionLimiter.enter`."""

    admission: Admission
    limit: Limit | Literal[""] = ""
    """Option of the limit that was reached."""
    close: tuple[C, ...] = ()
    """Kept connections to close in favour of the new one; they still have to leave."""
    gone: C | None = None
    """A waiting connection that has lost its place; the limiter has forgotten it already."""


_SERVED: Final[LimiterResult[Any]] = LimiterResult(Admission.SERVED)


@dataclass(slots=True)
class _Port(Generic[C]):
    vm: str
    served: set[C] = field(default_factory=set)
    waiting: deque[C] = field(default_factory=deque)
    idle: dict[C, None] = field(default_factory=dict)
    """Idle connections, the longest idle first."""


class ConnectionLimiter(Generic[C]):
    """Connections by port. A port that uses its full share takes nothing from other ports, nor does
    a virtual machine with its containers.

    :param limits: may be replaced; existing connections stay.
    :param quiet: whether an idle connection has received nothing, so that it may be closed.
    """

    def __init__(self, limits: Limits, *, quiet: Callable[[C], bool]) -> None:
        self.limits = limits
        self._quiet = quiet
        self._ports: dict[Caller, _Port[C]] = {}
        self._idle: dict[C, Caller] = {}
        self._vms: Counter[str] = Counter()
        """Virtual machine → its connections, with those of its containers."""
        self._total = 0

    @property
    def limits(self) -> Limits:
        """The limits that apply to the next connection."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Replace the limits."""
        self._limits, most = limits, limits.connections
        # Each accepted connection needs them.
        self._shares = limits.shares(most)[::-1]
        self._crowded_vm = int(limits.of_vm(most) * CROWDED)

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[C]:
        for caller in list(self._ports):
            yield from self.of(caller)

    def of(self, caller: Caller) -> list[C]:
        """Return the connections of a port, including those that wait."""
        port = self._ports.get(caller)
        return [*port.served, *port.waiting] if port else []

    def awaited(self, caller: Caller) -> int:
        """Return the number of connections of a port that wait for a place."""
        port = self._ports.get(caller)
        return len(port.waiting) if port is not None else 0

    def crowded(self) -> list[Caller]:
        """Return the ports with connections that wait for a place."""
        return [caller for caller, port in self._ports.items() if port.waiting]

    def waits(self, caller: Caller, connection: C) -> bool:
        """Whether a connection waits for a place."""
        port = self._ports.get(caller)
        return port is not None and connection in port.waiting

    def enter(self, caller: Caller, connection: C, vm: str = "") -> LimiterResult[C]:
        """Find a place for a new connection of a port.

        :param vm: the virtual machine that the port belongs to; empty: of none, such as a client of
            the admin listener, behind whose address there may be many. Shares are those of virtual
            machines.
        """
        port = self._ports.get(caller) or _Port(vm)
        close: list[C] = []
        gone = None
        full = self._total >= self._limits.connections
        if self._has_its_share(port):
            close += self._take_idle(port.idle)
            if not close:
                return LimiterResult(Admission.REFUSED, "connections")
        elif full:
            close += self._take_idle(self._idle)
            gone = None if close else self._take_waiting(port)
            if not close and gone is None:
                return LimiterResult(Admission.REFUSED, "connections")
        self._ports[caller] = port
        if len(port.served) < self._limits.connections_per_port:
            port.served.add(connection)
            self._add(port, 1)
            if not full and not close:
                return _SERVED
            return LimiterResult(
                Admission.SERVED, "connections" if full else "", tuple(close), gone
            )
        of_port = [kept for kept in close if kept in port.served] or self._take_idle(port.idle)
        close += [kept for kept in of_port if kept not in close]
        if len(port.waiting) >= self._limits.waiting_per_port and not of_port:
            return LimiterResult(Admission.REFUSED, "waiting_per_port", tuple(close), gone)
        port.waiting.append(connection)
        self._add(port, 1)
        return LimiterResult(Admission.WAITS, "connections_per_port", tuple(close), gone)

    def leave(self, caller: Caller, connection: C) -> C | None:
        """Forget a connection; return the connection to serve in its place, if any."""
        port = self._ports.get(caller)
        if port is None:
            return None
        self.busy(caller, connection)
        if connection in port.served:
            port.served.remove(connection)
        elif connection in port.waiting:
            port.waiting.remove(connection)
        else:
            return None
        self._add(port, -1)
        following = None
        if port.waiting and len(port.served) < self._limits.connections_per_port:
            following = port.waiting.popleft()
            port.served.add(following)
        if not port.served and not port.waiting:
            del self._ports[caller]
        return following

    def idle(self, caller: Caller, connection: C) -> None:
        """Note that a connection is kept for another request."""
        port = self._ports.get(caller)
        if port is not None and connection in port.served:
            port.idle[connection] = None
            self._idle[connection] = caller

    def longest_idle(self, wanted: Callable[[C], bool], caller: Caller | None = None) -> C | None:
        """Return the longest idle connection that is *wanted*, to be closed; None: there is none.

        :param caller: its port; None: any port.
        """
        port = self._ports.get(caller) if caller is not None else None
        idle = self._idle if caller is None else port.idle if port is not None else {}
        taken = self._take_idle(kept for kept in idle if wanted(kept))
        return taken[0] if taken else None

    def busy(self, caller: Caller, connection: C) -> None:
        """Note that a request has begun on an idle connection."""
        self._idle.pop(connection, None)
        port = self._ports.get(caller)
        if port is not None:
            port.idle.pop(connection, None)

    def _take_idle(self, candidates: Iterable[C]) -> list[C]:
        idle = next((kept for kept in candidates if self._quiet(kept)), None)
        if idle is None:
            return []
        self.busy(self._idle[idle], idle)
        return [idle]

    def _take_waiting(self, wanting: _Port[C]) -> C | None:
        """Take the newest waiting connection of the port with most, if *wanting* has fewer."""
        port = max(self._ports.values(), key=lambda candidate: len(candidate.waiting))
        if len(port.waiting) <= len(wanting.waiting):
            return None
        self._add(port, -1)
        return port.waiting.pop()

    def _has_its_share(self, port: _Port[C]) -> bool:
        """Return whether a port, or its virtual machine, has all the connections it may have now.

        The limits of the port alone are not looked at.
        """
        if not port.vm:
            return False
        of_vm = self._vms[port.vm]
        if of_vm >= next(share for begins, share in self._shares if self._total >= begins):
            return True
        crowded = of_vm >= self._crowded_vm
        return crowded and len(port.served) + len(port.waiting) >= FEW

    def _add(self, port: _Port[C], change: int) -> None:
        self._total += change
        self._vms[port.vm] += change
        if not self._vms[port.vm]:
            del self._vms[port.vm]
