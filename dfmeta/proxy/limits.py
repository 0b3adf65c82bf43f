"""How much of the proxy one guest, and all of them, may have."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfmeta.proxy.http1 import HeadLimits

BACKLOG = 4096
SYN_ACK_RETRIES = 1
"""What is half open is given up after 3 seconds and not 63 (tcp(7), TCP_SYNCNT): at the rate that a
port's meter lets through, one guest that never answers leaves room in the queue for the others."""
SEND_BUFFER = 65536
RECEIVE_BUFFER = 16384
"""Bytes that the kernel keeps of what a guest does not read, and of what it sends and nobody reads
yet (socket(7); Linux takes twice as much for its own books). Without, it is up to megabytes for
each connection (tcp(7), tcp_wmem)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a guest may take. Seconds and bytes; each has an option of its own."""

    head: HeadLimits = field(default_factory=HeadLimits)
    header_timeout: float = 10.0
    """For a request's line and header to come whole."""
    body: int = 4096
    """Of a guest's POST; Nova takes 1,020 for a password. See also
    :data:`~dfmeta.proxy.http1.CHUNKS`."""
    body_timeout: float = 10.0
    keepalive_timeout: float = 15.0
    """Between an answer and the next request's first byte; 0: each connection has one request."""
    send_timeout: float = 30.0
    """For an answer to be taken whole."""
    connections_per_port: int = 16
    """Served at a time; cloud-init uses one."""
    waiting_per_port: int = 48
    """Accepted, and served as soon as others of the port end."""
    connections: int = 4096
    """Of all guests, those that wait included."""
    requests_per_port: int = 8
    """From the request to the last byte of its answer; further ones wait."""
