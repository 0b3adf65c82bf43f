"""Account for connections and requests: metrics, the port's recent requests, one line at DEBUG.

The module is the guests' :class:`~dfmeta.http.service.ConnectionObserver`.

Of a guest's request, only the method and the path are logged; no query, header or body.
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dfmeta import metrics, model
from dfmeta.identity.registry import Claim
from dfmeta.identity.slots import ACCEPTED
from dfmeta.proxy.recent import CLOSED, REASONS, RECENT, TEXT_MAX

LOG = logging.getLogger(__name__)

OURSELVES: Final = "dfmeta"
"""The answerer of a request that dfmeta answered without a backend."""
OUT_OF_TIME = "timeout"
"""Reason for closing a request that has waited until its deadline."""
CLASSES: Final[Mapping[int, metrics.StatusClass]] = {2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
"""First digit of a status → its class. Any other status of a backend counts as 5xx
(RFC 9110, 15)."""
_LIMITS: Final[Mapping[metrics.Refused, metrics.Limit]] = {
    "request_line": "request_line_max",
    "header": "header_max",
    "header_lines": "header_lines_max",
    "header_timeout": "header_timeout",
    "body": "body_max",
    "body_timeout": "body_timeout",
    "chunks": "body_max",
}
"""Reason of a refusal → option that sets the limit."""
# The labels have few values; prometheus_client takes 1 us to find a series again.
_requests = functools.cache(metrics.REQUESTS.labels)
_backend_seconds = functools.cache(metrics.BACKEND_SECONDS.labels)


@dataclass(slots=True)
class Timing:
    """Where a request's time went, in seconds."""

    started: float
    waited: float = 0.0
    """Time spent waiting: for the body, the turn or the project, or as a delay."""
    at_backend: float = 0.0
    """Time spent at the backend."""
    backend: metrics.Answerer = OURSELVES
    """The backend that answered, or :data:`OURSELVES`."""
    reason: str = ""
    """Reason of a failure, in dfmeta's own words; empty if none was set."""


def answered(
    claim: Claim, request: model.GuestRequest, answer: model.Answer, timing: Timing, now: float
) -> None:
    """Count and log a request that has an answer.

    :param now: monotonic seconds.
    """
    _count(answer.status, timing.backend)
    RECENT.answered(claim, answer.status, request.path, _reason(answer.status, timing))
    internal = max(0.0, now - timing.started - timing.waited - timing.at_backend)
    metrics.REQUEST_SECONDS.observe(internal)
    _count_asked(timing)
    if LOG.isEnabledFor(logging.DEBUG):
        seconds = now - timing.started
        log_answered(claim, request, timing, answer.status, len(answer.body), seconds=seconds)


def log_answered(
    claim: Claim,
    request: model.GuestRequest,
    timing: Timing,
    status: int,
    size: int,
    *,
    seconds: float,
) -> None:
    """Log an answered request at DEBUG.

    :param size: bytes of the answer.
    :param seconds: from the request to its answer.
    """
    LOG.debug(
        "%s %s %s %s: %d, %d bytes, %.1f ms, including %.1f ms in %s and %.1f ms waiting",
        claim.identity.port_name,
        claim.identity.instance_id,
        request.method,
        request.path[:TEXT_MAX],
        status,
        size,
        seconds * 1000,
        timing.at_backend * 1000,
        timing.backend,
        timing.waited * 1000,
    )


def unanswered(claim: Claim, request: model.GuestRequest, reason: str, timing: Timing) -> None:
    """Count and log a request that is ended by closing its connection without an answer."""
    _count_asked(timing)
    if reason == OUT_OF_TIME:
        # A request that is closed because the guest changed is not one of the present guest.
        RECENT.answered(claim, CLOSED, request.path, timing.reason or REASONS[reason])
    LOG.debug(
        "%s %s %s %s: closed without an answer (%s)",
        claim.identity.port_name,
        claim.identity.instance_id,
        request.method,
        request.path[:TEXT_MAX],
        reason,
    )


def refused(claim: Claim, status: int, reason: metrics.Refused) -> None:
    """Count and log input that is not an acceptable request; its content is not logged."""
    _count(status, OURSELVES)
    RECENT.answered(claim, status, "", REASONS.get(reason, ""))
    refuse(reason)
    if reason in _LIMITS:
        limited(_LIMITS[reason])
    LOG.debug(
        "%s %s: %d (%s)",
        claim.identity.port_name,
        claim.identity.instance_id,
        status,
        reason,
    )


def accepted(claim: Claim) -> None:
    """Count an accepted connection."""
    ACCEPTED.add(claim.caller, claim.identity.incarnation)


def closed(reason: metrics.Closed) -> None:
    """Count a connection that ends without an answer."""
    metrics.CLOSED.labels(reason).inc()


def limited(limit: metrics.Limit) -> None:
    """Count a connection that has reached a limit."""
    metrics.LIMITS.labels(limit).inc()


def silent(claim: Claim) -> None:
    """Count and log a connection that sent nothing in time, so that there is nothing to answer."""
    limited("header_timeout")
    closed("silent")
    LOG.debug(
        "%s %s: no request within header_timeout",
        claim.identity.port_name,
        claim.identity.instance_id,
    )


def refuse(reason: metrics.Refused) -> None:
    """Count a refused request."""
    metrics.REFUSED.labels(reason).inc()


def _reason(status: int, timing: Timing) -> str:
    if timing.reason:
        return timing.reason
    if status == 503 and timing.backend == OURSELVES:
        return REASONS[OUT_OF_TIME]
    return f"{timing.backend} answered {status}" if status >= 400 else ""


def _count(status: int, backend: metrics.Answerer) -> None:
    _requests(CLASSES.get(status // 100, "5xx"), backend).inc()


def _count_asked(timing: Timing) -> None:
    if timing.backend != OURSELVES:
        _backend_seconds(timing.backend).observe(timing.at_backend)
