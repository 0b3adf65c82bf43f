"""The differences between the engines that doc/source/haproxy.rst names, for tests of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.harness.stand_in import ENGINE


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The behaviour of one engine where the other has another."""

    refusals: tuple[bytes, ...] = (b"HTTP/1.1 400 Bad Request\r\n",)
    """Status lines of answers to a request that is malformed."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Malformed requests of test_http_strict.py that the engine sends on as a clean one,
    and the number of requests on their connection that Nova gets then."""
    forwards: Mapping[str, int] = field(default_factory=dict)
    """Ambiguous answers of test_http_strict.py that the engine forwards, and their status."""
    unnamed: frozenset[str] = frozenset()
    """Causes of failed requests to one of several hosts of Nova that the log may not name."""
    ends_idle_at_once: bool = True
    """Whether a kept connection ends when its guest changes, and not at its next request."""


BEHAVIOURS: Final = {
    "wsgi": Behaviour(),
    "haproxy": Behaviour(
        refusals=(
            *Behaviour().refusals,
            b"HTTP/1.1 400 Bad request\r\n",
            # Of a Transfer-Encoding that it does not know.
            b"HTTP/1.1 422 Unprocessable Content\r\n",
        ),
        repairs={
            "folded header": 2,
            "bare LF": 2,
            # It ends the connection.
            "length and chunked": 1,
            "a list of lengths": 2,
            "chunks with bare LF": 2,
        },
        # It ignores the length (RFC 9112, 6.3).
        forwards={"length and chunked": 200},
        unnamed=frozenset({"closed the connection"}),
        ends_idle_at_once=False,
    ),
}
BEHAVIOUR: Final = BEHAVIOURS[ENGINE]
"""Of a daemon whose test sets no engine."""
