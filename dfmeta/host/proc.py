"""Reads proc(5) of each process. Only the standard library is imported."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_ROOM: Final = 1 << 16
_UIDS: Final = re.compile(rb"^Uid:((?:\t[0-9]+){4})$", re.MULTILINE)


def of_each(file: str, *, proc: Path = PROC) -> Iterator[tuple[int, bytes]]:
    """Yield the pid of each process, and what a file of its directory has, if it can be read."""
    for name in os.listdir(proc):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(name), _bytes(f"{proc}/{name}/{file}")


def users(*, proc: Path = PROC) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the pid of each visible process with its real, effective, saved and file system uid."""
    for pid, status in of_each("status", proc=proc):
        line = _UIDS.search(status)
        if line is not None:
            yield pid, frozenset(map(int, line[1].split()))


def _bytes(path: str) -> bytes:
    """Return what a file has, with the calls that this needs: a host has thousands of processes."""
    file = os.open(path, os.O_RDONLY)
    try:
        found = part = os.read(file, _ROOM)
        while part:
            part = os.read(file, _ROOM)
            found += part
    finally:
        os.close(file)
    return found
