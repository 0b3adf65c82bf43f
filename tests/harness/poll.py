"""Waiting for conditions: nothing in the harness relies on a sleep of a fixed time."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = float(os.environ.get("DFMETA_TEST_DEADLINE", "60"))
"""Seconds of every wait. A wait ends when its condition is true; an emulated CPU needs more."""

_LONGEST = 0.1
_SHARE = 0.1
"""A pause is that share of the time waited, within its bounds: to ask is work, of several processes
for most predicates, and takes the CPU from that which is waited for."""


def wait_for(
    predicate: Callable[[], T], what: str, *, deadline: float = DEADLINE, interval: float = 0.02
) -> T:
    """Return the first true value of ``predicate``.

    :param what: completes the sentence "timed out after N s waiting for …".
    :param deadline: seconds; only a machine that boots needs another.
    :param interval: seconds between two questions at first.
    :raises TimeoutError: there was no true value in time. Exceptions of the predicate propagate.
    """
    began = time.monotonic()
    while not (value := predicate()):
        waited = time.monotonic() - began
        if waited >= deadline:
            raise TimeoutError(f"timed out after {deadline:g} s waiting for {what}")
        time.sleep(max(interval, min(waited * _SHARE, _LONGEST)))
    return value
