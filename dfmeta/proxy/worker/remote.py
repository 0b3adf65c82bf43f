"""What a worker asks the daemon for, since it may not have it itself.

The embedded store is a file that only the daemon may read, rates are a port's over all workers, and
an error is logged once whichever worker has met it.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from typing import Any

from dfmeta import metrics
from dfmeta.exceptions import BackendError, BackendUpstreamError
from dfmeta.model import Answer, Caller, GuestRequest, Identity, View
from dfmeta.proxy.complaints import Complaints
from dfmeta.proxy.rate import RateLimiter, RateSettings, Verdict
from dfmeta.proxy.tokens import TokenMode
from dfmeta.proxy.worker.pipe import BYTES, Message, Pipe

PATIENCE = 1.0
"""Seconds for what the daemon answers from memory, and for its way on top of what a backend has."""
STORE_PATIENCE = 5.0
"""Seconds at least: the daemon may be busy with a switch that has come back."""
SAID = (None, "", *TokenMode)
"""All that a view may say of tokens."""


class RemoteStore:
    """The daemon's backend, over a pipe; see :class:`~dfmeta.proxy.backends.Backend`."""

    def __init__(self, pipe: Pipe, name: metrics.Backend) -> None:
        self.name = name
        self._pipe = pipe

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """Ask the daemon, which answers at once where the request goes on."""
        patience = deadline - time.monotonic()
        question = {
            "what": "open",
            "identity": identity_fields(identity),
            "request": {
                "method": request.method,
                "path": request.path,
                "query": request.query,
                "headers": dict(request.headers),
                "body": base64.b64encode(request.body).decode(),
                "guest_ip": request.guest_ip,
            },
            "patience": patience,
            "goes_on": [said for said in SAID if goes_on(said)],
        }
        reply = self._ask(question, max(max(patience, 0.0) + PATIENCE, STORE_PATIENCE))

        def answer() -> Answer:
            return Answer(
                reply["status"],
                reply[BYTES],
                content_type=reply["content_type"],
                headers=tuple((name, value) for name, value in reply["headers"]),
            )

        return View(reply["http_tokens"], answer)

    def remark(self, answer: Answer) -> str:
        """Nothing: see :class:`~dfmeta.proxy.backends.Backend`."""
        return ""

    def _ask(self, question: Message, timeout: float) -> Message:
        reply = self._pipe.ask(question, timeout)
        if reply is None:
            raise BackendError(backend=self.name, cause="the daemon has not answered", remedy="")
        if "error" in reply:
            kind = BackendUpstreamError if reply["upstream"] else BackendError
            raise kind(backend=self.name, cause=reply["error"], remedy=reply["remedy"])
        return reply


class RemoteRates(RateLimiter):
    """The daemon's counts; it is asked only where there are limits."""

    def __init__(self, settings: RateSettings, pipe: Pipe) -> None:
        super().__init__(settings)
        self._pipe = pipe

    def ask(self, caller: Caller, ip_version: int) -> Verdict:
        """Count one request of that port; one that the daemon is too slow for passes."""
        if not self.settings.enabled or ip_version not in self.settings.ip_versions:
            return Verdict()
        place = [*caller]
        reply = self._pipe.ask({"what": "rate", "endpoint": place, "ip": ip_version}, PATIENCE)
        if reply is None:
            return Verdict()
        return Verdict(reply["delay"], reply["refuse"], reply["retry_after"])

    def forget(self, caller: Caller) -> None:
        """Nothing: the daemon sees itself that another guest has the port."""


class RemoteComplaints(Complaints):
    """Complaints that the daemon logs."""

    def __init__(self, pipe: Pipe, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._pipe = pipe

    def say(self, caller: Caller, kind: str, level: int, message: str, *args: object) -> None:
        """Have the daemon log it, unless another worker has said the same."""
        self._pipe.send(
            {
                "what": "complaint",
                "endpoint": [*caller],
                "kind": kind,
                "level": level,
                "text": message % args,
            }
        )


def identity_fields(identity: Identity) -> dict[str, Any]:
    """An identity as values that JSON has."""
    return {name: getattr(identity, name) for name in Identity.__slots__}
