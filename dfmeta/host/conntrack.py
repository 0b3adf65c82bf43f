"""Reads the kernel's connection tracking, for the doctor; changes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dfmeta.inspect.facts import CONNTRACK_KEEPS, ConntrackFacts

_SYSCTL = Path("/proc/sys/net/netfilter")
_TABLE = Path("/proc/thread-self/net/nf_conntrack")
"""A line for each entry, where the kernel is built with it (CONFIG_NF_CONNTRACK_PROCFS)."""
_COUNTERS = Path("/proc/thread-self/net/stat/nf_conntrack")
"""A line of names, then one of hexadecimal numbers for each CPU."""


def read_conntrack(address: str, port: int | None) -> ConntrackFacts:
    """Read the table of the network namespace, its limit, and how often it was full.

    :param address: the address of the proxy's listener.
    :param port: its TCP port; None: it is not known.
    """
    counters = _counters()
    return ConntrackFacts(
        room=_number("nf_conntrack_max"),
        count=_number("nf_conntrack_count") or 0,
        guests=_connections(address, port),
        kept=_number("nf_conntrack_tcp_timeout_time_wait") or CONNTRACK_KEEPS,
        # A packet that loses a race for its entry counts as both; one of a full table does not.
        dropped=max(counters.get("drop", 0) - counters.get("insert_failed", 0), 0),
        evicted=counters.get("early_drop", 0),
    )


def _number(name: str) -> int | None:
    """Read a value of nf_conntrack-sysctl; None where the kernel has none."""
    with contextlib.suppress(FileNotFoundError):
        return int((_SYSCTL / name).read_text())
    return None


def _connections(address: str, port: int | None) -> int | None:
    """Count the entries of TCP connections to the proxy; None where the table is not told."""
    if port is None:
        return None
    # The answer's direction has them as src= and sport=.
    to, at = f" dst={address} ".encode(), f" dport={port} ".encode()
    with contextlib.suppress(OSError), _TABLE.open("rb") as table:
        return sum(to in line and at in line and b" tcp " in line for line in table)
    return None


def _counters() -> dict[str, int]:
    """Add up what each CPU has counted since the namespace was made; empty where it is not told."""
    with contextlib.suppress(OSError):
        names, *lines = (line.split() for line in _COUNTERS.read_text().splitlines())
        columns = zip(*lines, strict=True)
        return {
            name: sum(int(number, 16) for number in column)
            for name, column in zip(names, columns, strict=False)
        }
    return {}
