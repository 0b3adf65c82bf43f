"""``dfmeta doctor``'s check of attachments; no line where they are off and have left nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from dfmeta.cli.client import request_agent
from dfmeta.conf import attachments as options
from dfmeta.doctor import checks_attachments
from dfmeta.doctor.checks_attachments import AttachmentFacts, Row
from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding
from dfmeta.errors import NotRunningError, OvsdbError
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.runtime import clock
from dfmeta.wiring import neutron_client


def attachments(
    conf: cfg.ConfigOpts, wanted: Settings, snapshot: Snapshot | None, *, running: bool
) -> Iterator[Finding]:
    """Check attachments, if the daemon makes any.

    OVSDB is read again, between two readings of the table: an attachment that a VM adds or deletes
    meanwhile is no fault.

    :param snapshot: OVSDB's configuration; None if OVSDB does not answer.
    :param running: whether the daemon answers.
    """
    if not conf.attachments.enabled:
        yield from checks_attachments.left(snapshot or Snapshot())
        return
    if not running:
        yield checks_attachments.silent()
        return
    before = _facts(conf)
    there = None if snapshot is None else _read(wanted.ovsdb)
    facts = replace(_facts(conf), before=before.rows)
    yield from checks_attachments.attachments(facts, there, wanted.bridge, now=clock.wall())


def _read(ovsdb: str) -> Snapshot | None:
    try:
        return read_snapshot(ovsdb)
    except OvsdbError:  # it has ended since the first reading
        return None


def _facts(conf: cfg.ConfigOpts) -> AttachmentFacts:
    try:
        status, found = request_agent(conf, "/attachments")
        if status != 200:
            return AttachmentFacts(cause=str(found.get("message", status)))
        rows = [_row(one) for one in found if one["host"] == neutron_client.host(conf)]
    except (NotRunningError, AttributeError, KeyError, TypeError) as error:
        return AttachmentFacts(cause=str(error))
    group = conf.attachments
    return AttachmentFacts(
        rows=rows,
        most=min(group.quota, len(options.vids(group))),
        networks={name: its.mtu for name, its in options.networks(conf).items()},
        local=group.driver == "local",
    )


def _row(one: dict[str, Any]) -> Row:
    names = ("id", "port", "container", "vid", "network", "state", "boot_id", "changed")
    return Row(**{name: one[name] for name in names})
