"""Counters of the kernel's TCP that explain why a guest's SYN led to no connection."""

from __future__ import annotations

from pathlib import Path

_SNMP = Path("/proc/thread-self/net/snmp")
"""Counters of the network namespace (proc(5)): for each protocol a line of names, then a line of
numbers."""


def checksum_errors() -> int:
    """Return the number of TCP segments that this host dropped because of a wrong checksum.

    It is TcpInCsumErrors; 0 when the counter cannot be read.
    """
    try:
        lines = [line.split() for line in _SNMP.read_text().splitlines()]
    except OSError:
        return 0
    names, *numbers = (line for line in lines if line[:1] == ["Tcp:"])
    for line in numbers:
        return int(dict(zip(names, line, strict=False)).get("InCsumErrors", "0"))
    return 0
