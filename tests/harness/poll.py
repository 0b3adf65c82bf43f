"""Waiting for conditions: nothing in the harness relies on a sleep of a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LONGEST = 0.1
_SHARE = 0.1
"""A pause is that share of the time waited, within its bounds: to ask is work, of several processes
for most predicates, and takes the CPU from that which is waited for."""

_STRETCH = 3
_STRETCHED = 60.0
"""A limit becomes so many times as long, but not longer than so many seconds, while the machine has
no CPU to spare."""
_SPARE = 0.25
"""Seconds of an idle CPU in each second of a limit with which a machine is not too busy."""
_TICK = os.sysconf("SC_CLK_TCK")

PATIENCE = float(os.environ.get("DFMETA_TEST_PATIENCE", "2"))
"""Factor of the harness's time limits: a busy machine stands still for seconds now and then, and an
emulated CPU is slow. A wait ends when its condition is true."""


def _idle() -> float:
    """Return the seconds for which CPUs of this machine have had nothing to do (proc(5))."""
    with open("/proc/stat", encoding="ascii") as stat:
        _name, _user, _nice, _system, idle, waiting, *_more = stat.readline().split()
    return (int(idle) + int(waiting)) / _TICK


def wait_for(predicate: Callable[[], T], timeout: float, what: str, *, interval: float = 0.02) -> T:
    """Return the first true value of ``predicate``.

    Where the CPUs have had no time to spare, that which is waited for has had less than its share,
    and the wait goes on: for three times as long at most, and up to a minute.

    :param timeout: seconds, multiplied by :data:`PATIENCE`.
    :param what: completes the sentence "timed out after N s waiting for …".
    :param interval: seconds between two questions at first.
    :raises TimeoutError: there was no true value in time. Exceptions of the predicate propagate.
    """
    timeout *= PATIENCE
    began = time.monotonic()
    deadline = began + timeout
    longest = began + max(timeout, min(timeout * _STRETCH, _STRETCHED))
    idle: float | None = None
    while True:
        value = predicate()
        if value:
            return value
        # Most conditions are true at once.
        idle = _idle() if idle is None else idle
        now = time.monotonic()
        if now >= longest or (now >= deadline and _idle() - idle >= timeout * _SPARE):
            raise TimeoutError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(max(interval, min((now - began) * _SHARE, _LONGEST)))
