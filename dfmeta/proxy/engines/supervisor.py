"""Supervision of the processes that answer guests: whether they answer, and when they start again.

Every process of either engine has the same time to start and to leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dfmeta.runtime import clock, threads
from dfmeta.runtime.throttle import LONGEST_PAUSE, Backoff

START_TIMEOUT: Final = 30.0
"""Seconds until a new process answers."""
DRAIN: Final = 10.0
"""Seconds that a replaced process may take to finish its requests."""
HEAD_START: Final = 0.3
"""Seconds by which the processes' grace at a stop is shorter than the daemon's."""
HANGS: Final = 5
"""Checks without an answer after which a process is killed. On a host that is short of CPU time, an
answer may take more than one check."""


class Restarts:
    """The pauses before a process is started again: each is longer while starts fail."""

    def __init__(self) -> None:
        self._backoff = Backoff()

    def pause(self, begun: float) -> None:
        """Wait after the end of a process, or after a start that has failed.

        :param begun: monotonic seconds of its start. A process that has lived for some seconds is
            no failed start.
        """
        now = clock.now()
        if now - begun > LONGEST_PAUSE:
            self._backoff.reset()
        self._backoff.failed(now)
        threads.sleep(self._backoff.until - now)


def watch(
    ask: Callable[[float], bool],
    ended: Callable[[], bool],
    *,
    beat: float,
    missed: Callable[[int], object] = lambda _count: None,
) -> bool:
    """Check a process until it has ended or hangs; return whether it hangs.

    A check that ends late does not count: the daemon itself was late.

    :param ask: ask the process, and return whether it has answered within so many seconds.
    :param beat: seconds for an answer, and of the pause until the next check.
    :param missed: called after each check with the number of those in a row without an answer.
    """
    count = 0
    while count < HANGS:
        begun = clock.now()
        answered = ask(beat)
        took = clock.now() - begun
        if answered:
            count = 0
        elif took <= beat + beat / 2:
            count += 1
        missed(count)
        # One that fails at once takes as long as others.
        threads.sleep(beat if answered else max(beat - took, 0))
        if ended():
            return False
    return True
