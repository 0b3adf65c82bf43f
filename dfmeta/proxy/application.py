"""The application: pass a guest's request to a backend and return the answer.

The guest is identified when its connection is accepted. The registry checks the claim again before
the backend is queried and before a byte of the answer leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from dfmeta import metrics
from dfmeta.attach.api import is_listing
from dfmeta.errors import BackendError, BackendTimeoutError, BackendUpstreamError
from dfmeta.http.exchange import Abandoned, Exchange, Handler
from dfmeta.http.http1 import phrase
from dfmeta.http.limits import Limits
from dfmeta.http.server import ClaimSource, HttpServer
from dfmeta.http.service import HttpService, RefusalThrottle
from dfmeta.identity.registry import Claim
from dfmeta.model import Answer, Endpoint, GuestRequest, Identity, View
from dfmeta.proxy import access
from dfmeta.proxy.access import Spent
from dfmeta.proxy.attachments import Attachments, is_ours
from dfmeta.proxy.attachments import answer as attachment_answer
from dfmeta.proxy.claims import Claims
from dfmeta.proxy.rate import RateLimiter
from dfmeta.proxy.recent import REASONS, RECENT
from dfmeta.proxy.tokens import TokenMode, Tokens, handshake, is_token_path, passed_on
from dfmeta.runtime import clock, threads
from dfmeta.runtime.throttle import Complaints
from dfmeta.store.guest.requests import split_path

HOLD_POLL = 0.1
DOUBT_POLL = 0.01
"""Seconds between two checks whether the project is known (HOLD_POLL) or a doubt about an ofport
has ended (DOUBT_POLL). Such a doubt ends with OVSDB's next answer, within milliseconds while OVSDB
answers."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of the configuration that the application uses."""

    timeout_answer: str = "auto"
    needs_project: bool = False
    """Whether the backend needs the project of an instance."""
    refuse_forwarded: bool = False
    """Whether requests that a proxy forwarded are refused."""
    http_tokens: TokenMode = TokenMode.OPTIONAL
    http_tokens_of: Mapping[str, TokenMode] = field(default_factory=dict)
    """Instance id in lower case → its mode, which overrides the record's and ``http_tokens``."""


class Application:
    """Answers guests' requests, one call for each.

    :param heed: lets the switch's latest messages be handled, before the claim is checked.
    :param echo: called when a request has arrived; returns a function that waits, until monotonic
        seconds, for all changes until the arrival to be known here, and returns whether they are.
    """

    def __init__(
        self,
        registry: Claims,
        backend: Backend,
        settings: Settings,
        *,
        tokens: Tokens,
        rates: RateLimiter,
        complaints: Complaints,
        attachments: Attachments | None = None,
        heed: Callable[[], object] = lambda: None,
        echo: Callable[[], Callable[[float], bool]] = lambda: lambda _deadline: True,
    ) -> None:
        self._registry = registry
        self._echo = echo
        self._heed = heed
        self._attachments = attachments
        self._backend = backend
        self._settings = settings
        self._tokens = tokens
        self._rates = rates
        self._complaints = complaints
        registry.subscribe(self._endpoint_changed)

    def replace(self, backend: Backend, settings: Settings) -> None:
        """Answer from *backend* from the next request on."""
        self._backend, self._settings = backend, settings

    def answer(self, exchange: Exchange[Claim]) -> Answer:
        """Answer one request; see :data:`~dfmeta.http.exchange.Handler`.

        :raises Abandoned: when the connection is to be closed without an answer.
        """
        claim, request = exchange.claim, exchange.request
        deadline, echoed = exchange.deadline, self._echo()
        spent = Spent(clock.now())
        try:
            ours = is_ours(request.path)
            answer = self._guard(
                exchange,
                spent,
                lambda: (
                    self._limit(claim, spent, own=ours and not is_listing(request))
                    or self._refuse(request, spent, ours)
                ),
            )
            if answer is None and ours:
                self._await_certainty(claim, deadline, spent)
                answer = attachment_answer(
                    self._attachments, exchange, lambda ask: self._guard(exchange, spent, ask)
                )
            elif answer is None:
                # The body of a refused request is not read.
                whole = exchange.whole()
                deadline = whole.deadline
                spent.waited += deadline - exchange.deadline
                answer = self._guard(whole, spent, lambda: self._ask(whole, spent))
            if not echoed(deadline):
                raise Abandoned("timeout")
            self._await_certainty(claim, deadline, spent)
            if not self._registry.holds(claim):
                raise Abandoned("changed")
        except Abandoned as abandoned:
            access.unanswered(claim, request, abandoned.reason, spent)
            raise
        access.answered(claim, request, answer, spent, clock.now())
        return answer

    def _await_certainty(self, claim: Claim, deadline: float, spent: Spent) -> None:
        """Wait while the ofport of the guest's port is in doubt.

        In doubt, another guest may have the port. So this is called before the backend is queried
        and before the answer leaves, each time after every other wait.

        :param deadline: monotonic seconds.
        :raises Abandoned: when the doubt lasts until *deadline*.
        """
        self._heed()
        if self._registry.certain(claim.caller):
            return
        begun = clock.now()
        metrics.HELD_REQUESTS.labels("number").inc()
        while not self._registry.certain(claim.caller):
            if clock.now() >= deadline:
                raise Abandoned("timeout")
            threads.sleep(DOUBT_POLL)
        spent.waited += clock.now() - begun

    def _guard(self, exchange: Exchange[Claim], spent: Spent, ask: Callable[[], T]) -> T | Answer:
        """Return the result of *ask*, or an error answer if it fails."""
        try:
            return ask()
        except BackendError as error:
            spent.reason = _in_words(str(error.cause), error.remedy)
            return self._failed(exchange, error)
        except Exception as error:
            claim = exchange.claim
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
            spent.reason = REASONS["defect"]
            return _text(500)

    # Without the backend

    def _limit(self, claim: Claim, spent: Spent, *, own: bool) -> Answer | None:
        if own and self._attachments is not None and self._attachments.allows(claim):
            # The API has limits of its own: a VM that starts many containers would use up those of
            # its metadata.
            return None
        verdict = self._rates.ask(claim.caller, claim.address.ip.version)
        if verdict.refuse:
            access.refuse("rate")
            spent.reason = REASONS["rate"]
            self._complaints.about(
                claim.caller,
                "rate",
                "%s (%s): refused with 429, too many requests. Check the guest's programs, or "
                "raise the limits of [metadata_rate_limiting]",
                claim.identity.port_name,
                claim.identity.instance_id,
            )
            return _text(429, ("Retry-After", str(verdict.retry_after)))
        if verdict.delay:
            metrics.DELAYED_REQUESTS.inc()
            threads.sleep(verdict.delay)
            spent.waited += verdict.delay
        return None

    def _refuse(self, request: GuestRequest, spent: Spent, ours: bool) -> Answer | None:
        segments = split_path(request.path)
        if segments is None or is_admins(segments):
            # An invalid path names nothing, even where Nova would resolve it.
            return _text(404)
        if self._settings.refuse_forwarded and passed_on(request):
            access.refuse("forwarded")
            spent.reason = REASONS["forwarded"]
            return _text(403)
        if ours:
            return None
        if is_token_path(request.path):
            if request.method != "PUT" or not passed_on(request):
                return None
            # For every guest, whether tokens are enabled or not.
            access.refuse("token")
            spent.reason = REASONS["token"]
            return _text(403)
        allowed = ("GET", "HEAD", "POST") if takes_post(segments) else ("GET", "HEAD")
        if request.method in allowed:
            return None
        access.refuse("method")
        return _text(405, ("Allow", ", ".join(allowed)))

    # The backend

    def _ask(self, exchange: Exchange[Claim], spent: Spent) -> Answer:
        claim, request, deadline = exchange.claim, exchange.request, exchange.deadline
        identity = self._registry.current(claim)
        if identity is not None and _is_unnamed(claim):
            return _text(404)
        if identity is not None and self._lacks_project(identity):
            identity = self._await_project(claim, deadline, spent)
            if identity is not None and self._lacks_project(identity):
                return self._out_of_time(request)
        if identity is None:
            raise Abandoned("changed")
        begun = clock.now()
        there = exchange.acquire(deadline)
        spent.waited += clock.now() - begun
        if not there:
            return self._out_of_time(request)
        return self._forward(exchange, spent)

    def _forward(self, exchange: Exchange[Claim], spent: Spent) -> Answer:
        claim, request, deadline = exchange.claim, exchange.request, exchange.deadline
        self._await_certainty(claim, deadline, spent)
        identity = self._registry.current(claim)
        if identity is None:
            raise Abandoned("changed")
        begun = clock.now()
        # Set before the call, so that a failure counts as the backend's.
        spent.backend = self._backend.name
        try:
            view = self._backend.open(
                request,
                identity,
                deadline=deadline,
                goes_on=lambda said: self._shake_hands(said, request, identity) is None,
            )
            refusal = self._shake_hands(view.http_tokens, request, identity)
            answer = view.answer() if refusal is None else refusal
        finally:
            spent.asked += clock.now() - begun
        if refusal is not None:
            spent.backend = access.OURSELVES
            if not refusal.known:
                spent.reason = REASONS["absent"]
            elif refusal.status == 503:
                spent.reason = REASONS["key"]
            elif refusal.status >= 400:
                access.refuse("token")
                spent.reason = REASONS["token"]
            return refusal
        spent.reason = self.remark(claim, answer.status) if answer.known else REASONS["absent"]
        return answer

    def remark(self, claim: Claim, status: int) -> str:
        """Log an answer of the backend if its status indicates a fault, and return the reason.

        Empty if it indicates none. haproxy passes such answers on as well.
        """
        remark = self._backend.remark(status)
        if not remark:
            return ""
        said = f"answered {status}"
        self._complain(claim, f"status {status}", said, remark)
        return _in_words(f"{self._backend.name} {said}", remark)

    def _shake_hands(
        self, said: str | None, request: GuestRequest, identity: Identity
    ) -> Answer | None:
        """Return the answer of EC2's token handshake; None: the request goes on to the backend.

        :param said: token mode from the backend, see :attr:`~dfmeta.model.View.http_tokens`.
        """
        mode = self._settings.http_tokens
        if said is None:
            # A PUT on any other path was refused before.
            if request.method == "PUT":
                return replace(_text(404), known=False)
        else:
            own = self._settings.http_tokens_of.get(identity.instance_id.lower())
            mode = own or (TokenMode(said) if said else mode)
        return handshake(request, identity, mode, self._tokens)

    def _await_project(self, claim: Claim, deadline: float, spent: Spent) -> Identity | None:
        begun = clock.now()
        metrics.HELD_REQUESTS.labels("project").inc()
        identity = self._registry.current(claim)
        while identity is not None and self._lacks_project(identity):
            if clock.now() >= deadline:
                self._complain(
                    claim,
                    "project",
                    "cannot be queried, the project of the instance is not known",
                    "See `dfmeta ports` for the values that identity_sources give for the port",
                )
                break
            threads.sleep(HOLD_POLL)
            identity = self._registry.current(claim)
        spent.waited += clock.now() - begun
        if identity is not None and self._lacks_project(identity):
            spent.reason = REASONS["project"]
        return identity

    def _lacks_project(self, identity: Identity) -> bool:
        # The backend checks an unverified instance id against the project.
        return (self._settings.needs_project or identity.unverified) and not identity.project_id

    def _failed(self, exchange: Exchange[Claim], error: BackendError) -> Answer:
        # The remedy is part of the kind: another remedy within the minute is logged as well.
        kind = f"{type(error).__name__}: {error.remedy}"
        self._complain(exchange.claim, kind, str(error.cause), error.remedy)
        if exchange.request.method == "POST" and isinstance(error, BackendTimeoutError):
            return _text(504)
        if isinstance(error, BackendUpstreamError):
            return _text(502)
        return self._out_of_time(exchange.request)

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

    def _out_of_time(self, request: GuestRequest) -> Answer:
        how = self._settings.timeout_answer
        retried = is_versions(split_path(request.path) or ())
        if how == "close" or (how == "auto" and retried):
            raise Abandoned("timeout")
        return _text(503, ("Retry-After", "2"))

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        # The next guest of the port must not be limited because of this one.
        self._rates.forget(endpoint)
        self._complaints.forget(endpoint)
        RECENT.forget(endpoint)


def _is_unnamed(claim: Claim) -> bool:
    """Return whether the guest is a subport without an instance: no backend has data for it.

    A client of ``dfmeta-store`` without a record is not an :class:`~dfmeta.model.Endpoint`.
    """
    return isinstance(claim.caller, Endpoint) and not claim.identity.instance_id


def _text(status: int, *headers: tuple[str, str]) -> Answer:
    return Answer(status, f"{status} {phrase(status)}\n".encode(), headers=headers)


def _in_words(cause: str, remedy: str) -> str:
    return f"{cause}. {remedy}" if remedy else cause


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
    claims: ClaimSource[Claim],
    application: Handler[Claim],
    *,
    device: str = "",
    limits: Limits,
    hold_timeout: float,
) -> HttpServer[Claim]:
    """Return the server for guests, whose connections are the metric ``dfmeta_open_connections``.

    :param device: name of tap-metadata, through which answers leave; empty: through any device.
    """
    service = guest_service(application, limits=limits, hold_timeout=hold_timeout)
    metrics.CONNECTIONS.set_function(service.limiter.__len__)
    return HttpServer(listeners, claims, service, device=device)


ADMIN: Final = frozenset(
    {"metrics", "version", "ports", "service", "haproxy", "probe", "options", "names"}
)
ADMIN_TREES: Final = frozenset({"healthz", "device-metadata", "device-userdata", "records"})
"""First segments of the admin listener's paths: alone, or with others behind them."""
_GUESTS: Final = (["metadata"], ["userdata"])
"""Paths of guests below ``/api/v1``, whose others are the admin listener's."""


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


class Backend(Protocol):
    """Answers guests' requests."""

    name: metrics.Backend
    """Name in metrics and logs."""

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float,
        goes_on: Callable[[str | None], bool],
    ) -> View:
        """Look up *identity* once for *request*, and read no more than the request needs.

        :param request: the guest's request. Trust: every part comes from the guest.
        :param deadline: monotonic seconds until which the backend may wait for other hosts and for
            the database, the answer included.
        :param goes_on: whether the request is to be answered, given :attr:`View.http_tokens`. A
            backend in another process then sends the answer along with the view.
        :raises BackendError: when the lookup fails. The request must not go on.
        """
        ...

    def remark(self, status: int) -> str:
        """Return a sentence for the operator if an answer with *status* shows a fault of the host
        or the backend.

        It names the things to check; the guest gets the answer unchanged. Empty without such a
        fault.
        """
        ...
