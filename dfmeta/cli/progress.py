"""Progress of a command's long work, in lines on stderr.

A separate thread writes them, since the work may be a single call. Work that is done within a
second has no line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TextIO, TypeVar

from dfmeta.errors import printable
from dfmeta.wiring.process import PROG

BEGIN: Final = 1.0
"""Seconds before the first line."""
LINES: Final = 5.0
"""Seconds between two lines."""

T = TypeVar("T")


@dataclass
class Work:
    """A piece of work and its progress."""

    what: str
    """Name of the work, as it is shown."""
    total: int | None = None
    """Number of its parts; None: unknown."""
    unit: str = ""
    """Name of the parts."""
    done: int = 0

    def begin(self, what: str, total: int | None, unit: str) -> None:
        """Replace this work by another, of which no part is finished."""
        self.what, self.total, self.unit, self.done = what, total, unit, 0

    def line(self) -> str:
        """Return the progress as text."""
        if not self.done:
            return self.what
        share = f" of {self.total:,}" if self.total else ""
        return f"{self.what}: {self.done:,}{share} {self.unit}".rstrip()


@contextlib.contextmanager
def shown(what: str, *, lines: bool = True, stream: TextIO | None = None) -> Iterator[Work]:
    """Show the progress of the block's work.

    :param lines: write lines also if *stream* is not a terminal.
    :param stream: stream for the progress; None: stderr.
    """
    stream = sys.stderr if stream is None else stream
    work, done = Work(printable(what)), threading.Event()
    thread = threading.Thread(target=_show, args=(work, done, stream), daemon=True)
    if lines or stream.isatty():
        thread.start()
    try:
        yield work
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def counted(items: Iterable[T], what: str, *, unit: str) -> Iterator[T]:
    """Yield *items*, and show the number of those that were yielded."""
    with shown(what) as work:
        work.unit = unit
        for item in items:
            yield item
            work.done += 1


def _show(work: Work, done: threading.Event, stream: TextIO) -> None:
    pause = BEGIN
    while not done.wait(pause):
        stream.write(f"{PROG}: {work.line()}\n")
        stream.flush()
        pause = LINES
