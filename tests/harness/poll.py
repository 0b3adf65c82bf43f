"""Waiting for conditions: nothing in the harness relies on a sleep of a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("DFMETA_TEST_PATIENCE", "1"))
"""Factor of the harness's time limits, because the CPU of an emulated machine is slow."""


def wait_for(predicate: Callable[[], T], timeout: float, what: str, *, interval: float = 0.02) -> T:
    """Return the first true value of ``predicate``.

    :param timeout: seconds, multiplied by :data:`PATIENCE`.
    :param what: completes the sentence "timed out after N s waiting for …".
    :raises TimeoutError: there was no true value in time. Exceptions of the predicate propagate.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(interval)
