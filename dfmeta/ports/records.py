"""Identity from the store's records: the project and the name of an instance that is known.

A record has no port and no MAC, so it cannot say who is on a port. It is not asked about an
instance that is not verified, since the record's project would vouch for whoever claims it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from dfmeta import metrics
from dfmeta.exceptions import SourceError, StoreError
from dfmeta.ports.sources import NAME, PROJECT, Ownership, Question, name_of, project_of


class Record(Protocol):
    """What is read of a record of :mod:`dfmeta.store.db.repository`."""

    @property
    def project_id(self) -> str | None:
        """Project of the instance."""

    @property
    def metadata(self) -> str | None:
        """Its document, JSON."""


class StoreSource:
    """Project and name from the record of a known instance.

    :param get: gives an instance's record, or None.
    """

    name: metrics.IdentitySource = "store"
    gives = frozenset({PROJECT, NAME})
    unverified = False
    by_instance = True
    timeout = 2.0
    retry = (0.5, 5.0)
    recheck = 0.0
    at_once = 8

    def __init__(self, get: Callable[[str], Record | None]) -> None:
        self._get = get

    def find(self, question: Question) -> Ownership:
        """See :class:`~dfmeta.ports.sources.Source`.

        :raises SourceError: when the database fails.
        """
        instance = question.port.instance_id
        try:
            record = self._get(instance)
        except StoreError as error:
            raise SourceError(source=self.name, cause=error) from error
        if record is None:
            return Ownership()
        return Ownership(instance, project_of(record.project_id or ""), _name(record.metadata))


def _name(document: str | None) -> str:
    try:
        members = json.loads(document or "{}")
    except (ValueError, RecursionError):
        return ""
    name = members.get("name") if isinstance(members, dict) else None
    return name_of(name) if isinstance(name, str) else ""
