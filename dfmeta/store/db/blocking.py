"""How a database's blocking calls are run.

A daemon has one hub: calls that wait for a disk, a lock or another host must wait in an OS thread
of their own. A command serves no other work, and may block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Apart(Protocol):
    """Calls a step that may block, returns its result and passes on its errors."""

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step* and return its result.

        :param seconds: how long the step may take, including the time in a queue before it starts.
        :param abort: makes a step that takes longer end soon; called while the step runs.
        :param write: the step changes the database.
        :raises TimeoutError: the step could not start in time.
        """
        ...


def at_once(step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool) -> T:
    """Call a step in this thread; see :class:`Apart`. The time limit is not enforced."""
    del seconds, abort, write
    return step()
