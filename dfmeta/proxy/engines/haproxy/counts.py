"""haproxy's counters under dfmeta's names.

Totals (requests by status, connections) come from haproxy's statistics, and the numbers of a guest
from its stick-tables. Only the difference to the last reading is added. haproxy writes a line about
a failed request, so that an operator can find the guest, and no line about others.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, Literal

from dfmeta import metrics, model
from dfmeta.errors import HaproxyError, HeadFault
from dfmeta.identity.registry import Claim, Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.proxy import access
from dfmeta.proxy.engines.haproxy import config, entries
from dfmeta.proxy.engines.haproxy.runtime import Rows, Runtime
from dfmeta.proxy.recent import CLOSED, REASONS, RECENT, is_of_every_instance
from dfmeta.runtime import clock, throttle

LOG = logging.getLogger(__name__)

NOT_NOVAS: Final = frozenset({"FRONTEND", "BACKEND", config.DAEMON})
"""Names of rows that are not those of Nova's servers."""
BACKENDS: Final = (config.NOVA, config.NOVA_CLOSES)
OUTCOMES: Final[Mapping[Literal["opened", "reused", "failed"], str]] = {
    "opened": "connect",
    "reused": "reuse",
    "failed": "econ",
}
"""Outcome of a connection to Nova → haproxy's counter."""
CLASSES: Final[tuple[metrics.StatusClass, ...]] = ("2xx", "3xx", "4xx", "5xx")
_DENIED: Final = "dcon"
"""haproxy's counter of connections that it has refused."""
_LINE: Final = re.compile(r"([0-9.]+|-) ([0-9]{3}) (\S+) (\S+) (\S*) (\S+)((?: -?[0-9]+){4})")
"""Token, status, state, backend, path and method of a request; bytes of the answer, and
milliseconds in total, until Nova's answer, and in the queue."""
_UNREADABLE: Final = "<BADREQ>"
"""Instead of the path of a request that haproxy could not read."""
_NO_ANSWER: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
_NOVAS_OWN: Final = "-"
"""First letter of the state of a request that has Nova's answer."""
_NOVAS_FAULT: Final = ("s", "S")
"""First letters of haproxy's state of a request that Nova did not answer (configuration manual,
8.5)."""
_OWN: Final = "P"
"""First letter of the state of a request whose answer haproxy has refused."""


SlotUse = tuple[model.Endpoint, int, int]
"""Endpoint, slot and epoch of an address."""


class Counts:
    """Reads the counters of one process of haproxy, and its lines about requests.

    :param remark: see :meth:`~dfmeta.proxy.application.Application.report_fault`.
    """

    def __init__(
        self,
        registry: Registry,
        remark: Callable[[Claim, int], str] = lambda _claim, _status: "",
    ) -> None:
        self._registry = registry
        self._remark = remark
        self._throttle = throttle.LogThrottle()
        self._totals: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        self._accepted: dict[str, int] = {}
        """Name of a counter, token of an address, token of a port → the value at the last
        reading."""
        self._used: set[SlotUse] = set()
        """The addresses of which it had connections."""

    def note(self, line: str) -> None:
        """Note a failed request, or any, and log one as the daemon's own engine does at DEBUG.

        :param line: haproxy's, see ``log-format`` in its configuration.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            return
        token, status, state, backend, path = match[1], int(match[2]), *match.group(3, 4, 5)
        claim = self._claim(token)
        if path == _UNREADABLE:
            _refused(claim, status)
            return
        self._note_failure(claim, status, state, backend, path)
        if claim is None or not path.startswith("/") or not state.startswith(_NOVAS_OWN):
            return
        # -1: the request did not come so far.
        size, total, answered, queued = map(_natural, match[7].split())
        access.log_answered(
            claim,
            model.GuestRequest(match[6], path),
            access.Timing(0.0, queued / 1000, answered / 1000, "nova"),
            status,
            size,
            seconds=total / 1000,
        )

    def _note_failure(
        self, claim: Claim | None, status: int, state: str, backend: str, path: str
    ) -> None:
        away = HTTPStatus.SERVICE_UNAVAILABLE
        if status in _NO_ANSWER and not state.startswith(_NOVAS_OWN):
            self._throttle.warn(
                LOG,
                "Nova gave no answer in time, or none that haproxy can forward (%s %s). Check Nova "
                "with: dfmeta doctor",
                status,
                state,
            )
        if status == config.CHANGED and state.startswith(_OWN):
            metrics.CLOSED.labels("changed").inc()
        elif state.startswith(_NOVAS_FAULT) or (status == away and state.startswith(_OWN)):
            closed = backend == config.NOVA_CLOSES
            if closed:
                metrics.CLOSED.labels("timeout").inc()
            else:
                metrics.REQUESTS.labels("5xx", "dfmeta").inc()
            if claim is not None:
                RECENT.answered(claim, CLOSED if closed else away, path, REASONS["timeout"])
        elif status >= HTTPStatus.BAD_REQUEST and claim is not None:
            reason = self._remark(claim, status) or f"nova answered {status}"
            if status == HTTPStatus.NOT_FOUND and is_of_every_instance(path):
                reason = REASONS["absent"]
            RECENT.answered(claim, status, path, reason)

    def read(self, runtime: Runtime) -> None:
        """Add everything that was counted since the last reading, and note the addresses in use.

        :raises HaproxyError: when haproxy does not answer; the next reading adds the rest.
        """
        self._read_totals(runtime.statistics())
        addresses = runtime.table(config.OF_ADDRESS)
        # haproxy forgets only addresses without a connection.
        for use in self._used - self._note(addresses):
            self._count(use, False, clock.now())
        _drop(self._answers, addresses)
        now = clock.wall()
        for token, row in addresses.items():
            gain = _gain(self._answers, token, row.get("gpc0", 0))
            claim = self._claim(token) if gain else None
            if claim is not None:
                RECENT.succeeded(claim, gain, now)
        ports = runtime.table(config.OF_PORT, "data.conn_cnt gt 0")
        _drop(self._accepted, ports)
        self._add_accepted(ports)

    def read_accepted(self, runtime: Runtime) -> None:
        """Add the connections that were accepted of the ports that have had any of late.

        The daemon compares them every second with the SYNs that the switch has counted
        (:mod:`dfmeta.identity.slots`).

        :raises HaproxyError: when haproxy does not answer.
        """
        self._add_accepted(runtime.table(config.OF_PORT, "data.conn_rate gt 0"))

    def look(self, runtime: Runtime, endpoint: model.Endpoint) -> None:
        """Note which addresses of one endpoint are in use, at once.

        A slot with an open connection is not evicted, and otherwise the least recently used one is.
        """
        identity = self._registry.identity(endpoint)
        if identity is None:
            return
        slots = self._registry.slots(endpoint).items()
        tokens = [
            entries.claim_token(endpoint, identity.incarnation, number, slot.epoch)
            for number, slot in slots
        ]
        try:
            self._note(runtime.rows_at_once(config.OF_ADDRESS, tokens))
        except HaproxyError as error:
            LOG.debug("haproxy's connections cannot be read: %s", error)

    def ended(self) -> None:
        """Note the end of the process."""
        for use in set(self._used):
            self._count(use, False, clock.now())
        metrics.CONNECTIONS.set(0)

    def _note(self, rows: Rows) -> set[SlotUse]:
        """Note the uses of these addresses; return them."""
        uses, now = set(), clock.now()
        for token, row in rows.items():
            fields = entries.read_token(token)
            if fields is None:
                continue
            endpoint, _incarnation, number, epoch = fields
            # haproxy forgets an address after a time without a request.
            last = now - max(config.FORGET - row.get("exp", 0) / 1000, 0.0)
            use = endpoint, number, epoch
            uses.add(use)
            self._count(use, row.get("conn_cur", 0) > 0, last)
        return uses

    def _count(self, use: SlotUse, used: bool, at: float) -> None:
        """Note whether an address has connections, and when the latest began or ended."""
        change = int(used) - int(use in self._used)
        (self._used.add if used else self._used.discard)(use)
        self._registry.count_connections(*use, change, at)

    def _read_totals(self, rows: Iterable[Mapping[str, str]]) -> None:
        for row in rows:
            name, kind = row.get("pxname", ""), row.get("svname", "")
            if name == config.FRONTEND and kind == "FRONTEND":
                metrics.CONNECTIONS.set(_number(row, "scur"))
                # Connections beyond those of one port.
                gain = _gain(self._totals, _DENIED, _number(row, _DENIED))
                metrics.CLOSED.labels("too_many").inc(gain)
                metrics.LIMITS.labels("waiting_per_port").inc(gain)
            elif name in BACKENDS and kind not in NOT_NOVAS:
                self._read_server(f"{name}/{kind}", row)

    def _read_server(self, name: str, row: Mapping[str, str]) -> None:
        """Add the counts of one address of Nova; the daemon counts its own answers itself."""
        for status in CLASSES:
            gain = _gain(self._totals, f"{name} {status}", _number(row, f"hrsp_{status}"))
            metrics.REQUESTS.labels(status, "nova").inc(gain)
        for outcome, field in OUTCOMES.items():
            gain = _gain(self._totals, f"{name} {outcome}", _number(row, field))
            metrics.BACKEND_CONNECTIONS.labels(outcome).inc(gain)

    def _add_accepted(self, ports: Rows) -> None:
        for token, row in ports.items():
            fields = entries.read_port_token(token)
            if fields is None:
                continue
            endpoint, incarnation = fields
            gain = _gain(self._accepted, token, row.get("conn_cnt", 0))
            identity = self._registry.identity(endpoint)
            if gain and identity is not None and identity.incarnation == incarnation:
                ACCEPTED.add(endpoint, incarnation, gain)

    def _claim(self, token: str) -> Claim | None:
        """Return the claim that a token stands for, if it still holds."""
        fields = entries.read_token(token)
        if fields is None:
            return None
        endpoint, incarnation, number, epoch = fields
        identity, slot = self._registry.identity(endpoint), None
        if identity is not None and identity.incarnation == incarnation:
            slot = self._registry.slots(endpoint).get(number)
        if identity is None or slot is None or slot.epoch != epoch:
            return None
        return Claim(identity, endpoint, number, epoch, slot.address)


def _gain(readings: dict[str, int], name: str, value: int) -> int:
    """Return the increase of a counter since the last call for it."""
    before = readings.get(name, 0)
    readings[name] = value
    return value - before if value >= before else value


def _drop(readings: dict[str, int], rows: Rows) -> None:
    """Drop the last readings of counters whose rows are gone."""
    for name in readings.keys() - rows.keys():
        del readings[name]


def _refused(claim: Claim | None, status: int) -> None:
    """Count a request that haproxy could not read, or that was not complete in time."""
    reason: HeadFault = "header_timeout" if status == HTTPStatus.REQUEST_TIMEOUT else "malformed"
    if claim is not None:
        access.refused(claim, status, reason)
    else:
        access.refuse(reason)


def load(runtime: Runtime) -> tuple[int, int]:
    """Return the numbers of guests' open connections and of running requests.

    :raises HaproxyError: when haproxy does not answer.
    """
    rows = runtime.statistics()
    connections = [row for row in rows if row.get("pxname") == config.FRONTEND]
    requests = [row for row in rows if row.get("svname") == "BACKEND"]
    return sum(_number(row, "scur") for row in connections), sum(
        _number(row, "scur") for row in requests
    )


def _number(row: Mapping[str, str], name: str) -> int:
    return _natural(row.get(name, ""))


def _natural(text: str) -> int:
    return int(text) if text.isdecimal() else 0
