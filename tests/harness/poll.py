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

PATIENCE = float(os.environ.get("DFMETA_TEST_PATIENCE", "2"))
"""Factor of the harness's time limits: a busy machine stands still for seconds now and then, and an
emulated CPU is slow. A wait ends when its condition is true."""


def wait_for(predicate: Callable[[], T], timeout: float, what: str, *, interval: float = 0.02) -> T:
    """Return the first true value of ``predicate``.

    :param timeout: seconds, multiplied by :data:`PATIENCE`.
    :param what: completes the sentence "timed out after N s waiting for …".
    :param interval: seconds between two questions at first.
    :raises TimeoutError: there was no true value in time. Exceptions of the predicate propagate.
    """
    timeout *= PATIENCE
    began = time.monotonic()
    deadline = began + timeout
    while True:
        value = predicate()
        if value:
            return value
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(max(interval, min((now - began) * _SHARE, _LONGEST)))
