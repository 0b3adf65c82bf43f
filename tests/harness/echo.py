"""``echo.py ADDRESS COUNT TIMEOUT``: ICMP echo; exit status 0 if every request was answered.

The program uses a raw socket and the standard library, so that ping need not be installed.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def answered(link: socket.socket, address: str, sequence: int, timeout: float) -> bool:
    """Send one request and wait for its reply."""
    identity = os.getpid() & 0xFFFF
    head = struct.pack("!BBHHH", 8, 0, 0, identity, sequence)
    request = struct.pack("!BBHHH", 8, 0, checksum(head), identity, sequence)
    deadline = time.monotonic() + timeout
    try:
        link.sendto(request, (address, 0))
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            packet, (sender, _) = link.recvfrom(2048)
            reply = packet[(packet[0] & 15) * 4 :]
            kind, _, _, sent_by, number = struct.unpack("!BBHHH", reply[:8])
            if (kind, sent_by, number, sender) == (0, identity, sequence, address):
                return True
    except OSError:
        pass
    return False


def main() -> int:
    """Send ``COUNT`` requests."""
    address, count, timeout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as link:
        return int(not all(answered(link, address, n, timeout) for n in range(count)))


if __name__ == "__main__":
    sys.exit(main())
