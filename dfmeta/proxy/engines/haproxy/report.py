"""Facts about haproxy for the commands of an operator: ``GET /haproxy``.

Only the daemon can ask haproxy: the runtime interface has no name. Trust: the answer has numbers of
entries, and no entry: an entry has a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dfmeta.errors import HaproxyError
from dfmeta.identity.registry import Registry
from dfmeta.proxy.engines.haproxy.counts import connections
from dfmeta.proxy.engines.haproxy.entries import Entries
from dfmeta.proxy.engines.haproxy.running import Failures, Running
from dfmeta.proxy.feed import BATCH
from dfmeta.runtime import threads
from dfmeta.runtime.hub import Turns

LOOKS: Final = 3
"""Comparisons of a map in all of which a difference must be: a change of a port takes a moment."""
PAUSE: Final = 0.25
"""Seconds between two comparisons."""
MISSING, SUPERFLUOUS, DIFFERENT = "missing", "superfluous", "different"

Wanted = Callable[[], Mapping[str, str]]
"""Returns the entries that a map should have."""


def describe(one: Running | None, failures: Failures) -> dict[str, Any]:
    """Return process, connections and failures; does not wait for the map.

    :param one: the process that accepts connections; None: there is none.
    """
    found: dict[str, Any] = {
        "pid": None,
        "version": "",
        "user": "",
        "connections": None,
        "maxconn": None,
        "fault": failures.start,
        "failed_replacement": "",
        "restarts": failures.count,
        "last_restart": _moment(failures.last_at) if failures.count else None,
        "last_fault": failures.last,
    }
    if one is None:
        return found
    process = one.process
    found |= {
        "pid": process.pid,
        # Until it tells its own: the program may be another one since its last start.
        "version": process.program.version,
        "user": process.program.user,
        "maxconn": process.plan.maxconn,
        "fault": "",
        "failed_replacement": failures.start,
    }
    try:
        found["version"] = process.runtime.ask("show version").strip()
        found["connections"] = connections(process.runtime)
    except HaproxyError as error:
        found["fault"] = str(error.fields["cause"])
    return found


def compare(one: Running | None, wanted: Wanted) -> dict[str, int] | None:
    """Compare the map of haproxy with the registry. Waits.

    :returns: the number of entries, and of those that are missing, superfluous or different in
        each of several comparisons; None: there is no haproxy, or it does not answer.
    """
    if one is None:
        return None
    lasting: set[tuple[str, str]] | None = None
    try:
        for look in range(LOOKS):
            if look:
                threads.sleep(PAUSE)
            expected = wanted()
            there = one.process.runtime.entries(one.process.map)
            found = set(_differences(expected, there).items())
            lasting = found if lasting is None else lasting & found
            if not lasting:
                break
    except HaproxyError:
        return None
    kinds = [kind for _key, kind in lasting or ()]
    counts = {kind: kinds.count(kind) for kind in (MISSING, SUPERFLUOUS, DIFFERENT)}
    return {"entries": len(there), **counts}


def wanted_of(registry: Registry, entries: Entries) -> dict[str, str]:
    """Return the entries that the registry gives now. Yields to other greenthreads."""
    turns, endpoints, found = Turns(), registry.endpoints(), dict[str, str]()
    for first in range(0, len(endpoints), BATCH):
        for _endpoint, values in entries.news(endpoints[first : first + BATCH], True):
            found |= values
        turns.give_way()
    return found


def _differences(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return source address → kind of difference."""
    found = dict.fromkeys(wanted.keys() - there.keys(), MISSING)
    found |= dict.fromkeys(there.keys() - wanted.keys(), SUPERFLUOUS)
    both = wanted.keys() & there.keys()
    return found | {key: DIFFERENT for key in both if wanted[key] != there[key]}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
