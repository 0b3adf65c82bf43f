"""Where a database's blocking calls run.

A daemon has one hub, and whatever waits for a disk, a lock or another host has to wait in an OS
thread of its own. A command has nobody to keep waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Apart(Protocol):
    """Calls a step that may block and gives what it gives, or raises what it raises."""

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step*.

        :param seconds: how long it may take, with the time that it waits for its turn.
        :param abort: has a step that takes longer end soon; called while it runs.
        :param write: it changes the database.
        :raises TimeoutError: when its turn did not come in time.
        """
        ...


def at_once(step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool) -> T:
    """Call a step here and now; see :class:`Apart`. Nothing ends it but itself."""
    del seconds, abort, write
    return step()
