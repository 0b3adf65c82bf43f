"""Reads the kernel's connection tracking for ``dfmeta doctor``; changes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dfmeta.host.facts import CONNTRACK_KEEPS, ConntrackFacts

_SYSCTL = Path("/proc/sys/net/netfilter")
_TABLE = Path("/proc/thread-self/net/nf_conntrack")
"""One line for each entry; exists in kernels with CONFIG_NF_CONNTRACK_PROCFS."""
_COUNTERS = Path("/proc/thread-self/net/stat/nf_conntrack")
"""A line of names, then a line of hexadecimal numbers for each CPU."""


def read_conntrack(address: str, port: int | None) -> ConntrackFacts:
    """Read the conntrack table of the network namespace, its limit, and how often it was full.

    :param address: address of the proxy's listener.
    :param port: TCP port of the listener; None when it is not known.
    """
    counters = _counters()
    return ConntrackFacts(
        room=_number("nf_conntrack_max"),
        count=_number("nf_conntrack_count") or 0,
        guests=_connections(address, port),
        kept=_number("nf_conntrack_tcp_timeout_time_wait") or CONNTRACK_KEEPS,
        # A packet that loses a race for its entry increments both counters; a packet that finds the
        # table full increments only the first.
        dropped=max(counters.get("drop", 0) - counters.get("insert_failed", 0), 0),
        evicted=counters.get("early_drop", 0),
    )


def _number(name: str) -> int | None:
    """Return a value of nf_conntrack-sysctl; None when the kernel does not have it."""
    with contextlib.suppress(FileNotFoundError):
        return int((_SYSCTL / name).read_text())
    return None


def _connections(address: str, port: int | None) -> int | None:
    """Count the entries of TCP connections to the proxy; None when the table cannot be read."""
    if port is None:
        return None
    # The reply direction of an entry has these values as src= and sport=.
    to, at = f" dst={address} ".encode(), f" dport={port} ".encode()
    with contextlib.suppress(OSError), _TABLE.open("rb") as table:
        return sum(to in line and at in line and b" tcp " in line for line in table)
    return None


def _counters() -> dict[str, int]:
    """Return the sum of each counter over all CPUs; empty when the counters cannot be read."""
    with contextlib.suppress(OSError):
        names, *lines = (line.split() for line in _COUNTERS.read_text().splitlines())
        columns = zip(*lines, strict=True)
        return {
            name: sum(int(number, 16) for number in column)
            for name, column in zip(names, columns, strict=False)
        }
    return {}
