"""``dfmeta doctor``'s checks of the engine haproxy; no lines with another engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from oslo_config import cfg

from dfmeta.cli.client import ask_agent
from dfmeta.conf.accounts import HAPROXY_ACCOUNT, account_of
from dfmeta.conf.haproxy import HAPROXY
from dfmeta.doctor import checks_haproxy, checks_process
from dfmeta.doctor.checks_haproxy import EngineFacts, MapFacts, ProgramFacts
from dfmeta.doctor.finding import Finding
from dfmeta.errors import ConfigError, NotRunningError
from dfmeta.host.facts import ProcessFacts
from dfmeta.host.process import read_account, read_haproxy
from dfmeta.wiring import haproxy_program


def haproxy(
    conf: cfg.ConfigOpts, daemon: ProcessFacts | None, *, running: bool
) -> Iterator[Finding]:
    """Check haproxy, if it is the engine.

    :param daemon: its process; None when there is none or it is not visible.
    :param running: whether the daemon answers.
    """
    if conf.df_metadata.engine != HAPROXY:
        return
    engine = _engine(conf) if running else None
    yield checks_haproxy.program(_program(conf), engine)
    if engine is None:
        yield from checks_haproxy.silent()
        return
    child = read_haproxy(engine.pid, daemon.pid) if engine.pid and daemon is not None else None
    # A daemon that is not root cannot make haproxy another user.
    root = daemon is not None and not daemon.uid
    user = account_of(conf.haproxy.user, HAPROXY_ACCOUNT) if root else ""
    yield from checks_haproxy.process(engine, child, wanted=user, now=datetime.now(UTC))
    if daemon is not None and root and engine.pid:
        account = read_account([engine.pid], daemon.pid)
        yield checks_process.account(account, which="haproxy", option="[haproxy] user")
    yield checks_haproxy.files(engine, child)
    yield checks_haproxy.connections(engine)
    yield checks_haproxy.guest_map(engine)


def _program(conf: cfg.ConfigOpts) -> ProgramFacts:
    try:
        found = haproxy_program.program(conf)
    except ConfigError as error:
        fields = error.fields
        cause = f"[haproxy] binary = {fields['value']} cannot be used: {fields['cause']}"
        return ProgramFacts(cause=cause, remedy=f"{fields['remedy']}")
    return ProgramFacts(binary=found.binary, version=found.version, user=found.user)


def _engine(conf: cfg.ConfigOpts) -> EngineFacts | None:
    """Return what the daemon tells of haproxy; None: nothing, or it is of another version."""
    try:
        row = ask_agent(conf, "/haproxy")
        return None if row is None else _facts(row)
    except (NotRunningError, KeyError, TypeError, ValueError):
        return None


def _facts(row: Mapping[str, Any]) -> EngineFacts:
    last, found = row["last_restart"], row["map"]
    return EngineFacts(
        pid=row["pid"],
        version=row["version"],
        connections=row["connections"],
        maxconn=row["maxconn"] or 0,
        fault=row["fault"],
        failed_replacement=row["failed_replacement"],
        restarts=row["restarts"],
        last_restart=None if last is None else datetime.fromisoformat(last),
        last_fault=row["last_fault"],
        map=None if found is None else MapFacts(**found),
    )
