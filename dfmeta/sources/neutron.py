"""Identity from Neutron's REST API (Networking API v2.0, "Ports").

A port there has a ``device_id``, the instance, and the project that owns the *port*. Neither comes
from the host itself: the port's owner may write any ``device_id``, and an admin's port may belong
to another project than its instance. So the instance is unverified, and the project is only a
fallback (:mod:`dfmeta.sources.source`).

Queries that arrive at the same moment share a call: few ports are requested by their ids, many
ports, as at the start, by this host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dfmeta import metrics
from dfmeta.errors import SourceError
from dfmeta.model import Port, PortKind
from dfmeta.neutron.client import IDS_AT_ONCE, LIST_FROM, NeutronApi, Row
from dfmeta.ovsdb.external_ids import instance_of, project_of
from dfmeta.runtime import threads
from dfmeta.runtime.threads import Event
from dfmeta.sources.source import INSTANCE, PORT_PROJECT, Ownership, PortQuery

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
        self._waiting: dict[str, Event] = {}
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
        event = self._waiting.setdefault(port_id, Event())
        row: Row = event.wait()
        return _of_subport(row, question.port) if _is_subport(question.port) else _found(row)

    def _collect(self) -> None:
        # All greenthreads of this turn of the hub have added their query by now.
        batch, self._waiting = self._waiting, {}
        self._calls.spawn_n(self._call, batch)

    def _call(self, batch: dict[str, Event]) -> None:
        try:
            with threads.Timeout(self.timeout):
                rows = self._rows(list(batch))
        except threads.Timeout:
            error = SourceError(source=self.name, cause=f"no answer within {self.timeout:g} s")
            _fail(batch, error)
        except Exception as error:  # every waiting query gets it
            _fail(batch, error)
        else:
            for port_id, event in batch.items():
                event.send(rows.get(port_id, {}))

    def _rows(self, ids: Sequence[str]) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        if not self._listed or len(ids) >= LIST_FROM:
            rows.update(_by_id(self._ports.on_host()))
            self._listed = True
        # On the target of a live migration a port is still bound to the source.
        left = [port_id for port_id in ids if port_id not in rows]
        for start in range(0, len(left), IDS_AT_ONCE):
            rows.update(_by_id(self._ports.by_id(left[start : start + IDS_AT_ONCE])))
        return rows


def _by_id(rows: Sequence[Row]) -> dict[str, Row]:
    return {instance_of(str(row.get("id", ""))): row for row in rows}


def _found(row: Row) -> Ownership:
    """Read a port; one of a router or a DHCP agent gives an empty result, as it has no instance."""
    instance = instance_of(str(row.get("device_id") or ""))
    if not instance or not str(row.get("device_owner") or "").startswith(_OF_INSTANCE):
        return Ownership()
    return Ownership(instance, port_project=_project(row))


def _is_subport(port: Port) -> bool:
    return port.kind is PortKind.SUBPORT


def _of_subport(row: Row, port: Port) -> Ownership:
    """Read the port of a subport. Programs use any ``device_owner`` there, and may leave
    ``device_id`` empty."""
    instance = "" if port.instance_id else instance_of(str(row.get("device_id") or ""))
    return Ownership(instance, port_project=_project(row))


def _project(row: Row) -> str:
    return project_of(str(row.get("project_id") or row.get("tenant_id") or ""))


def _fail(batch: dict[str, Event], error: Exception) -> None:
    for event in batch.values():
        event.send_exception(error)
