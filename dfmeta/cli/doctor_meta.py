"""``dfmeta doctor``'s checks of Meta IPs and of the second bridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from oslo_config import cfg

from dfmeta.apps.switch_facts import Reading, SilentError, read_flows
from dfmeta.cli import gather
from dfmeta.doctor import checks_meta
from dfmeta.doctor.facts import KnownPort, Settings
from dfmeta.doctor.finding import Finding, Status
from dfmeta.errors import NotRunningError, OvsdbError, SwitchError
from dfmeta.flows.port_down import PortBits
from dfmeta.model import MetaIds
from dfmeta.ovsdb.external_ids import own_ids
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.runtime import clock

SETTLE_TRIES: Final = 4
SETTLE_PAUSE: Final = 0.4
"""Seconds between two readings: the daemon may write Meta IPs in between, so that only a difference
in all readings is shown."""


def bridge(
    wanted: Settings,
    snapshot: Snapshot | None,
    bits: Mapping[str, Mapping[int, PortBits]],
    silent: SilentError | None,
) -> Iterator[Finding]:
    """Check the second bridge and the patch; no line if the identity scheme has none.

    :param snapshot: None when OVSDB does not answer.
    :param bits: see :func:`~dfmeta.doctor.checks_meta.patch`.
    :param silent: the error of a request that the bridge has not answered; None: it has answered,
        or was not asked.
    """
    meta = wanted.meta
    if meta is None or snapshot is None:
        return
    reading: Reading | None = None
    cause = ""
    try:
        if silent is not None:
            raise silent
        reading = read_flows(Path(meta.socket), meta.layout)
    except SwitchError as error:
        cause = str(error)
    yield checks_meta.bridge(snapshot, wanted, meta, cause=cause)
    yield from checks_meta.patch(snapshot, wanted, meta, bits)
    yield from checks_meta.mappings(snapshot, reading.foreign if reading else None, meta)


def numbers(
    conf: cfg.ConfigOpts | None, wanted: Settings, known: tuple[KnownPort, ...] | None
) -> Iterator[Finding]:
    """Check that each port has a Meta IP, and that OVSDB has it.

    :param conf: None when the daemon does not run.
    :param known: the guests' ports; None if they are not known.
    """
    if wanted.meta is None or known is None:
        return
    yield checks_meta.room(known, wanted, running=conf is not None)
    yield _ids(conf, wanted, known)


def _ids(conf: cfg.ConfigOpts | None, wanted: Settings, known: tuple[KnownPort, ...]) -> Finding:
    for _ in range(SETTLE_TRIES):
        try:
            stored = _stored(wanted)
        except OvsdbError as error:
            return checks_meta.no_ids(str(error))
        found = checks_meta.ids(known, stored, running=conf is not None)
        if conf is None or found.status is not Status.WRONG:
            break
        clock.sleep(SETTLE_PAUSE)
        try:
            known = gather.daemon_ports(conf, wanted.keys)
        except NotRunningError as error:
            return checks_meta.no_ids(str(error))
    return found


def _stored(wanted: Settings) -> dict[str, MetaIds]:
    """Return name of a port → its Meta addresses in OVSDB.

    :raises OvsdbError: when OVSDB does not answer.
    """
    return {
        one.name: own_ids(one.external_ids)
        for one in read_snapshot(wanted.ovsdb).interfaces
        if one.bridge == wanted.bridge
    }
