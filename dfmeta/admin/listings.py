"""JSON of the admin listener; a listing is made by one request at a time, and reused.

Each user of the host may ask for them, in a loop as well, and they are made in the guests' process.
So a listing takes a bounded share of its time, however often it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import webob

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
        self._lock = Semaphore(1)
        self._text = b""
        self._until = float("-inf")

    def text(self) -> bytes:
        """Return the listing as JSON."""
        with self._lock:
            begun = clock.now()
            if begun >= self._until:
                self._text = self._apart(encode, self._make())
                made = clock.now()
                self._until = made + min(SHARE * (made - begun), REUSED)
            return self._text

    def forget(self) -> None:
        """Make the text anew for the next request: the caller has changed the value."""
        self._until = float("-inf")


def json_response(value: Any, *, status: int = 200, allow: str = "") -> webob.Response:
    """Return a response with a JSON document.

    :param value: bytes: the document in its encoding.
    :param allow: methods, for a 405.
    """
    body = value if isinstance(value, bytes) else encode(value)
    response = webob.Response(
        status=status, content_type="application/json", charset="UTF-8", body=body
    )
    if allow:
        response.headers["Allow"] = allow
    return response


def encode(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()
