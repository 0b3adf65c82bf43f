"""How much of the proxy one guest, and all of them, may have. Imports nothing."""

from __future__ import annotations

BACKLOG = 4096
CONNECTIONS_MAX = 4096
CONNECTIONS_PER_GUEST = 64
"""One endpoint has no more at a time, so that it takes nobody else's; cloud-init uses one."""
SYN_ACK_RETRIES = 1
"""What is half open is given up after 3 seconds and not 63 (tcp(7), TCP_SYNCNT): at the rate that a
port's meter lets through, one guest that never answers leaves room in the queue for the others."""
