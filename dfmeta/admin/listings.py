"""Listings of the admin listener as JSON: made by one request at a time, and reused.

Each user of the host may ask for them, in a loop as well, and they are made in the guests' process.
So a listing takes a bounded share of its time, however often it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from dfmeta.runtime import clock
from dfmeta.runtime.threads import Semaphore, call_in_thread

REUSED: Final = 1.0
"""Seconds for which a text is reused at most."""
SHARE: Final = 10
"""A text is reused for so many times as long as it took to make it: a small one is always new."""


class Reused:
    """The text of a listing.

    :param make: returns the value; may let other greenthreads run.
    :param apart: calls a function in another thread, while the hub serves guests.
    """

    def __init__(
        self, make: Callable[[], Any], *, apart: Callable[..., Any] = call_in_thread
    ) -> None:
        self._make, self._apart = make, apart
        self._one_at_a_time = Semaphore(1)
        self._text = b""
        self._until = float("-inf")

    def text(self) -> bytes:
        """Return the listing as JSON."""
        with self._one_at_a_time:
            begun = clock.now()
            if begun >= self._until:
                self._text = self._apart(_encoded, self._make())
                made = clock.now()
                self._until = made + min(SHARE * (made - begun), REUSED)
            return self._text

    def forget(self) -> None:
        """Make the text anew for the next request: the caller has changed the value."""
        self._until = float("-inf")


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
