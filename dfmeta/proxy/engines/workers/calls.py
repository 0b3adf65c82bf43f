"""The functions of the daemon that a worker calls, for parts that a worker may not have itself.

Only the daemon may read the file of the embedded store, rates count a port's requests over all
workers, and an error is logged once even if several workers meet it. The daemon also knows of each
change of a port first (:class:`Echo`), and which addresses of a guest are in use (:class:`Use`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dfmeta import errors, metrics
from dfmeta.attach.documents import NOT_HERE, refusal
from dfmeta.http.exchange import Abandoned, Exchange
from dfmeta.identity.registry import Claim
from dfmeta.model import Answer, AnswerTerms, Caller, Endpoint, GuestRequest, Identity, View
from dfmeta.proxy import application, rate, tokens
from dfmeta.proxy.attachments import LocalAttachments
from dfmeta.proxy.backends.network_data import Subports, Vlan
from dfmeta.proxy.engines.workers.pipe import (
    CallResult,
    Function,
    Pipe,
    answer_of,
    request_of,
    result_of,
)
from dfmeta.runtime import clock, threads, throttle

LOG = logging.getLogger(__name__)

ATTACH_TIMEOUT = 60.0
"""Seconds for an answer of the API of attachments, which limits its own steps."""
SILENT = "the daemon has not answered"
_LATE: Final = refusal(503, "daemon", SILENT, ("Retry-After", "2"))
TOKEN_WORDS = (None, "", *tokens.TokenMode)
"""All values of :attr:`~dfmeta.model.View.http_tokens`."""

# In the daemon


@dataclass(slots=True)
class WorkerAnswers:
    """The daemon's functions for workers.

    A worker has checked the claim of the request already, and checks it again before an answer
    leaves.
    """

    backend: application.Backend
    subports: Callable[[Identity], Sequence[Vlan]]
    """Returns the VLANs of a VM."""
    rates: rate.RateLimiter
    complaints: throttle.Complaints
    attachments: LocalAttachments | None = None
    """The API of attachments; None: it is not enabled, and workers do not ask for it."""

    def functions(self) -> dict[str, Function]:
        """Return the table of the functions."""
        return {
            "rate": Function(self._rate, list, int),
            "subports": Function(lambda fields: self.subports(Identity(**fields)), dict),
            "complain": Function(self._complain, list, str, int, str),
            "may_attach": Function(self._may_attach, list),
            "attach": Function(self._attach, list, int, dict, int, waits=True),
            "open": Function(self._open, dict, dict, float, list, waits=True),
        }

    def _rate(self, place: list[int], ip_version: int) -> rate.Verdict:
        return self.rates.ask(Endpoint(*place), ip_version)

    def _complain(self, place: list[int], kind: str, level: int, text: str) -> None:
        self.complaints.about(Endpoint(*place), kind, "%s", text, level=level)

    def _may_attach(self, place: list[int]) -> bool:
        return self.attachments is not None and self.attachments.allows_at(Endpoint(*place))

    def _attach(
        self, place: list[int], incarnation: int, request: dict[str, Any], source_port: int
    ) -> CallResult:
        answer = None
        try:
            if self.attachments is not None:
                answer = self.attachments.of_worker(
                    Endpoint(*place), incarnation, request_of(request), source_port
                )
        except Exception as error:
            # A defect costs only this request.
            LOG.exception(
                "A request for attachments failed: %s. Report this with the traceback below",
                type(error).__name__,
            )
            answer = refusal(500, "defect", "An error in dfmeta; its log has the cause")
        return CallResult({"changed": True}) if answer is None else result_of(answer)

    def _open(
        self,
        identity: dict[str, Any],
        request: dict[str, Any],
        patience: float,
        words: list[str | None],
    ) -> CallResult:
        try:
            terms = AnswerTerms(clock.now() + patience, lambda word: word in words)
            view = self.backend.open(request_of(request), Identity(**identity), terms)
            if view.http_tokens not in words:
                return CallResult({"http_tokens": view.http_tokens})
            return result_of(view.answer(), http_tokens=view.http_tokens)
        except errors.BackendError as error:
            upstream = isinstance(error, errors.BackendUpstreamError)
            return CallResult({"error": error.cause, "remedy": error.remedy, "upstream": upstream})


# In a worker


class RemoteStore:
    """The daemon's backend, over a pipe; see :class:`~dfmeta.proxy.application.Backend`."""

    def __init__(self, pipe: Pipe, name: metrics.Backend) -> None:
        self.name = name
        self._pipe = pipe

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        """Query the daemon, which sends the answer along if the request goes on."""
        patience = terms.deadline - clock.now()
        words = [word for word in TOKEN_WORDS if terms.should_answer(word)]
        # The daemon may be busy with a switch that has reconnected.
        timeout = max(patience, 0.0) + clock.ANSWER_TIMEOUT
        result = self._pipe.call("open", identity, request, patience, words, timeout=timeout)
        if result is None:
            raise errors.BackendError(backend=self.name, cause=SILENT, remedy="")
        fields = result.value
        if "error" in fields:
            kind = errors.BackendUpstreamError if fields["upstream"] else errors.BackendError
            raise kind(backend=self.name, cause=fields["error"], remedy=fields["remedy"])
        return View(fields["http_tokens"], lambda: answer_of(result))


def remote_subports(pipe: Pipe, name: metrics.Backend) -> Subports:
    """Return a function that asks the daemon for the subports of a VM.

    It raises a BackendError when the daemon does not answer in time: an incomplete file would cost
    the VM its VLANs, since it reads the file once.

    :param name: the backend whose answers they complete, for errors.
    """

    def subports(identity: Identity, deadline: float) -> list[Vlan]:
        patience = max(deadline - clock.now(), clock.ANSWER_TIMEOUT)
        result = pipe.call("subports", identity, timeout=patience)
        if result is None:
            raise errors.BackendError(backend=name, cause=SILENT, remedy="")
        return [Vlan(*fields) for fields in result.value]

    return subports


class RemoteAttachments:
    """The daemon's API of attachments; see :class:`~dfmeta.proxy.attachments.AttachmentResponder`.

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
        result = self._pipe.call("may_attach", claim.endpoint)
        return None if result is None else bool(result.value)

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Ask the daemon.

        :raises Abandoned: when the guest has changed.
        """
        claim, incarnation = exchange.claim, exchange.claim.identity.incarnation
        values = claim.endpoint, incarnation, exchange.request, exchange.source_port
        result = self._pipe.call("attach", *values, timeout=ATTACH_TIMEOUT)
        if result is None:
            return _LATE
        if "changed" in result.value:
            raise Abandoned("changed")
        return answer_of(result)


class RemoteRates(rate.RateLimiter):
    """The daemon's rate limits; it is queried only if limits are enabled."""

    def __init__(self, settings: rate.RateSettings, pipe: Pipe) -> None:
        super().__init__(settings)
        self._pipe = pipe

    def ask(self, caller: Caller, ip_version: int) -> rate.Verdict:
        """Count one request of a port; the request passes if the daemon does not answer in time."""
        if not self.settings.enabled or ip_version not in self.settings.ip_versions:
            return rate.Verdict()
        result = self._pipe.call("rate", caller, ip_version)
        return rate.Verdict() if result is None else rate.Verdict(**result.value)

    def forget(self, caller: Caller) -> None:
        """Do nothing: the daemon itself notices that another guest has the port."""


class RemoteComplaints(throttle.Complaints):
    """Complaints that the daemon logs."""

    def __init__(self, pipe: Pipe, logger: logging.Logger) -> None:
        super().__init__(logger)
        self._pipe = pipe

    def say(self, caller: Caller, kind: str, level: int, message: str, *args: object) -> None:
        """Send the message to the daemon, which logs it unless another worker sent the same."""
        self._pipe.send("complain", caller, kind, level, message % args)


Echoed = Callable[[float], bool]
"""Wait for the echo until those monotonic seconds; return whether it has come."""


class Echo:
    """A worker's question whether the daemon knows of every change until now.

    A port can get the ofport of another one. The switch reports it to the daemon, and the daemon
    tells its workers: until then, a worker takes the new guest for the former one. So a request's
    answer leaves only when the daemon has echoed a question that the worker asked after the request
    arrived. The daemon handles all reports of the switch before the echo, and the pipe keeps the
    order.

    Questions do not overlap: all requests that arrive during one share the next.

    :param ask: ask the daemon and wait for its echo; return False if there is none.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._next: threads.Event | None = None
        """The next echo, which is not asked for yet; None: no request has arrived for it."""
        self._asking = False

    def __call__(self) -> Echoed:
        """Have a question asked from now on."""
        if self._next is None:
            self._next = threads.Event()
            if not self._asking:
                self._asking = True
                threads.spawn_detached(self._run)
        event = self._next
        return lambda deadline: _wait(event, deadline)

    def _run(self) -> None:
        try:
            while self._next is not None:
                event, self._next = self._next, None
                event.send(self._ask())
        finally:
            self._asking = False


def _wait(event: threads.Event, deadline: float) -> bool:
    """Return whether the daemon has echoed, waiting until *deadline*."""
    if not event.ready():
        with threads.Timeout(max(deadline - clock.now(), 0.001), False):
            event.wait()
    return event.ready() and bool(event.wait())


SlotUse = tuple[int, int, int, int]
"""Ofport, VID, slot and epoch of an address."""


class Use:
    """Counts connections by address, so that the daemon does not evict the slots of those in use.

    The first connection is reported at once, the end of the last one late: a guest that opens
    connections one after the other is reported once, not twice for each of them.

    :param report: called with an address that has connections now, or has had none for a while;
        whether it has any; and the time of the latest beginning or end of one, monotonic seconds,
        which all processes of a host share.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        report: Callable[[SlotUse, bool, float], object],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._report = report
        self._clock = clock
        self._counts: dict[SlotUse, int] = {}
        self._latest: dict[SlotUse, float] = {}
        self._since_review: set[SlotUse] = set()
        """Addresses used since the last review; they are kept until the next one."""

    def count(self, slot: SlotUse, change: int) -> None:
        """Count a connection that begins (1) or ends (-1)."""
        before = self._counts.get(slot)
        self._latest[slot] = self._clock()
        if before is None:
            self._report(slot, True, self._latest[slot])
        self._counts[slot] = (before or 0) + change
        self._since_review.add(slot)

    def review(self) -> None:
        """Report the addresses that have had no connection since the last review."""
        gone = [
            slot
            for slot, count in self._counts.items()
            if not count and slot not in self._since_review
        ]
        self._since_review.clear()
        for slot in gone:
            del self._counts[slot]
            self._report(slot, False, self._latest.pop(slot))
