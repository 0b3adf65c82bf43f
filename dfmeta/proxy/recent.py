"""Recent requests and failures of each guest, so that an operator can find a guest that fails.

A few numbers for each port are kept for as long as its guest has the port. A worker keeps the
numbers that it has not sent to the daemon yet, and the daemon adds them up.

Trust: of a guest's input, only the kind of the path is kept. Reasons are texts of dfmeta, of the
system or of OpenSSL.
"""

import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Self, get_args

from dfmeta import errors, metrics, model
from dfmeta.identity.registry import Claim
from dfmeta.proxy.tokens import is_token_path
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import PORTS
from dfmeta.store.guest.requests import split_path

CLASSES: Final = ("2xx", "3xx", "4xx", "5xx", "closed")
"""Classes of a status (RFC 9110, 15), and the class of requests closed without an answer."""
CLOSED: Final = 0
"""The status of a request without an answer."""
KINDS_KEPT: Final = 4
"""Different failures that are kept for one port."""
TEXT_MAX: Final = 256
"""Characters of a path or a reason that is logged or kept."""
_HARMLESS: Final = frozenset({405, 409})
"""A method that cloud-init only tries, a password that is set already."""

REASONS: Final[Mapping[str, str]] = {
    "absent": "not found: the backend has no record of this guest, or has it with another project",
    "body": "its body is larger than body_max",
    "body_timeout": "its body was not complete within body_timeout",
    "document": "not found: the guest's record has no document of that path",
    "chunks": "its body has more chunks than body_max allows",
    "defect": "an error in dfmeta: report it with the traceback in the log",
    "forwarded": "a proxy forwarded it, and refuse_forwarded is set",
    "forwarded_for": "X-Forwarded-For is invalid",
    "header": "its headers are larger than header_max",
    "header_lines": "it has more header lines than header_lines_max",
    "header_timeout": "it was not complete within header_timeout",
    "key": "there are no tokens before the disk of state_path has room for their key",
    "malformed": "it is not an HTTP request, or it is ambiguous",
    "method": "the path does not support its method",
    "project": "the project of the instance is not known: check identity_sources",
    "rate": "more requests than [metadata_rate_limiting] allows",
    "request_line": "its request line is longer than request_line_max",
    "timeout": "no answer within hold_timeout",
    "token": "its token is missing, invalid or expired, or its request for a token is invalid",
}
"""Reasons of failures that are not a backend's."""
OWN: Final = frozenset({*get_args(errors.HeadFault), *get_args(errors.BodyFault), "method"})
"""Those of :data:`REASONS` that are a fault of the guest's request: no guest counts as failing
because of them."""
RULES: Final = frozenset({"document", "forwarded", "forwarded_for", "rate", "token"})
"""Those that a working guest may meet as well: a guest counts as failing because of them only while
it has never been given anything."""
_CODES: Final[Mapping[str, str]] = {text: code for code, text in REASONS.items()}

NOVA: Final = "nova"
_BRIEF: Final[Mapping[str, str]] = {
    "absent": "no record",
    "defect": "an error in dfmeta",
    "document": "no such document",
    "forwarded": "a proxy forwarded it",
    "project": "its project is not known",
    "rate": "too many requests",
    "timeout": "no answer within hold_timeout",
    "token": "no valid token",
}
_RELOAD: Final = "`systemctl reload dfmeta-agent`"
_ANY: Final = ""
_REMEDIES: Final[Mapping[tuple[str, str], str]] = {
    ("absent", NOVA): "compare the project in Nova, `openstack server show {instance} -c "
    "project_id`, with the project and its source in `dfmeta ports`",
    (
        "absent",
        _ANY,
    ): "`dfmeta store put {instance} --hostname <name>` adds a record; `dfmeta store "
    "list` shows the existing records",
    ("document", NOVA): "`openstack server show {instance}` shows whether Nova has the instance",
    ("document", _ANY): "`dfmeta store get {instance}` shows its record, without the document that "
    "the guest asks for",
    (
        "project",
        _ANY,
    ): "`ovs-vsctl set Interface {port} external_ids:project-id=<project's id>`, or "
    "add libvirt or neutron to [df_metadata] identity_sources",
    (
        "token",
        NOVA,
    ): f"set [store] http_tokens = optional and {_RELOAD}, if the guest's programs do "
    "not support tokens",
    ("token", _ANY): "`dfmeta store put {instance} --http-tokens optional`, or set [store] "
    f"http_tokens = optional and {_RELOAD}, if the guest's programs do not support tokens",
    ("rate", _ANY): f"raise the limits of [metadata_rate_limiting] and {_RELOAD}",
    ("forwarded", _ANY): "remove the proxy in the guest, or set [df_metadata] refuse_forwarded = "
    f"false and {_RELOAD}",
    ("defect", _ANY): "`journalctl -u dfmeta-agent` shows the traceback: report it",
}
"""Key of :data:`REASONS` and backend → the remedy; a backend's own comes before that of any."""
_SECRET: Final = (
    f"set metadata_proxy_shared_secret to its value in nova.conf, group [neutron], and {_RELOAD}"
)
_LOG: Final = (
    "`journalctl -u dfmeta-agent` shows the cause; then see the {lines} of `dfmeta doctor`"
)
_EC2_VERSIONS: Final = frozenset({"latest", "2009-04-04"})
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
    """Time of the last of them, in seconds of the clock."""
    status: int
    """Status of the answer; :data:`CLOSED`: there was no answer."""
    path: str
    """Kind of path; see :func:`kind_of`."""
    reason: str
    times: int = 1
    since: float = 0.0
    """Time of the first of them since the guest's last successful request."""

    @property
    def code(self) -> str:
        """Key of the reason in :data:`REASONS`; empty if it is a backend's."""
        return _CODES.get(self.reason, "")

    @property
    def is_guests(self) -> bool:
        """Whether the failure is a fault of the guest's request."""
        return self.code in OWN

    @property
    def counts_always(self) -> bool:
        """Whether it is a failure of the service, even if earlier requests succeeded."""
        return (
            not self.is_guests and self.code not in RULES and self.status != HTTPStatus.BAD_REQUEST
        )

    def after(self, before: Self | None, well_at: float) -> Self:
        """Return both failures of one kind as one; those until *well_at* do not count for
        :attr:`since`."""
        if before is None:
            return self
        latest = self if self.at >= before.at else before
        begun = [failure.since for failure in (before, self) if failure.since > well_at]
        since = min(begun, default=latest.at)
        return replace(latest, times=before.times + self.times, since=since)


@dataclass(slots=True)
class GuestRequests:
    """Requests of one guest since it has had its port."""

    incarnation: int
    counts: list[int] = field(default_factory=lambda: [0] * len(CLASSES))
    """Number of requests, in the order of :data:`CLASSES`."""
    last_at: float = 0.0
    last_status: int = CLOSED
    well_at: float = 0.0
    """Time of the last successful request (2xx, 3xx). A token does not count, nor does the list of
    versions, which a backend returns to unknown guests as well."""
    missing: Failure | None = None
    """The last 404 for a document that the guest's record does not have, which is a failure while
    no request has ever succeeded."""
    kinds: dict[tuple[int, str, str], Failure] = field(default_factory=dict)

    def failures(self) -> list[Failure]:
        """Return its failures: those of the service first, in each group the latest first."""
        failures = list(self.kinds.values())
        if self.missing is not None and not self.well_at:
            failures.append(self.missing)
        return sorted(failures, key=lambda failure: (not self.counts_as(failure), -failure.at))

    @property
    def failing(self) -> bool:
        """Whether the service fails the guest: see :attr:`failing_since`."""
        return any(map(self._fails, self.failures()))

    @property
    def failing_since(self) -> float:
        """Time at which the service first failed since the last success; 0: it did not.

        A bad token, a malformed request or too many requests are the guest's own fault, and
        cloud-init tries many paths that its record does not have: a guest that has had a success
        does not fail because of them. A guest without any success fails because of each 404, or of
        a rule that refuses its requests. A guest without a record fails in any case. Malformed
        requests never make a guest fail.
        """
        return min((each.since for each in self.failures() if self._fails(each)), default=0.0)

    def counts_as(self, failure: Failure) -> bool:
        """Whether a failure is the service's and not the guest's own."""
        return failure.counts_always or (not self.well_at and not failure.is_guests)

    def note(self, at: float, status: int) -> None:
        """Note the status of a request as the last one, unless there is a later one."""
        if at >= self.last_at:
            self.last_at, self.last_status = at, status

    def add(self, failure: Failure) -> None:
        """Add a failure to those of its kind."""
        if failure.code == "document":
            self.missing = failure.after(self.missing, self.well_at)
            return
        key, kinds = (failure.status, failure.path, failure.reason), self.kinds
        kinds[key] = failure.after(kinds.get(key), self.well_at)
        if len(kinds) > KINDS_KEPT:
            # A guest's invalid requests must not displace failures of the service.
            del kinds[min(kinds, key=lambda key: (kinds[key].counts_always, kinds[key].at))]

    def _fails(self, failure: Failure) -> bool:
        return self.counts_as(failure) and failure.at > self.well_at


class Recent:
    """The :class:`GuestRequests` of each caller.

    :param clock: seconds since the epoch, since the times are shown to operators.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.wall, ports: int = PORTS) -> None:
        self._clock, self._most = clock, ports
        self.complete = True
        """Whether nothing is taken away, as from a worker: a first answer is the first one."""
        self._ports: OrderedDict[model.Caller, GuestRequests] = OrderedDict()

    def answered(self, claim: Claim, status: int, path: str, reason: str) -> None:
        """Note the end of a request.

        :param status: :data:`CLOSED` if there was no answer.
        :param path: path from the guest; only its kind is kept.
        :param reason: a text of dfmeta, or empty. A 404 with another text than that of ``absent``
            counts as ``document``.
        """
        now, requests = self._clock(), self._of(claim.caller, claim.identity.incarnation)
        requests.counts[_class(status)] += 1
        requests.last_at, requests.last_status = now, status
        if 200 <= status < 400:
            # The answer to these paths does not show that the guest is known.
            if path.strip("/") and not is_token_path(path):
                self._succeed(requests, now)
        elif status not in _HARMLESS:
            if status == HTTPStatus.NOT_FOUND and reason != REASONS["absent"]:
                reason = REASONS["document"]
            failure = Failure(now, status, kind_of(path), reason[:TEXT_MAX], since=now)
            requests.add(failure)
            # A subport without an instance gets 404 as it should.
            if failure.counts_always and claim.identity.instance_id:
                metrics.FAILED_REQUESTS.inc()

    def succeeded(self, claim: Claim, count: int, at: float) -> None:
        """Note requests that another process has answered with success.

        The answers show that the guest is known; see :attr:`GuestRequests.well_at`.

        :param at: seconds of the clock.
        """
        requests = self._of(claim.caller, claim.identity.incarnation)
        requests.counts[0] += count
        requests.note(at, HTTPStatus.OK)
        self._succeed(requests, at)

    def forget(self, caller: model.Caller) -> None:
        """Forget a guest, since another one may have its port."""
        self._ports.pop(caller, None)

    def of(self, caller: model.Caller, incarnation: int) -> GuestRequests | None:
        """Return the requests of that guest; None: it has made none yet."""
        requests = self._ports.get(caller)
        return requests if requests is not None and requests.incarnation == incarnation else None

    def __iter__(self) -> Iterator[tuple[model.Caller, GuestRequests]]:
        return iter(list(self._ports.items()))

    def __len__(self) -> int:
        return len(self._ports)

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Return and forget everything, as JSON values for :meth:`add`."""
        taken, self._ports = self._ports, OrderedDict()
        return [
            [
                [*caller],
                requests.incarnation,
                requests.counts,
                [requests.last_at, requests.last_status, requests.well_at],
                [
                    astuple(failure)
                    for failure in (requests.missing, *requests.kinds.values())
                    if failure is not None
                ],
            ]
            for caller, requests in taken.items()
        ]

    def add(self, rows: Iterable[Any], current: Callable[[model.Endpoint], int | None]) -> None:
        """Add the result of a worker's :meth:`take`.

        :param current: return the present incarnation of an endpoint; numbers of another
            incarnation are dropped.
        """
        for (ofport, vid), incarnation, counts, last, failures in rows:
            endpoint = model.Endpoint(ofport, vid)
            if current(endpoint) != incarnation:
                continue
            requests = self._of(endpoint, incarnation)
            requests.counts = [sum(pair) for pair in zip(requests.counts, counts, strict=True)]
            at, status, well_at = last
            requests.note(at, status)
            self._succeed(requests, well_at)
            for failure in failures:
                requests.add(Failure(*failure))

    def _succeed(self, requests: GuestRequests, at: float) -> None:
        if at and not requests.well_at and self.complete:
            metrics.FIRST_ANSWERS.inc()
        requests.well_at = max(requests.well_at, at)

    def _of(self, caller: model.Caller, incarnation: int) -> GuestRequests:
        requests = self._ports.get(caller)
        if requests is None or requests.incarnation != incarnation:
            requests = self._ports[caller] = GuestRequests(incarnation)
            if len(self._ports) > self._most:
                self._ports.popitem(last=False)
        self._ports.move_to_end(caller)
        return requests


RECENT: Final = Recent()
"""The recent requests of this process."""


def kind_of(path: str) -> str:
    """Return the kind of a path: openstack, ec2, nocloud, plain, other, or none.

    Trust: the path comes from the guest; the result is one of these words.
    """
    if not path:
        return "none"
    first = path.lstrip("/").partition("/")[0]
    if first[:2].isdecimal() or first.startswith("1."):
        # EC2's versions are dates, and 1.0.
        return "ec2"
    return _PATHS.get(first, "other")


def is_of_every_instance(path: str) -> bool:
    """Whether Nova has *path* for each instance, so that its 404 means that it has no such instance
    in the project (``nova/api/metadata/handler.py`` gives both 404s the same body).

    Trust: the path comes from the guest.
    """
    match split_path(path):
        case ["openstack"] | ["openstack", "latest"] | ["openstack", "latest", "meta_data.json"]:
            return True
        case [version, *rest] if version in _EC2_VERSIONS:
            return rest in ([], ["meta-data"], ["meta-data", "instance-id"])
    return False


def _class(status: int) -> int:
    if not status:
        return len(CLASSES) - 1
    # Any other status of a backend counts as 5xx.
    return status // 100 - 2 if 200 <= status < 600 else len(CLASSES) - 2


def brief_reason(failure: Failure, backend: str) -> str:
    """Return the reason why a guest's request failed, in a few words.

    Trust: no part of the text comes from the guest or from a server.
    """
    code = failure.code
    if code == "absent" and backend == NOVA:
        return "Nova has no such instance in its project"
    if code:
        return _BRIEF.get(code, REASONS[code])
    return failure.reason.partition(". ")[0] or "the reason is unknown"


def guest_remedy(failure: Failure, backend: str, *, port: str, instance: str) -> str:
    """Return the remedy for a guest's failing requests, with a command if one helps.

    :param backend: the backend that answers guests: ``nova`` or ``store``.
    :param port: name of the guest's port.
    :param instance: id of the guest's instance.
    """
    remedies = (_REMEDIES.get((failure.code, name)) for name in (backend, _ANY))
    remedy = next(filter(None, remedies), None)
    if remedy is not None:
        return remedy.format(port=shlex.quote(port), instance=shlex.quote(instance))
    if failure.is_guests:
        return ""
    if failure.status == HTTPStatus.FORBIDDEN and backend == NOVA:
        return _SECRET
    return _LOG.format(lines="line nova" if backend == NOVA else "lines store, lookup and disk")
