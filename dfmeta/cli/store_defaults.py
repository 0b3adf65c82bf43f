"""Defaults that an instance no longer gets once it has a record."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from oslo_config import cfg

from dfmeta.cli.store_choice import Records
from dfmeta.cli.store_target import Domains, Target
from dfmeta.store.api.client import Client
from dfmeta.store.db.record import Record, parse_document
from dfmeta.store.guest import defaults
from dfmeta.wiring.last_words import PROG


@dataclass(frozen=True, slots=True)
class Lost:
    """The defaults that an instance has got so far."""

    target: Target
    before: Record | None
    """The merged defaults; None if it had a record of its own, or has no defaults."""

    def members(self, records: Records) -> tuple[str, ...]:
        """Return the members of the defaults that the instance does not get any more."""
        after = records.get(self.target.record_id) if self.before is not None else None
        if self.before is None or after is None or after.empty:
            return ()
        had, has = (parse_document(one.id, one.metadata) for one in (self.before, after))
        lost = [name for name in had if name not in has]
        lost += [
            name
            for name in ("userdata", "http_tokens")
            if getattr(self.before, name) is not None and getattr(after, name) is None
        ]
        return tuple(lost)

    def sentence(self, words: str) -> str:
        """Return the warning about the members that are lost.

        :param words: their names.
        """
        return (
            f"{PROG}: {self.target.shown} had these from the defaults, and loses them: {words}. "
            "A record of its own replaces all defaults: put them into the record as well, "
            f"or return to the defaults: dfmeta store delete {self.target.record_id}"
        )


def lost_defaults(conf: cfg.ConfigOpts, records: Records, target: Target) -> Lost:
    """Return the defaults that an instance gets before a put gives it a record.

    An admin API does not give access to defaults: with one, they are unknown.
    """
    if isinstance(records, Client) or target.default or not conf.store.defaults:
        return Lost(target, None)
    own = records.get(target.record_id)
    if own is not None and not own.empty:
        return Lost(target, None)
    domain = Domains(conf).of(target.record_id)
    project = (domain.project_id if domain else "") or (own.project_id if own else "") or ""
    ids = defaults.layers(host=socket.gethostname(), project_id=project)
    found = [one for one in map(records.get, ids) if one is not None]
    name = (domain.name or domain.domain_name) if domain else ""
    merged = defaults.merged(found, target.record_id, instance_name=name, project_id=project)
    return Lost(target, merged)
