"""Identity from Neutron's REST API (Networking API v2.0, "Ports").

A port there has a ``device_id``, the instance, and the project that owns the *port*. Neither comes
from the host itself: the port's owner may write any ``device_id``, and an admin's port may belong
to another project than its instance. So the instance is unverified, and the project is only a
fallback (:mod:`dfmeta.sources.source`).

Queries that arrive at the same moment share a call: few ports are requested by their ids, many
ports, as at the start, by this host.

Next hops and subports of ports are requested in rounds (:class:`Rounds`). Everything runs on the
hub.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from dfmeta import errors, metrics, model
from dfmeta.neutron.client import LIST_FROM, NeutronApi, Row, portions
from dfmeta.ovsdb.external_ids import instance_of, project_of
from dfmeta.runtime import hub, threads, throttle
from dfmeta.sources.source import INSTANCE, PORT_PROJECT, Ownership, PortQuery

LOG = logging.getLogger(__name__)

T = TypeVar("T")

CALLS_AT_ONCE: Final = 4
_OF_INSTANCE: Final = "compute:"
"""Beginning of ``device_owner`` of an instance's port."""


class NeutronSource:
    """Gives the instance of a port, unverified, and the port's own project.

    :param timeout: seconds that an answer may take.
    """

    name: metrics.IdentitySource = "neutron"
    gives = frozenset({INSTANCE, PORT_PROJECT})
    unverified = True
    subports = True
    by_instance = False
    retry = (0.5, 30.0)
    recheck = 60.0
    at_once = 10_000

    def __init__(self, ports: NeutronApi, *, timeout: float) -> None:
        self.timeout = timeout
        self._ports = ports
        self._calls = threads.GreenPool(CALLS_AT_ONCE)
        self._waiting: dict[str, threads.Event] = {}
        self._listed = False

    def find(self, question: PortQuery) -> Ownership:
        """See :class:`~dfmeta.sources.source.Source`.

        :raises SourceError: when Neutron gives no answer.
        """
        port_id = instance_of(question.port.iface_id)
        if not port_id:
            return Ownership()
        if not self._waiting:
            threads.spawn_detached(self._collect)
        event = self._waiting.setdefault(port_id, threads.Event())
        row: Row = event.wait()
        return ownership_of(row, question.port)

    def _collect(self) -> None:
        # All greenthreads of this turn of the hub have added their query by now.
        batch, self._waiting = self._waiting, {}
        self._calls.spawn_n(self._call, batch)

    def _call(self, batch: dict[str, threads.Event]) -> None:
        try:
            rows = _in_time(self.timeout, lambda: self._rows(list(batch)))
        except Exception as error:  # every waiting query gets it
            for event in batch.values():
                event.send_exception(error)
        else:
            for port_id, event in batch.items():
                event.send(rows.get(port_id, {}))

    def _rows(self, ids: Sequence[str]) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        if not self._listed or len(ids) >= LIST_FROM:
            rows.update(rows_by_id(self._ports.on_host()))
            self._listed = True
        # On the target of a live migration a port is still bound to the source.
        for part in portions([port_id for port_id in ids if port_id not in rows]):
            rows.update(rows_by_id(self._ports.by_id(part)))
        return rows


class Rounds:
    """Requests data of ports in rounds, for :mod:`dfmeta.sources.next_hops` and ``trunk_details``.

    A round requests all that is due, and returns when the next one is; the bell begins it earlier.
    While Neutron does not answer, the pauses grow, and the data known before stays.

    :param subject: the requested data, in the log.
    :param run: a round; returns seconds until the next one, and raises SourceError when Neutron
        does not answer.
    :param longest: maximum seconds between two rounds.
    :param timeout: seconds that an answer may take.
    """

    def __init__(
        self,
        api: NeutronApi,
        subject: str,
        run: Callable[[], float],
        *,
        longest: float,
        timeout: float,
    ) -> None:
        self._api, self._subject, self._run = api, subject, run
        self._longest, self._timeout = longest, timeout
        self._throttle = throttle.LogThrottle()
        self._backoff = throttle.Backoff(*NeutronSource.retry)
        self._bell = hub.Bell()

    def start(self) -> None:
        """Begin the rounds."""
        hub.VITAL.spawn(f"{self._subject} from Neutron", self._loop)

    def ring(self) -> None:
        """Begin a round now, unless the one before has failed."""
        self._bell.ring()

    def ports(self, ids: Sequence[str], fields: Sequence[str]) -> Iterator[Mapping[str, Row]]:
        """Yield Neutron's rows of ports by id, in portions, perhaps with other ports of the host.

        A port that Neutron does not have has an empty row.

        :raises SourceError: when an answer is not there in time, or Neutron refuses.
        """
        rows: dict[str, Row] = {}
        if len(ids) >= LIST_FROM:
            rows = rows_by_id(self.call(partial(self._api.on_host, fields)))
            yield rows
        # A port may be bound to another host: the source of its migration.
        for part in portions([port_id for port_id in ids if port_id not in rows]):
            answer = self.call(partial(self._api.by_id, part, fields))
            yield {**{port_id: {} for port_id in part}, **rows_by_id(answer)}

    def call(self, query: Callable[[], list[Row]]) -> list[Row]:
        """Return Neutron's answer to a query.

        :raises SourceError: when there is none in time, or the query raises it.
        """
        return _in_time(self._timeout, query)

    def _loop(self) -> None:
        pause = 0.0
        while True:
            self._bell.wait(max(0.0, min(pause, self._longest)))
            try:
                pause = self._run()
            except errors.SourceError as error:
                metrics.NEUTRON_ROUNDS_FAILED.labels("source").inc()
                message = "Neutron does not give %s (%s); known ones stay"
                self._throttle.warn(LOG, message, self._subject, error.cause)
            except Exception:
                # A defect in dfmeta must not end the daemon: guests are served without the answers.
                metrics.NEUTRON_ROUNDS_FAILED.labels("defect").inc()
                LOG.exception("The query for %s failed; retrying", self._subject)
            else:
                self._backoff.succeeded()
                continue
            self._backoff.failed(0.0)
            # New ports do not shorten the pause.
            threads.sleep(self._backoff.until)
            pause = 0.0


def rows_by_id(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the ports among *rows* by id."""
    return {instance_of(str(row.get("id", ""))): row for row in rows}


def _in_time(seconds: float, query: Callable[[], T]) -> T:
    timer = threads.Timeout(seconds)
    try:
        return query()
    except threads.Timeout as timeout:
        if timeout is not timer:
            raise
        cause = f"no answer within {seconds:g} s"
        raise errors.SourceError(source=NeutronSource.name, cause=cause) from None
    finally:
        timer.cancel()


def ownership_of(row: Row, port: model.Port) -> Ownership:
    """Read a port of Neutron, or of OVN; one of a router or a DHCP agent has no instance.

    Programs use any ``device_owner`` for a subport, and may leave ``device_id`` empty.
    """
    instance = instance_of(str(row.get("device_id") or ""))
    if port.kind is model.PortKind.SUBPORT:
        instance = "" if port.instance_id else instance
    elif not instance or not str(row.get("device_owner") or "").startswith(_OF_INSTANCE):
        return Ownership()
    return Ownership(instance, port_project=_project(row))


def _project(row: Row) -> str:
    return project_of(str(row.get("project_id") or row.get("tenant_id") or ""))
