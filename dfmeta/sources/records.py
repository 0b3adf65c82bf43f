"""Identity from the store's records: the project and the name of a known instance.

A record has no port and no MAC, so it cannot give the instance of a port. The store is not queried
for an unverified instance, because the record's project would then confirm any such instance.
"""

import json
from collections.abc import Callable
from typing import Protocol

from dfmeta import errors, metrics
from dfmeta.ovsdb.external_ids import name_of, project_of
from dfmeta.sources.source import NAME, PROJECT, Ownership, PortQuery


class InstanceRecord(Protocol):
    """The part of a record of :mod:`dfmeta.store.db.repository` that is used here."""

    @property
    def project_id(self) -> str | None:
        """Return the project of the instance."""

    @property
    def metadata(self) -> str | None:
        """Return the document of the metadata half as JSON."""


class StoreSource:
    """Project and name from the record of a known instance.

    :param get: returns an instance's record, or None.
    """

    name: metrics.IdentitySource = "store"
    gives = frozenset({PROJECT, NAME})
    unverified = False
    subports = True
    by_instance = True
    timeout = 2.0
    retry = (0.5, 5.0)
    recheck = 0.0
    at_once = 8

    def __init__(self, get: Callable[[str], InstanceRecord | None]) -> None:
        self._get = get

    def find(self, question: PortQuery) -> Ownership:
        """See :class:`~dfmeta.sources.source.Source`.

        :raises SourceError: when the database fails.
        """
        instance = question.port.instance_id
        try:
            record = self._get(instance)
        except errors.StoreError as error:
            raise errors.SourceError(source=self.name, cause=error) from error
        if record is None:
            return Ownership()
        return Ownership(
            instance, project_of(record.project_id or ""), _member(record.metadata, "name")
        )


def names_in(document: str | None) -> tuple[str, ...]:
    """Return the names in a record's document: its name and its host name, without empty ones.

    Trust: another program may have written the document; names have no control characters.
    """
    names = (_member(document, member) for member in ("name", "hostname"))
    return tuple(dict.fromkeys(filter(None, names)))


def _member(document: str | None, name: str) -> str:
    try:
        members = json.loads(document or "{}")
    except (ValueError, RecursionError):
        return ""
    text = members.get(name) if isinstance(members, dict) else None
    return name_of(text) if isinstance(text, str) else ""
