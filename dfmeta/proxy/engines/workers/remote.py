"""A worker's requests to the daemon, for functions that a worker may not have itself.

Only the daemon may read the file of the embedded store, rates count a port's requests over all
workers, and an error is logged once even if several workers meet it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dfmeta import metrics
from dfmeta.attach.documents import NOT_HERE, refusal
from dfmeta.errors import BackendError, BackendUpstreamError
from dfmeta.http.exchange import Abandoned, Exchange
from dfmeta.identity.registry import Claim
from dfmeta.model import Answer, Caller, GuestRequest, Identity, View
from dfmeta.proxy.backends.network_data import Vlan
from dfmeta.proxy.claims import identity_fields
from dfmeta.proxy.engines.workers.pipe import Message, Pipe, answer_of, request_fields
from dfmeta.proxy.rate import RateLimiter, RateSettings, Verdict
from dfmeta.proxy.tokens import TokenMode
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Complaints

PATIENCE = 1.0
"""Seconds for an answer that the daemon has in memory; also added to the time of a backend."""
ATTACH_PATIENCE = 60.0
"""Seconds for an answer of the API of attachments, which limits its own steps."""
STORE_PATIENCE = 5.0
"""Shortest time, in seconds, for an answer of the store: the daemon may be busy with a switch that
has reconnected."""
SILENT = "the daemon has not answered"
_LATE: Final = refusal(503, "daemon", SILENT, ("Retry-After", "2"))
SAID = (None, "", *TokenMode)
"""All values of :attr:`~dfmeta.model.View.http_tokens`."""


class RemoteStore:
    """The daemon's backend, over a pipe; see :class:`~dfmeta.proxy.application.Backend`."""

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
        """Query the daemon, which sends the answer along if the request goes on."""
        patience = deadline - clock.now()
        question = {
            "what": "open",
            "identity": identity_fields(identity),
            "request": request_fields(request),
            "patience": patience,
            "goes_on": [said for said in SAID if goes_on(said)],
        }
        reply = self._ask(question, max(max(patience, 0.0) + PATIENCE, STORE_PATIENCE))
        return View(reply["http_tokens"], lambda: answer_of(reply))

    def _ask(self, question: Message, timeout: float) -> Message:
        reply = self._pipe.ask(question, timeout)
        if reply is None:
            raise BackendError(backend=self.name, cause=SILENT, remedy="")
        if "error" in reply:
            kind = BackendUpstreamError if reply["upstream"] else BackendError
            raise kind(backend=self.name, cause=reply["error"], remedy=reply["remedy"])
        return reply


class RemoteSubports:
    """The subports of VMs, which the daemon knows.

    :param name: the backend whose answers they complete, for errors.
    """

    def __init__(self, pipe: Pipe, name: metrics.Backend) -> None:
        self._pipe = pipe
        self._name = name

    def of(self, identity: Identity, deadline: float) -> list[Vlan]:
        """See :data:`~dfmeta.proxy.backends.network_data.Subports`.

        :raises BackendError: when the daemon does not answer in time: an incomplete file would
            cost the VM its VLANs, since it reads the file once.
        """
        patience = max(deadline - clock.now(), PATIENCE)
        question = {"what": "subports", "identity": identity_fields(identity)}
        reply = self._pipe.ask(question, patience)
        if reply is None:
            raise BackendError(backend=self._name, cause=SILENT, remedy="")
        return [Vlan(*one) for one in reply["vlans"]]


class RemoteAttachments:
    """The daemon's API of attachments; see :class:`~dfmeta.proxy.attachments.Attachments`.

    :param quota: the configured quota, which limits a body.
    """

    def __init__(self, pipe: Pipe, *, quota: int) -> None:
        self._pipe = pipe
        self.quota = quota

    def allows(self, claim: Claim) -> bool:
        """Ask the daemon; False when it does not answer in time."""
        return self._allowed(claim) or False

    def refuse(self, exchange: Exchange[Claim]) -> Answer | None:
        """Return NOT_HERE for a guest that is not allowed; the daemon checks all others later.

        A VM that may have attachments must not read that it has none while the daemon is busy.
        """
        allowed = self._allowed(exchange.claim)
        if allowed is None:
            return _LATE
        return None if allowed else NOT_HERE

    def _allowed(self, claim: Claim) -> bool | None:
        """Ask the daemon; None when it does not answer in time."""
        reply = self._pipe.ask({"what": "attach?", "endpoint": [*claim.endpoint]}, PATIENCE)
        return None if reply is None else bool(reply["allowed"])

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Ask the daemon.

        :raises Abandoned: when the guest has changed.
        """
        request, claim = exchange.request, exchange.claim
        question = {
            "what": "attach",
            "endpoint": [*claim.endpoint],
            "incarnation": claim.identity.incarnation,
            "request": request_fields(request),
            "source_port": exchange.source_port,
        }
        reply = self._pipe.ask(question, ATTACH_PATIENCE)
        if reply is None:
            return _LATE
        if not reply["status"]:
            raise Abandoned("changed")
        return answer_of(reply)


class RemoteRates(RateLimiter):
    """The daemon's rate limits; it is queried only if limits are enabled."""

    def __init__(self, settings: RateSettings, pipe: Pipe) -> None:
        super().__init__(settings)
        self._pipe = pipe

    def ask(self, caller: Caller, ip_version: int) -> Verdict:
        """Count one request of a port; the request passes if the daemon does not answer in time."""
        if not self.settings.enabled or ip_version not in self.settings.ip_versions:
            return Verdict()
        place = [*caller]
        reply = self._pipe.ask({"what": "rate", "endpoint": place, "ip": ip_version}, PATIENCE)
        if reply is None:
            return Verdict()
        return Verdict(reply["delay"], reply["refuse"], reply["retry_after"])

    def forget(self, caller: Caller) -> None:
        """Do nothing: the daemon itself notices that another guest has the port."""


class RemoteComplaints(Complaints):
    """Complaints that the daemon logs."""

    def __init__(self, pipe: Pipe, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._pipe = pipe

    def say(self, caller: Caller, kind: str, level: int, message: str, *args: object) -> None:
        """Send the message to the daemon, which logs it unless another worker sent the same."""
        self._pipe.send(
            {
                "what": "complaint",
                "endpoint": [*caller],
                "kind": kind,
                "level": level,
                "text": message % args,
            }
        )
