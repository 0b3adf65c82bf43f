"""CPU time and memory of processes, by proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK: int = os.sysconf("SC_CLK_TCK")


def family(roots: Iterable[int]) -> list[int]:
    """Return *roots* and all their descendants, without processes that have ended."""
    result: list[int] = []
    ahead = list(roots)
    while ahead:
        pid = ahead.pop()
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                ahead += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        result.append(pid)
    return result


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return user and system time of the processes and their descendants (utime, stime of stat)."""
    total = 0
    for pid in family(roots):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


def thread_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process so far (schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(roots: Iterable[int]) -> float:
    """Return the proportional set size of the processes and their descendants in MB."""
    total = 0
    for pid in family(roots):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return round(total / 1024, 1)


def whole(pid: int) -> float:
    """Return the resident set size of one process in MB: shared memory counts in full (VmRSS)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return round(int(text.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def idle_seconds() -> float:
    """Return the time that all cores together have been idle so far (the first line of stat)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICK
