"""Identity from Neutron's REST API (Networking API v2.0, "Ports").

A port there has a ``device_id``, the instance, and the project that owns the *port*. Neither is the
host's own word: the port's owner may write the one, and an admin's port has another project than
the instance that it is plugged into. So the instance is a claim, and the project is only a
fall-back (:mod:`dfmeta.ports.sources`).

All who ask at the same moment share a call: few by their ids, many, as at the start, by this host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import eventlet
from eventlet.event import Event

from dfmeta import metrics
from dfmeta.exceptions import SourceError
from dfmeta.ports.neutron_api import Row
from dfmeta.ports.sources import (
    INSTANCE,
    PORT_PROJECT,
    Ownership,
    Question,
    instance_of,
    project_of,
)

LIST_FROM: Final = 16
"""Ports from which on the host's are asked for in one call."""
IDS_AT_ONCE: Final = 32
"""Ids in one call: some 1,400 characters of its URL."""
CALLS_AT_ONCE: Final = 4
_OF_INSTANCE: Final = "compute:"
"""Beginning of an instance's port's ``device_owner``."""


class Ports(Protocol):
    """Neutron's ports."""

    def on_host(self) -> list[Row]:
        """All of this host.

        :raises SourceError: when there is no answer that could be read.
        """
        ...

    def by_id(self, ids: Sequence[str]) -> list[Row]:
        """Those of *ids* that there are.

        :raises SourceError: when there is no answer that could be read.
        """
        ...


class NeutronSource:
    """The instance that a port claims, and the port's own project.

    :param timeout: seconds that an answer may take.
    """

    name: metrics.IdentitySource = "neutron"
    gives = frozenset({INSTANCE, PORT_PROJECT})
    unverified = True
    by_instance = False
    retry = (0.5, 30.0)
    recheck = 60.0
    at_once = 10_000

    def __init__(self, ports: Ports, *, timeout: float) -> None:
        self.timeout = timeout
        self._ports = ports
        self._calls = eventlet.GreenPool(CALLS_AT_ONCE)
        self._waiting: dict[str, Event] = {}
        self._listed = False

    def find(self, question: Question) -> Ownership:
        """See :class:`~dfmeta.ports.sources.Source`.

        :raises SourceError: when Neutron cannot be asked.
        """
        port_id = instance_of(question.port.iface_id)
        if not port_id:
            return Ownership()
        if not self._waiting:
            eventlet.spawn_n(self._collect)
        event = self._waiting.setdefault(port_id, Event())
        found: Ownership = event.wait()
        return found

    def _collect(self) -> None:
        # All greenthreads of this turn of the hub have asked by now.
        batch, self._waiting = self._waiting, {}
        self._calls.spawn_n(self._call, batch)

    def _call(self, batch: dict[str, Event]) -> None:
        try:
            with eventlet.Timeout(self.timeout):
                rows = self._rows(list(batch))
        except eventlet.Timeout:
            error = SourceError(source=self.name, cause=f"no answer within {self.timeout:g} s")
            _fail(batch, error)
        except Exception as error:  # whoever waits is told, whatever it is
            _fail(batch, error)
        else:
            for port_id, event in batch.items():
                event.send(_found(rows.get(port_id, {})))

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
    """Read a port; one that is no instance's, but a router's or a DHCP agent's, gives nothing."""
    instance = instance_of(str(row.get("device_id") or ""))
    if not instance or not str(row.get("device_owner") or "").startswith(_OF_INSTANCE):
        return Ownership()
    project = project_of(str(row.get("project_id") or row.get("tenant_id") or ""))
    return Ownership(instance, port_project=project)


def _fail(batch: dict[str, Event], error: Exception) -> None:
    for event in batch.values():
        event.send_exception(error)
