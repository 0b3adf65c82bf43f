"""``dfmeta doctor``'s check of attachments; no line where they are off and have left nothing."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from oslo_config import cfg

from dfmeta.cli import gather
from dfmeta.conf import attachments as options
from dfmeta.exceptions import OvsdbError
from dfmeta.inspect import checks_attachments
from dfmeta.inspect.checks_attachments import End, Facts, Row
from dfmeta.inspect.checks_trunks import mtu_behind
from dfmeta.inspect.facts import Settings, Snapshot
from dfmeta.inspect.finding import Finding, unknown
from dfmeta.ports.ovsdb_facts import read_snapshot
from dfmeta.ports.trunk_bridge import MARK
from dfmeta.ports.trunks import ATTACHMENT as KEY
from dfmeta.ports.trunks import PARENT
from dfmeta.wiring import neutron_client

PATH: Final = "/attachments"
"""Path of the admin listener that lists the attachments."""


def attachments(
    conf: cfg.ConfigOpts, wanted: Settings, snapshot: Snapshot | None, *, running: bool
) -> Iterator[Finding]:
    """Check the attachments of this host.

    :param snapshot: OVSDB as the other checks have it; None: it does not answer.
    :param running: whether the daemon answers.
    """
    if not conf.attachments.enabled:
        yield from checks_attachments.switched_off(_ends(snapshot or Snapshot()))
        return
    if not running:
        yield unknown("attachments", "dfmeta-agent is needed for the table of attachments")
        return
    before, cause = _rows(conf)
    if cause:
        yield checks_attachments.silent(cause)
        return
    # Between two readings of the table, so that an attachment that comes or goes is no fault.
    now = _read(wanted) if snapshot is not None else None
    after, cause = _rows(conf)
    if cause:
        yield checks_attachments.silent(cause)
        return
    yield from checks_attachments.attachments(_facts(conf, wanted, before, after, now))


def _facts(
    conf: cfg.ConfigOpts,
    wanted: Settings,
    before: Sequence[Row],
    after: Sequence[Row],
    snapshot: Snapshot | None,
) -> Facts:
    there = snapshot or Snapshot()
    local = snapshot is not None and conf.attachments.driver == "local"
    trunks = dict(_trunks(there, wanted.bridge))
    return Facts(
        before=before,
        after=after,
        ends=_ends(there) if local else None,
        vids=options.vids(conf.attachments),
        quota=conf.attachments.quota,
        foreign={port: _foreign(there, bridge) for port, bridge in trunks.items()},
        networks={name: group.mtu for name, group in options.networks(conf).items()},
        parents={port: mtu_behind(port, there, wanted.bridge) for port in trunks},
    )


def _rows(conf: cfg.ConfigOpts) -> tuple[list[Row], str]:
    """Return the attachments of this host, and why there are none; empty: they have been read."""
    host = neutron_client.host(conf)
    try:
        document = gather.ask(conf, PATH)
        if isinstance(document, Mapping):
            return [], str(document.get("message") or "its answer has no attachments")
        return [_row(one) for one in document if one["host"] == host], ""
    except (OSError, http.client.HTTPException) as error:
        return [], getattr(error, "strerror", None) or str(error) or "no answer in time"
    except (ValueError, KeyError, TypeError):
        return [], f"the answer for {PATH} has an unknown format: restart dfmeta-agent"


def _row(one: Mapping[str, Any]) -> Row:
    return Row(
        id=one["id"],
        port=one["port"],
        vid=one["vid"],
        network=one["network"],
        state=one["state"],
        boot_id=one["boot_id"],
        created=one["created"],
    )


def _read(wanted: Settings) -> Snapshot | None:
    try:
        return read_snapshot(wanted.ovsdb)
    except OvsdbError:  # it has ended since the first reading
        return None


def _ends(snapshot: Snapshot) -> list[End]:
    return [
        End(one.name, one.external_ids[KEY], one.options.get("peer", ""))
        for one in snapshot.interfaces
        if KEY in one.external_ids
    ]


def _trunks(snapshot: Snapshot, integration: str) -> Iterator[tuple[str, str]]:
    """Yield the VM's port and the bridge of each trunk of dfmeta."""
    ours = {one.name for one in snapshot.bridges if one.external_ids.get(MARK[0]) == MARK[1]}
    bridges = {one.name: one.bridge for one in snapshot.interfaces if one.bridge in ours}
    for one in snapshot.interfaces:
        bridge = bridges.get(one.options.get("peer", ""))
        if bridge and one.bridge == integration and one.name.startswith(PARENT):
            yield one.name, bridge


def _foreign(snapshot: Snapshot, bridge: str) -> frozenset[int]:
    """Return the VLAN ids that ports of other programs have on the bridge of a trunk."""
    return frozenset(
        one.tag
        for one in snapshot.interfaces
        if one.bridge == bridge and one.tag and KEY not in one.external_ids
    )
