"""Counters of the kernel's TCP that tell why a guest's SYN came to nothing."""

from __future__ import annotations

from pathlib import Path

_SNMP = Path("/proc/thread-self/net/snmp")
"""Of the network namespace (proc(5)); a line of names, then one of numbers, for each protocol."""


def checksum_errors() -> int:
    """TCP segments that this host has dropped for their checksum (TcpInCsumErrors); 0: not told."""
    try:
        lines = [line.split() for line in _SNMP.read_text().splitlines()]
    except OSError:
        return 0
    names, *numbers = (line for line in lines if line[:1] == ["Tcp:"])
    for line in numbers:
        return int(dict(zip(names, line, strict=False)).get("InCsumErrors", "0"))
    return 0
