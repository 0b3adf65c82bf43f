"""Limits of the proxy for one guest and for all guests together."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfmeta.http.http1 import HeadLimits

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
    :class:`~dfmeta.http.progress.Progress`."""
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
