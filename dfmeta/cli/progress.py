"""Progress of a command's long work, on stderr.

A bar on a terminal, a line every few seconds in a pipe or a journal, and nothing for work that is
done within a second. A separate thread shows the progress, since the work may be a single call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, TypeVar

from dfmeta.errors import printable
from dfmeta.runtime import clock
from dfmeta.wiring.last_words import PROG

BEGIN: Final = 1.0
"""Seconds before progress is shown."""
LINES: Final = 5.0
"""Seconds between two lines if stderr is not a terminal."""
FRAMES: Final = 0.1
"""Seconds between two updates of the bar."""

T = TypeVar("T")


@dataclass
class Work:
    """A piece of work and its progress.

    :param what: name of the work, as it is shown.
    :param total: number of its parts; None: unknown.
    :param unit: name of the parts.
    """

    what: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    look: Callable[[], int] | None = None
    """Returns the number of finished parts, if :meth:`advance` is not called."""
    begun: float = field(default_factory=clock.now)

    def advance(self, parts: int = 1) -> None:
        """Add *parts* to the number of finished parts."""
        self.done += parts

    def begin(self, what: str, total: int | None, unit: str = "") -> None:
        """Replace this work by another, of which no part is finished."""
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.begun = clock.now()

    def line(self, now: float) -> str:
        """Return the progress at *now* (monotonic seconds) as text."""
        seconds = max(now - self.begun, 0.001)
        if not self.done:
            return f"{self.what}: {seconds:.0f} s"
        rate = self.done / seconds
        unit = f" {self.unit}" if self.unit else ""
        if not self.total:
            return f"{self.what}: {self.done:,}{unit}, {rate:,.0f} a second"
        share, left = self.done / self.total, max(self.total - self.done, 0) / rate
        return (
            f"{self.what}: {self.done:,} of {self.total:,}{unit} ({share:.0%}), "
            f"{rate:,.0f} a second, {left:.0f} s left"
        )


@contextlib.contextmanager
def shown(
    what: str,
    *,
    total: int | None = None,
    unit: str = "",
    look: Callable[[], int] | None = None,
    lines: bool = True,
    stream: TextIO | None = None,
) -> Iterator[Work]:
    """Show the progress of the block's work, unless it ends within :data:`BEGIN` seconds.

    :param look: returns the number of finished parts; it is called in another thread.
    :param lines: write lines if *stream* is not a terminal.
    :param stream: stream for the progress; None: stderr.
    """
    stream = sys.stderr if stream is None else stream
    work, done = Work(printable(what), total, unit, look=look), threading.Event()
    thread = threading.Thread(target=_show, args=(work, done, stream), daemon=True)
    if lines or stream.isatty():
        thread.start()
    try:
        yield work
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()


def counted(items: Iterable[T], what: str, *, unit: str = "") -> Iterator[T]:
    """Yield *items*, and show the number of those that were yielded."""
    with shown(what, unit=unit) as work:
        for item in items:
            yield item
            work.advance()


def _show(work: Work, done: threading.Event, stream: TextIO) -> None:
    if done.wait(BEGIN):
        return
    (_bar if stream.isatty() else _lines)(work, done, stream)


def _lines(work: Work, done: threading.Event, stream: TextIO) -> None:
    while not done.wait(LINES):
        _look(work)
        stream.write(f"{PROG}: {work.line(clock.now())}\n")
        stream.flush()


def _bar(work: Work, done: threading.Event, stream: TextIO) -> None:
    from rich import progress
    from rich.console import Console

    bars = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[said]}", markup=False),
        progress.TimeElapsedColumn(),
        console=Console(file=stream),
        redirect_stdout=sys.stdout.isatty(),
        transient=True,
    )
    with bars:
        task: Any = bars.add_task(work.what, total=work.total, said="")
        while not done.wait(FRAMES):
            _look(work)
            said = work.line(clock.now()).removeprefix(f"{work.what}: ")
            bars.update(
                task,
                description=work.what,
                total=work.total,
                completed=work.done,
                said=said if work.done else "",
            )


def _look(work: Work) -> None:
    if work.look is not None:
        with contextlib.suppress(OSError):
            work.done = work.look()
