"""Reads directories with XML files of libvirt's domains. No eventlet: commands use it too."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dfmeta.errors import DomainError
from dfmeta.runtime import clock
from dfmeta.sources.domain import SIZE_MAX, Domain, parse

SUFFIX: Final = ".xml"
_Stamp = tuple[int, int, int, int]


@dataclass(slots=True)
class Scan:
    """The result of one scan of the directories."""

    started: float
    """Monotonic seconds at the start of the scan."""
    domains: list[Domain] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Files that have become unreadable since the previous scan, each with its cause."""
    error: str = ""
    """An existing directory that cannot be listed, with its cause; empty when there is none."""


class Folders:
    """Reads each file once, and again after it has changed. Runs in an OS thread; never logs there.

    :param paths: directories with ``*.xml``; a directory that does not exist counts as empty.
    """

    def __init__(self, paths: Sequence[Path], *, clock: Callable[[], float] = clock.now):
        self._paths = tuple(paths)
        self._clock = clock
        self._known: dict[str, tuple[_Stamp, Domain | None]] = {}

    def scan(self) -> Scan:
        """Check all files and parse those that are new or changed."""
        scan = Scan(self._clock())
        known: dict[str, tuple[_Stamp, Domain | None]] = {}
        for folder in self._paths:
            try:
                entries = [e for e in os.scandir(folder) if e.name.endswith(SUFFIX)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                scan.error = f"{folder}: {error.strerror}"
                continue
            for entry in entries:
                self._look_at(entry, scan, known)
        self._known = known
        scan.domains = [domain for _stamp, domain in known.values() if domain is not None]
        return scan

    def _look_at(
        self,
        entry: os.DirEntry[str],
        scan: Scan,
        known: dict[str, tuple[_Stamp, Domain | None]],
    ) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # it was deleted in the meantime
        if not stat.S_ISREG(status.st_mode):
            return
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
        before = self._known.get(entry.path)
        if before is not None and before[0] == stamp:
            known[entry.path] = before
            return
        domain = None
        try:
            with open(entry.path, "rb") as file:
                domain = parse(file.read(SIZE_MAX + 1))
        except FileNotFoundError:
            return
        except (OSError, DomainError) as error:
            scan.broken.append(f"{entry.path}: {error}")
        known[entry.path] = (stamp, domain)
