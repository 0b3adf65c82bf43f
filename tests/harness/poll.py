"""Waiting by looking: nothing in the harness sleeps for a fixed time and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(predicate: Callable[[], T], timeout: float, what: str, *, interval: float = 0.02) -> T:
    """Return the first true value of ``predicate``.

    :param timeout: seconds.
    :param what: completes the sentence "timed out after N s waiting for …".
    :raises TimeoutError: no true value came in time. An exception of the predicate passes through.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(interval)
