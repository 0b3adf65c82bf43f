"""How far a command's long work has come, on stderr.

A bar on a terminal, a line every few seconds in a pipe or a journal, and nothing of what is done
within a second. It is shown from a thread of its own, since what takes long may be one call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, TypeVar

from dfmeta.exceptions import printable
from dfmeta.wiring.last_words import PROG

BEGIN: Final = 1.0
"""Seconds within which nothing is shown."""
LINES: Final = 5.0
"""Seconds between two lines where there is no terminal."""
FRAMES: Final = 0.1
"""Seconds between two pictures of the bar."""

T = TypeVar("T")


@dataclass
class Work:
    """What is being done, and how far it is.

    :param what: for people.
    :param total: how many parts it has; None: nobody knows.
    :param unit: what the parts are.
    """

    what: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    look: Callable[[], int] | None = None
    """Tells how many are done, where nobody calls :meth:`advance`."""
    begun: float = field(default_factory=time.monotonic)

    def advance(self, parts: int = 1) -> None:
        """So many parts more are done."""
        self.done += parts

    def begin(self, what: str, total: int | None, unit: str = "") -> None:
        """Go over to something else."""
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.begun = time.monotonic()

    def line(self, now: float) -> str:
        """Say in words how far it is at *now*, monotonic seconds."""
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
    """Show the work of the block, unless it is done at once.

    :param look: tells how many parts are done; it is called in another thread.
    :param lines: where there is no terminal, lines are written.
    :param stream: in the place of stderr.
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
    """Yield items, and show how many have come."""
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
        stream.write(f"{PROG}: {work.line(time.monotonic())}\n")
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
            said = work.line(time.monotonic()).removeprefix(f"{work.what}: ")
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
