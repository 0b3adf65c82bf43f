"""What each guest has asked lately, and how it last failed: so that the one that fails is found.

A few numbers for each port, kept for as long as its guest has it. A worker keeps what it has not
told the daemon yet, and the daemon adds it up.

Trust: of what a guest sends nothing is kept but which kind of path it was. Reasons are words of
ours, of the system's or of OpenSSL's; see :mod:`dfmeta.proxy.nova.remedies`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.model import Caller, Endpoint
from dfmeta.proxy.tokens import is_token_path
from dfmeta.registry import Claim

CLASSES: Final = ("2xx", "3xx", "4xx", "5xx", "closed")
"""Classes of a status (RFC 9110, 15), and requests that were closed without an answer."""
CLOSED: Final = 0
"""The status of a request without an answer."""
KINDS_KEPT: Final = 4
"""Failures that differ, of one port."""
PORTS: Final = 8192
"""Guests that are remembered; the one that asked longest ago falls out."""
REASON_MAX: Final = 240
"""Characters of a reason."""
_HARMLESS: Final = frozenset({404, 405, 409})
"""A document that is not there, a method that cloud-init only tries, a password set twice."""
_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 400

REASONS: Final[Mapping[str, str]] = {
    "absent": "nothing was found: the backend has no record of this guest, or not with this "
    "project",
    "body": "its body is above body_max",
    "body_timeout": "its body did not come in time",
    "chunks": "its body has more chunks than body_max allows",
    "defect": "dfmeta failed: report it with the traceback that the log has",
    "forwarded": "a proxy has passed it on, and refuse_forwarded is set",
    "forwarded_for": "X-Forwarded-For cannot be read",
    "header": "a header is above header_max",
    "header_lines": "a header has too many lines",
    "header_timeout": "it did not come whole in time",
    "malformed": "it is no HTTP request, or one that can be read in two ways",
    "method": "the path does not have that method",
    "project": "the project of the instance is not known: see where identity comes from",
    "rate": "it asks more often than [metadata_rate_limiting] allows",
    "request_line": "its request line is above request_line_max",
    "timeout": "no answer within hold_timeout",
    "token": "its token is missing, wrong or too old, or was asked for wrongly",
}
"""Why a request failed that no backend has failed."""
OWN: Final = frozenset(
    {
        "body",
        "body_timeout",
        "chunks",
        "header",
        "header_lines",
        "header_timeout",
        "malformed",
        "method",
        "request_line",
    }
)
"""Those of :data:`REASONS` that say nothing but how a guest has asked: no guest fails by them."""
RULES: Final = frozenset({"absent", "forwarded", "forwarded_for", "rate", "token"})
"""Those that a guest meets on the side, and fails by only while nothing was ever given to it."""
_CODES: Final[Mapping[str, str]] = {text: code for code, text in REASONS.items()}

_PATHS: Final = {
    "openstack": "openstack",
    "nocloud": "nocloud",
    "latest": "ec2",
    "metadata": "plain",
    "userdata": "plain",
}


@dataclass(slots=True)
class Failure:
    """Requests of one guest that failed in the same way."""

    at: float
    """When it last did, in seconds of the clock."""
    status: int
    """What the guest was answered; :data:`CLOSED`: nothing."""
    path: str
    """Kind of path; see :func:`kind_of`."""
    reason: str
    times: int = 1
    since: float = 0.0
    """When the first of these came after which the guest was not answered well."""

    @property
    def why(self) -> str:
        """Its reason as one of :data:`REASONS`; empty: a backend's."""
        return _CODES.get(self.reason, "")

    @property
    def own(self) -> bool:
        """Whether it says nothing but how the guest has asked."""
        return self.why in OWN

    @property
    def counts_always(self) -> bool:
        """Whether the service did not give what it ought to, whatever it has given before."""
        return not self.own and self.why not in RULES and self.status != _BAD_REQUEST


@dataclass(slots=True)
class Asked:
    """What one guest has asked since it has had its port."""

    incarnation: int
    counts: list[int] = field(default_factory=lambda: [0] * len(CLASSES))
    """In the order of :data:`CLASSES`."""
    last_at: float = 0.0
    last_status: int = CLOSED
    well_at: float = 0.0
    """When it was last given something (2xx, 3xx); a token is nothing, nor is a list of
    versions, which a backend gives to guests that it does not know."""
    absent: Failure | None = None
    """The last 404, which is a failure as long as nothing was ever found."""
    kinds: dict[tuple[int, str, str], Failure] = field(default_factory=dict)

    def failures(self) -> list[Failure]:
        """How it failed, the latest first, but those that it did to itself last."""
        found = list(self.kinds.values())
        if self.absent is not None and not self.well_at:
            found.append(self.absent)
        return sorted(found, key=lambda one: (not self.counts_as(one), -one.at))

    @property
    def failing(self) -> bool:
        """Whether it lacks what it needs: see :attr:`failing_since`."""
        return any(map(self._fails, self.failures()))

    @property
    def failing_since(self) -> float:
        """When the service first failed it since it was last given something; 0: it did not.

        A guest's bad token, malformed or too frequent request is its own doing, and 404 is the
        answer to much that cloud-init tries: a guest that was given something does not fail by
        them. One that never was fails by 404, and where a rule refuses whatever it asks; by
        what cannot be read as a request no guest ever does.
        """
        return min((one.since for one in self.failures() if self._fails(one)), default=0.0)

    def counts_as(self, one: Failure) -> bool:
        """Whether a failure of its is the service's, and none that the guest did to itself."""
        return one.counts_always or (not self.well_at and not one.own)

    def _fails(self, one: Failure) -> bool:
        return self.counts_as(one) and one.at > self.well_at


class Recent:
    """By caller: :class:`Asked`.

    :param clock: seconds since the epoch: what is kept is shown to people.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, ports: int = PORTS) -> None:
        self._clock, self._most = clock, ports
        self._ports: OrderedDict[Caller, Asked] = OrderedDict()

    def answered(self, claim: Claim, status: int, path: str, reason: str) -> None:
        """Note a request's end.

        :param status: :data:`CLOSED` where there was no answer.
        :param path: the guest's; only its kind is kept.
        :param reason: in words of ours, or none.
        """
        now, one = self._clock(), self._of(claim.caller, claim.identity.incarnation)
        one.counts[_class(status)] += 1
        one.last_at, one.last_status = now, status
        if 200 <= status < 400:
            if not _says_nothing(path):
                one.well_at = now
        elif status == _NOT_FOUND:
            failure = Failure(now, status, kind_of(path), REASONS["absent"], since=now)
            one.absent = _repeated(one.absent, failure, one.well_at)
        elif status not in _HARMLESS:
            _add(one, Failure(now, status, kind_of(path), reason[:REASON_MAX], since=now))

    def forget(self, caller: Caller) -> None:
        """Forget a guest: another one may have its port."""
        self._ports.pop(caller, None)

    def of(self, caller: Caller, incarnation: int) -> Asked | None:
        """What that guest has asked; None: nothing yet."""
        found = self._ports.get(caller)
        return found if found is not None and found.incarnation == incarnation else None

    def __iter__(self) -> Iterator[tuple[Caller, Asked]]:
        return iter(list(self._ports.items()))

    def __len__(self) -> int:
        return len(self._ports)

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Give away all that there is, as values that JSON has; see :meth:`add`."""
        taken, self._ports = self._ports, OrderedDict()
        return [
            [
                [*caller],
                one.incarnation,
                one.counts,
                [one.last_at, one.last_status, one.well_at],
                None if one.absent is None else _row(one.absent),
                [_row(failure) for failure in one.kinds.values()],
            ]
            for caller, one in taken.items()
        ]

    def add(self, told: Iterable[Any], current: Callable[[Endpoint], int | None]) -> None:
        """Add what a worker has given away.

        :param current: gives the incarnation of who is there now; what is of another is dropped.
        """
        for (ofport, vid), incarnation, counts, last, absent_row, rows in told:
            endpoint = Endpoint(ofport, vid)
            if current(endpoint) != incarnation:
                continue
            one = self._of(endpoint, incarnation)
            one.counts = [mine + more for mine, more in zip(one.counts, counts, strict=True)]
            at, status, well_at = last
            if at >= one.last_at:
                one.last_at, one.last_status = at, status
            one.well_at = max(one.well_at, well_at)
            if absent_row is not None:
                one.absent = _repeated(one.absent, Failure(*absent_row), one.well_at)
            for row in rows:
                _add(one, Failure(*row))

    def _of(self, caller: Caller, incarnation: int) -> Asked:
        found = self._ports.get(caller)
        if found is None or found.incarnation != incarnation:
            found = self._ports[caller] = Asked(incarnation)
            if len(self._ports) > self._most:
                self._ports.popitem(last=False)
        self._ports.move_to_end(caller)
        return found


RECENT: Final = Recent()
"""This process'."""


def kind_of(path: str) -> str:
    """Which kind of path a guest asked for: openstack, ec2, nocloud, plain, other, or none.

    Trust: the path is the guest's; what is returned is one of these words.
    """
    if not path:
        return "none"
    first = path.lstrip("/").partition("/")[0]
    if first[:2].isdecimal() or first.startswith("1."):
        # EC2's versions: dates, and 1.0.
        return "ec2"
    return _PATHS.get(first, "other")


def _class(status: int) -> int:
    if not status:
        return len(CLASSES) - 1
    # What a backend answers besides is as bad as the last one.
    return status // 100 - 2 if 200 <= status < 600 else len(CLASSES) - 2


def _says_nothing(path: str) -> bool:
    """Whether a good answer to *path* tells nothing of whether the guest is known."""
    return is_token_path(path) or not path.strip("/")


def _row(one: Failure) -> list[Any]:
    return [one.at, one.status, one.path, one.reason, one.times, one.since]


def _repeated(before: Failure | None, after: Failure, well_at: float) -> Failure:
    """:param well_at: what came until then has no part in how long it lasts."""
    if before is None:
        return after
    latest = after if after.at >= before.at else before
    times = before.times + after.times
    begun = [one.since for one in (before, after) if one.since > well_at]
    since = min(begun, default=latest.at)
    return Failure(latest.at, latest.status, latest.path, latest.reason, times, since)


def _add(one: Asked, failure: Failure) -> None:
    key = failure.status, failure.path, failure.reason
    one.kinds[key] = _repeated(one.kinds.get(key), failure, one.well_at)
    if len(one.kinds) > KINDS_KEPT:
        # A guest's odd requests are not to hide that the service has failed it.
        kinds = one.kinds
        del kinds[min(kinds, key=lambda key: (kinds[key].counts_always, kinds[key].at))]
