"""Checks of the engine haproxy: its program, its process, its limits and its map. Pure.

Sources: capabilities(7), getrlimit(2); HAProxy 2.6, management guide, 5 "File-descriptor
limitations".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dfmeta.doctor.checks_system import NEARLY_FULL
from dfmeta.doctor.finding import Finding, ok, span, unknown, warning, wrong
from dfmeta.host.process import ChildFacts

RECENT: Final = timedelta(hours=1)
"""Time for which a restart after a fault is a warning."""
_LOG: Final = "`journalctl -u dfmeta-agent | grep haproxy` shows the cause"
_RELOAD: Final = "`systemctl reload dfmeta-agent`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """The program, as the daemon would start it now."""

    binary: str = ""
    version: str = ""
    user: str = ""
    """The option [haproxy] user."""
    cause: str = ""
    """Why it cannot be used; empty when it can."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFacts:
    """haproxy's map, compared with the registry."""

    entries: int
    missing: int = 0
    superfluous: int = 0
    different: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the daemon knows of haproxy."""

    pid: int | None = None
    """None: no haproxy accepts connections."""
    version: str = ""
    connections: int | None = None
    """Open connections of guests; None: haproxy has not told."""
    maxconn: int = 0
    fault: str = ""
    """Why there is no haproxy, or why it has not answered the daemon."""
    failed_replacement: str = ""
    """Why a process that was to replace this one has not started; empty: none has failed."""
    restarts: int = 0
    """Restarts after a fault since the daemon's start."""
    last_restart: datetime | None = None
    last_fault: str = ""
    map: MapFacts | None = None
    """None: haproxy has not answered."""


def engine_facts(row: Mapping[str, Any]) -> EngineFacts:
    """Return the daemon's answer about haproxy.

    :raises KeyError, TypeError, ValueError: for an answer of another form.
    """
    last, guest_map = row["last_restart"], row["map"]
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
        map=None if guest_map is None else MapFacts(**guest_map),
    )


def program(facts: ProgramFacts, engine: EngineFacts | None) -> Finding:
    """Check that the program can be started, and that the version which runs is the installed one.

    :param engine: None: the daemon does not tell.
    """
    if facts.cause:
        runs = engine is not None and engine.pid is not None
        until = "; the one that runs goes on, and could not be started again" if runs else ""
        return wrong(f"{facts.cause}{until}", facts.remedy)
    if engine is not None and engine.pid is not None and engine.version != facts.version:
        return warning(
            f"haproxy {facts.version} is installed, but {engine.version} runs",
            f"{_RELOAD} replaces it, and no request is lost",
        )
    return ok(f"haproxy {facts.version}, {facts.binary}")


def process(
    engine: EngineFacts, child: ChildFacts | None, *, wanted: str, now: datetime
) -> Iterator[Finding]:
    """Check that haproxy runs without privileges, and has not failed lately.

    :param child: None: its process cannot be seen.
    :param wanted: the user that it has to run as; empty: it is not known.
    """
    if engine.pid is None:
        yield wrong(
            f"no haproxy runs: {engine.fault or 'dfmeta-agent is about to start it'}; guests wait",
            _LOG,
        )
        return
    if engine.fault:
        yield wrong(
            f"haproxy (pid {engine.pid}) does not answer dfmeta-agent: {engine.fault}",
            _LOG,
        )
        return
    if engine.failed_replacement:
        yield wrong(
            f"haproxy (pid {engine.pid}) runs with a former configuration: the process that was "
            f"to replace it has not started: {engine.failed_replacement}",
            _LOG,
        )
        return
    if child is None:
        yield unknown(f"the process of haproxy ({engine.pid}) cannot be seen")
    elif not child.uid or child.capabilities or (wanted and child.user != wanted):
        has = f"capabilities 0x{child.capabilities:x}" if child.capabilities else "no capability"
        yield wrong(
            f"haproxy (pid {engine.pid}) runs as user {child.user} with {has}: it has to run as "
            f"user {wanted or 'of [haproxy] user'} without any",
            "`systemctl restart dfmeta-agent`",
        )
    elif engine.last_restart is None or now - engine.last_restart > RECENT:
        yield ok(_runs(engine, child))
    if engine.last_restart is not None and now - engine.last_restart <= RECENT:
        ago = span(max((now - engine.last_restart).total_seconds(), 0.0))
        yield warning(
            f"haproxy was started again {_times(engine.restarts)} after a fault, the last time "
            f"{ago} ago: it {engine.last_fault}",
            _LOG,
        )


def files(engine: EngineFacts, child: ChildFacts | None) -> Finding:
    """Check that haproxy has descriptors left."""
    if child is None:
        return unknown("the process of haproxy cannot be seen")
    taken = f"{child.open} of {child.descriptors} files of haproxy are open"
    if child.open < NEARLY_FULL * child.descriptors:
        return ok(taken)
    raised = f"raise [haproxy] maxconn above {engine.maxconn} and {_RELOAD}"
    if child.open >= child.descriptors:
        return wrong(f"{taken}: it accepts no further connection", raised)
    return warning(f"{taken}: when all are, it accepts no further connection", raised)


def connections(engine: EngineFacts) -> Finding:
    """Check that haproxy accepts further connections of guests."""
    if engine.connections is None:
        return unknown("haproxy has not told its connections")
    taken = f"guests have {engine.connections} of {engine.maxconn} connections"
    if engine.connections < NEARLY_FULL * engine.maxconn:
        return ok(taken)
    raised = (
        f"raise [haproxy] maxconn and {_RELOAD}, or find the guests that keep them: `dfmeta ports`"
    )
    if engine.connections >= engine.maxconn:
        return wrong(f"{taken}: further ones wait", raised)
    return warning(f"{taken}: when all are taken, further ones wait", raised)


def guest_map(engine: EngineFacts) -> Finding:
    """Check that haproxy's map has the guests of the registry."""
    facts = engine.map
    if facts is None:
        return unknown("haproxy has not told its map")
    counts = {
        "missing": facts.missing,
        "superfluous": facts.superfluous,
        "different": facts.different,
    }
    faults = [f"{count} {kind}" for kind, count in counts.items() if count]
    if not faults:
        return ok(f"haproxy's map has the {facts.entries} addresses of its guests")
    return wrong(
        f"haproxy's map differs from dfmeta-agent's guests: {', '.join(faults)}, of "
        f"{facts.entries} entries",
        "`systemctl restart dfmeta-agent`",
    )


def _runs(engine: EngineFacts, child: ChildFacts) -> str:
    text = f"haproxy (pid {engine.pid}) runs as user {child.user} without capabilities"
    if engine.restarts:
        text += f"; it was started again {_times(engine.restarts)} after a fault"
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
