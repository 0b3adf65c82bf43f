"""The application: pass a guest's request to a backend and return the answer.

The guest is identified when its connection is accepted. The registry checks the claim again before
the backend is queried and before a byte of the answer leaves.

Each request takes the same way: limit, admission, body, turn, tokens, backend.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from dfmeta import errors, metrics
from dfmeta.attach.api import is_listing
from dfmeta.http import http1, server
from dfmeta.http.exchange import Abandoned, Exchange, Handler
from dfmeta.http.limits import Limits
from dfmeta.http.service import HttpService, RefusalThrottle
from dfmeta.identity.registry import Claim
from dfmeta.model import Answer, AnswerTerms, Endpoint, GuestRequest, Identity, View
from dfmeta.proxy import access, rate, recent
from dfmeta.proxy.attachments import AttachmentResponder, is_ours
from dfmeta.proxy.attachments import answer as attachment_answer
from dfmeta.proxy.claims import Claims
from dfmeta.proxy.tokens import TokenMode, Tokens, handshake, is_token_path, passed_on
from dfmeta.runtime import clock, threads, throttle
from dfmeta.store.guest.requests import split_path

ADMIN: Final = frozenset(
    {"metrics", "version", "ports", "service", "haproxy", "probe", "options", "names"}
)
ADMIN_TREES: Final = frozenset({"healthz", "device-metadata", "device-userdata", "records"})
"""First segments of the admin listener's paths: alone, or with others behind them."""
_GUESTS: Final = (["metadata"], ["userdata"])
"""Paths of guests below ``/api/v1``, whose others are the admin listener's."""

T = TypeVar("T")


class Backend(Protocol):
    """Answers guests' requests."""

    name: metrics.Backend
    """Name in metrics and logs."""

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        """Look up *identity* once for *request*, and read no more than the request needs.

        :param request: the guest's request. Trust: every part comes from the guest.
        :raises BackendError: when the lookup fails. The request must not go on.
        """


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The part of the configuration that the application uses."""

    timeout_answer: str = "auto"
    needs_project: bool = False
    """Whether the backend needs the project of an instance."""
    refuse_forwarded: bool = False
    """Whether requests that a proxy forwarded are refused."""
    http_tokens: TokenMode = TokenMode.OPTIONAL
    http_tokens_of: Mapping[str, TokenMode] = field(default_factory=dict)
    """Instance id in lower case → its mode, which overrides the record's and ``http_tokens``."""


class _Pending(access.Timing):
    """A request on its way, and where its time went."""

    __slots__ = ("claim", "exchange", "for_attachments", "request")

    def __init__(self, exchange: Exchange[Claim]) -> None:
        super().__init__(clock.now())
        self.exchange = exchange
        self.claim, self.request = exchange.claim, exchange.request
        self.for_attachments = is_ours(exchange.request.path)
        """Whether it is for the API of attachments, which has limits and methods of its own."""

    def read_body(self) -> None:
        """Read the body; its time is added to the deadline.

        :raises BadRequestError, OSError: see :meth:`~dfmeta.http.exchange.Exchange.whole`.
        """
        before = self.exchange.deadline
        self.exchange = self.exchange.whole()
        self.request = self.exchange.request
        self.waited += self.exchange.deadline - before

    def wait_for_slot(self) -> bool:
        """Wait for a slot among the requests of the port; return whether there was one in time."""
        begun = clock.now()
        acquired = self.exchange.acquire(self.exchange.deadline)
        self.waited += clock.now() - begun
        return acquired

    def wait_until(self, is_true: Callable[[], bool]) -> bool:
        """Wait for a condition; return whether it became true before the deadline."""
        begun = clock.now()
        result = threads.wait_until(is_true, self.exchange.deadline - begun)
        self.waited += clock.now() - begun
        return result


class Application:
    """Answers guests' requests, one call for each.

    :param drain_switch_messages: lets the switch's latest messages be handled, before the claim is
        checked.
    :param echo: called when a request has arrived; returns a function that waits, until monotonic
        seconds, for all changes until the arrival to be known here, and returns whether they are.
    """

    def __init__(
        self,
        registry: Claims,
        backend: Backend,
        settings: AppSettings,
        *,
        tokens: Tokens,
        rates: rate.RateLimiter,
        complaints: throttle.Complaints,
        attachments: AttachmentResponder | None = None,
        drain_switch_messages: Callable[[], object] = lambda: None,
        echo: Callable[[], Callable[[float], bool]] = lambda: lambda _deadline: True,
    ) -> None:
        self._registry = registry
        self._echo = echo
        self._drain_switch_messages = drain_switch_messages
        self._attachments = attachments
        self._backend = backend
        self._settings = settings
        self._tokens = tokens
        self._rates = rates
        self._complaints = complaints
        registry.subscribe(self._endpoint_changed)

    def replace(self, backend: Backend, settings: AppSettings) -> None:
        """Answer from *backend* from the next request on."""
        self._backend, self._settings = backend, settings

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Answer one request; see :data:`~dfmeta.http.exchange.Handler`.

        :raises Abandoned: when the connection is to be closed without an answer.
        """
        echoed, pending = self._echo(), _Pending(exchange)
        try:
            answer = self._respond(pending)
            if not echoed(pending.exchange.deadline):
                raise Abandoned("timeout")
            self._await_certainty(pending)
            if not self._registry.holds(exchange.claim):
                raise Abandoned("changed")
        except Abandoned as abandoned:
            access.unanswered(exchange.claim, exchange.request, abandoned.reason, pending)
            raise
        access.answered(exchange.claim, exchange.request, answer, pending, clock.now())
        return answer

    def report_fault(self, claim: Claim, status: int, remark: str) -> str:
        """Log an answer of the backend that shows a fault, and return the reason of the failure.

        haproxy passes such answers on as well.

        :param remark: see :attr:`~dfmeta.model.Answer.remark`; empty: there is no fault.
        """
        if not remark:
            return ""
        fault = f"answered {status}"
        self._complain(claim, f"status {status}", fault, remark)
        return _in_words(f"{self._backend.name} {fault}", remark)

    def _respond(self, pending: _Pending) -> Answer:
        answer = self._guard(pending, lambda of: self._limit(of) or self._refuse(of))
        if answer is not None:
            # The body of a refused request is not read.
            return answer
        if pending.for_attachments:
            self._await_certainty(pending)
            return attachment_answer(
                self._attachments,
                pending.exchange,
                lambda step: self._guard(pending, lambda _pending: step()),
            )
        pending.read_body()
        return self._guard(pending, self._ask)

    def _await_certainty(self, pending: _Pending) -> None:
        """Wait while the ofport of the guest's port is in doubt.

        In doubt, another guest may have the port. So this is called before the backend is queried
        and before the answer leaves, each time after every other wait.

        :raises Abandoned: when the doubt lasts until the deadline.
        """
        self._drain_switch_messages()
        caller = pending.claim.caller
        if self._registry.certain(caller):
            return
        metrics.HELD_REQUESTS.labels("number").inc()
        if not pending.wait_until(lambda: self._registry.certain(caller)):
            raise Abandoned("timeout")

    def _guard(self, pending: _Pending, step: Callable[[_Pending], T]) -> T | Answer:
        """Return the result of *step*, or an error answer if it fails."""
        try:
            return step(pending)
        except errors.BackendError as error:
            pending.reason = _in_words(error.cause, error.remedy)
            return self._failed(pending, error)
        except Exception as error:
            claim = pending.claim
            # A defect of dfmeta must cost only this request; the guest learns nothing about it.
            self._complaints.about(
                claim.caller,
                "defect",
                "%s: a request of %s failed: %s. Report this with the traceback below",
                claim.identity.port_name,
                claim.identity.instance_id,
                type(error).__name__,
                level=logging.ERROR,
                exc_info=True,
            )
            pending.reason = recent.REASONS["defect"]
            return _text(500)

    # Without the backend

    def _limit(self, pending: _Pending) -> Answer | None:
        claim = pending.claim
        if (
            pending.for_attachments
            and not is_listing(pending.request)
            and self._attachments is not None
            and self._attachments.allows(claim)
        ):
            # The API has limits of its own: a VM that starts many containers would use up those of
            # its metadata.
            return None
        verdict = self._rates.ask(claim.caller, claim.address.ip.version)
        if verdict.refuse:
            self._complaints.about(
                claim.caller,
                "rate",
                "%s (%s): refused with 429, too many requests. Check the guest's programs, or "
                "raise the limits of [metadata_rate_limiting]",
                claim.identity.port_name,
                claim.identity.instance_id,
            )
            return _refusal(pending, "rate", 429, ("Retry-After", str(verdict.retry_after)))
        if verdict.delay:
            metrics.DELAYED_REQUESTS.inc()
            threads.sleep(verdict.delay)
            pending.waited += verdict.delay
        return None

    def _refuse(self, pending: _Pending) -> Answer | None:
        request = pending.request
        segments = split_path(request.path)
        if segments is None or is_admins(segments):
            # An invalid path names nothing, even where Nova would resolve it.
            return _text(404)
        if self._settings.refuse_forwarded and passed_on(request):
            return _refusal(pending, "forwarded", 403)
        if pending.for_attachments:
            return None
        if is_token_path(request.path):
            # A forwarded one is refused for every guest, whether tokens are enabled or not.
            forwarded = request.method == "PUT" and passed_on(request)
            return _refusal(pending, "token", 403) if forwarded else None
        allowed = ("GET", "HEAD", "POST") if takes_post(segments) else ("GET", "HEAD")
        if request.method in allowed:
            return None
        access.refuse("method")
        return _text(405, ("Allow", ", ".join(allowed)))

    # The backend

    def _ask(self, pending: _Pending) -> Answer:
        identity = self._current(pending)
        if _is_unnamed(pending.claim):
            return _text(404)
        if self._lacks_project(identity) and not self._await_project(pending):
            return self._out_of_time(pending)
        if not pending.wait_for_slot():
            return self._out_of_time(pending)
        self._await_certainty(pending)
        return self._forward(pending, self._current(pending))

    def _current(self, pending: _Pending) -> Identity:
        """Return the present identity of the guest.

        :raises Abandoned: when its claim does not hold any more.
        """
        identity = self._registry.current(pending.claim)
        if identity is None:
            raise Abandoned("changed")
        return identity

    def _forward(self, pending: _Pending, identity: Identity) -> Answer:
        request = pending.request
        begun = clock.now()
        # Set before the call, so that a failure counts as the backend's.
        pending.backend = self._backend.name
        try:
            terms = AnswerTerms(
                pending.exchange.deadline,
                lambda mode: self._shake_hands(mode, request, identity) is None,
            )
            view = self._backend.open(request, identity, terms)
            refusal = self._shake_hands(view.http_tokens, request, identity)
            answer = view.answer() if refusal is None else refusal
        finally:
            pending.at_backend += clock.now() - begun
        if not answer.known:
            pending.reason = recent.REASONS["absent"]
        elif refusal is None:
            pending.reason = self.report_fault(pending.claim, answer.status, answer.remark)
        elif refusal.status == 503:
            pending.reason = recent.REASONS["key"]
        elif refusal.status >= 400:
            access.refuse("token")
            pending.reason = recent.REASONS["token"]
        if refusal is not None:
            pending.backend = access.OURSELVES
        return answer

    def _shake_hands(
        self, record_mode: str | None, request: GuestRequest, identity: Identity
    ) -> Answer | None:
        """Return the answer of EC2's token handshake; None: the request goes on to the backend.

        :param record_mode: see :attr:`~dfmeta.model.View.http_tokens`.
        """
        mode = self._settings.http_tokens
        if record_mode is None:
            # A PUT on any other path was refused before.
            if request.method == "PUT":
                return replace(_text(404), known=False)
        else:
            override = self._settings.http_tokens_of.get(identity.instance_id.lower())
            mode = override or (TokenMode(record_mode) if record_mode else mode)
        return handshake(request, identity, mode, self._tokens)

    def _await_project(self, pending: _Pending) -> bool:
        """Wait until the project is known; return whether it is.

        :raises Abandoned: when the guest has changed meanwhile.
        """
        metrics.HELD_REQUESTS.labels("project").inc()
        if pending.wait_until(lambda: not self._lacks_project(self._current(pending))):
            return True
        self._complain(
            pending.claim,
            "project",
            "cannot be queried, the project of the instance is not known",
            "See `dfmeta ports` for the values that identity_sources give for the port",
        )
        pending.reason = recent.REASONS["project"]
        return False

    def _lacks_project(self, identity: Identity) -> bool:
        # The backend checks an unverified instance id against the project.
        return (self._settings.needs_project or identity.unverified) and not identity.project_id

    def _failed(self, pending: _Pending, error: errors.BackendError) -> Answer:
        # The remedy is part of the kind: another remedy within the minute is logged as well.
        kind = f"{type(error).__name__}: {error.remedy}"
        self._complain(pending.claim, kind, error.cause, error.remedy)
        if pending.request.method == "POST" and isinstance(error, errors.BackendTimeoutError):
            return _text(504)
        if isinstance(error, errors.BackendUpstreamError):
            return _text(502)
        return self._out_of_time(pending)

    def _complain(self, claim: Claim, kind: str, cause: str, remedy: str) -> None:
        self._complaints.about(
            claim.caller,
            kind,
            "%s (%s): backend %s %s",
            claim.identity.port_name,
            claim.identity.instance_id,
            self._backend.name,
            _in_words(cause, remedy),
        )

    def _out_of_time(self, pending: _Pending) -> Answer:
        how = self._settings.timeout_answer
        retried = is_versions(split_path(pending.request.path) or ())
        if how == "close" or (how == "auto" and retried):
            raise Abandoned("timeout")
        return _text(503, ("Retry-After", "2"))

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        # The next guest of the port must not be limited because of this one.
        self._rates.forget(endpoint)
        self._complaints.forget(endpoint)
        recent.RECENT.forget(endpoint)


def is_admins(segments: Sequence[str]) -> bool:
    """Return whether a path is the admin listener's: 404 for guests, whatever the backend says."""
    match segments:
        case ["api", "v1", *rest]:
            return rest not in _GUESTS
        case [name]:
            return name in ADMIN or name in ADMIN_TREES
        case [name, *_]:
            return name in ADMIN_TREES
    return False


def takes_post(segments: Sequence[str]) -> bool:
    """Return whether guests may post to a path: their password."""
    match segments:
        case ["openstack", _, "password"]:
            return True
    return False


def is_versions(segments: Sequence[str]) -> bool:
    """Return whether a path is below a version of ``/openstack``, or that itself."""
    return len(segments) > 1 and segments[0] == "openstack"


def guest_service(
    application: Handler[Claim], *, limits: Limits, hold_timeout: float
) -> HttpService[Claim]:
    """Return the service of a server for guests."""
    return HttpService(
        application,
        access,
        limits=limits,
        hold_timeout=hold_timeout,
        throttle=RefusalThrottle(),
    )


def guest_server(
    listeners: Sequence[Any],
    claims: server.ClaimSource[Claim],
    application: Handler[Claim],
    *,
    device: str = "",
    limits: Limits,
    hold_timeout: float,
) -> server.HttpServer[Claim]:
    """Return the server for guests, whose connections are the metric ``dfmeta_open_connections``.

    :param device: name of tap-metadata, through which answers leave; empty: through any device.
    """
    service = guest_service(application, limits=limits, hold_timeout=hold_timeout)
    metrics.CONNECTIONS.set_function(service.limiter.__len__)
    return server.HttpServer(listeners, claims, service, device=device)


def _is_unnamed(claim: Claim) -> bool:
    """Return whether the guest is a subport without an instance: no backend has data for it.

    A client of ``dfmeta-store`` without a record is not an :class:`~dfmeta.model.Endpoint`.
    """
    return isinstance(claim.caller, Endpoint) and not claim.identity.instance_id


def _refusal(
    pending: _Pending, reason: metrics.Refused, status: int, *headers: tuple[str, str]
) -> Answer:
    """Count a refusal and return its answer."""
    access.refuse(reason)
    pending.reason = recent.REASONS[reason]
    return _text(status, *headers)


def _text(status: int, *headers: tuple[str, str]) -> Answer:
    return Answer(status, f"{status} {http1.phrase(status)}\n".encode(), headers=headers)


def _in_words(cause: str, remedy: str) -> str:
    return f"{cause}. {remedy}" if remedy else cause
