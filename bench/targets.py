"""Targets for the proxy, and ratios between proxies of one run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IN_PROCESS = "dfmeta"
IPV6 = "dfmeta, IPv6"
"""The same daemon and load as :data:`IN_PROCESS`, over IPv6."""
ONE_WORKER = "dfmeta, 1 worker"
TWO_WORKERS = "dfmeta, 2 workers"
IN_HAPROXY = "dfmeta, haproxy"
"""dfmeta with ``engine = haproxy``."""
CROWD = 1000
IN_HAPROXY_CROWD = f"dfmeta, haproxy, {CROWD:,} guests"
"""The same with that many guests in haproxy's map."""
HAPROXY_ALONE = "haproxy of dfmeta, haproxy"
"""The process of haproxy alone, without the daemon."""
HAPROXY = "haproxy"
HAPROXY_ALWAYS = "haproxy, reuse always"
NEUTRON = "neutron"
OVN = "ovn"
"""OVN's metadata agent, which is Neutron's as well."""
LOAD = "new 32"
LOADS = ("new 32", "new 256")
ONE_CLIENT = "new 1"
SITUATIONS = ("new", "keep-alive")
TWO_LOADS = {"new 32": "a connection for each request", "keep-alive 32": "kept connections"}
"""Loads under which two proxies are compared, in words."""

ENGINE = "engine"
"""Part of a report: the engine haproxy beside each of its peers."""

ADD, DELETE = "add", "delete"
"""Changes of one entry of haproxy's map."""
ENTRIES = 5000
"""Number of entries for which the time of such a change has a target."""

Report = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A measured value, and the bound that it must keep."""

    name: str
    value: float
    bound: float
    at_most: bool = False
    aim: float | None = None

    @property
    def met(self) -> bool:
        """Return whether the value keeps its bound; a value that is not a number does not."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def wanted(self) -> str:
        """Return the bound in words."""
        words = f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        return words if self.aim is None else f"{words}, aim {self.aim:g}"


def path_name(count: int, *, one_thread: bool = False, logs: bool = True) -> str:
    """Return the name of metadata_path with *count* instances.

    :param one_thread: with one thread, as the engine haproxy has; else with one for each core.
    :param logs: with its line in the host's log for each request.
    """
    return f"metadata_path, {count}{', 1 thread' if one_thread else ''}{'' if logs else ', no log'}"


COMPARED = (
    (IN_HAPROXY, path_name(10, one_thread=True), 1.0),
    (IN_HAPROXY_CROWD, path_name(CROWD, one_thread=True), 1.5),
    (IN_HAPROXY, HAPROXY, 0.8),
    (IN_HAPROXY, HAPROXY_ALWAYS, 0.8),
)
"""The engine, a peer, and the smallest ratio of their requests a second."""
PAIRS = (
    *((mine, other) for mine, other, _bound in COMPARED),
    (IN_HAPROXY, IN_PROCESS),
    (IN_HAPROXY, path_name(10, one_thread=True, logs=False)),
)
"""Proxies that are measured in turn."""
HAPROXY_PEERS = tuple(dict.fromkeys(itertools.chain.from_iterable(PAIRS)))
"""The engine haproxy and its peers."""


def pair_name(mine: str, other: str) -> str:
    """Return the name of a pair."""
    return f"{mine} / {other}"


def change_name(entries: int, change: str) -> str:
    """Return the name of a change of haproxy's map with *entries* entries."""
    return f"{entries:,} entries, {change}"


def ratio(report: Report, name: str, other: str, *, load: str = LOAD, of: str = "rate") -> float:
    """Return a proxy's value as a multiple of another's; NaN if either was not measured."""
    rows = report.get("throughput", {})
    try:
        return float(rows[name][load][of] / rows[other][load][of])
    except (KeyError, ZeroDivisionError):
        return float("nan")


def ratio_in_rounds(report: Report, name: str, other: str, load: str) -> float:
    """Return the median of the rounds' ratios of the rates; NaN if either was not measured.

    Both values of such a ratio are measured at most a minute apart.
    """
    rows = report.get("throughput", {})
    try:
        pairs = zip(*(rows[proxy][load]["rates"] for proxy in (name, other)), strict=True)
        return float(statistics.median(mine / theirs for mine, theirs in pairs))
    except (KeyError, ZeroDivisionError):
        return float("nan")


def targets(report: Report) -> list[Target]:
    """Return the targets that the run has measured."""
    return [target for target in _all(report) if target.value == target.value]


def _all(report: Report) -> Iterator[Target]:
    for bound, aim, other in ((2.5, 4.0, NEUTRON), (0.15, 0.2, HAPROXY)):
        value = ratio(report, IN_PROCESS, other)
        name = f"{IN_PROCESS}, requests a second, as a multiple of {other}'s"
        yield Target(name=name, value=value, bound=bound, aim=aim)
    for load, words in TWO_LOADS.items():
        name = f"{IPV6}, {words}: requests a second, as a multiple of IPv4's"
        yield Target(name=name, value=ratio_in_rounds(report, IPV6, IN_PROCESS, load), bound=0.95)
    value = ratio(report, TWO_WORKERS, NEUTRON)
    name = f"{TWO_WORKERS}, requests a second, as a multiple of neutron's"
    yield Target(name=name, value=value, bound=4.0)
    yield from _of_haproxy(report)
    for proxy in (IN_PROCESS, IPV6, ONE_WORKER, TWO_WORKERS, IN_HAPROXY, IN_HAPROXY_CROWD):
        for load in LOADS:
            cell = report.get("throughput", {}).get(proxy, {}).get(load, {})
            failed = cell.get("failed", float("nan"))
            name = f"{proxy}, {load.split()[1]} clients, failed requests"
            yield Target(name=name, value=failed, bound=0, at_most=True)
    value = ratio(report, IN_PROCESS, HAPROXY, load=ONE_CLIENT, of="p50")
    name = f"{IN_PROCESS}, one client's p50, as a multiple of haproxy's"
    yield Target(name=name, value=value, bound=3.0, at_most=True)
    for proxy in (ONE_WORKER, TWO_WORKERS):
        for situation in SITUATIONS:
            row = report.get("first SYN", {}).get(f"{proxy}, {situation}", {})
            name = f"{proxy}, first SYN beside a busy guest ({situation}), p99 in ms"
            value = row.get("p99", float("nan"))
            yield Target(name=name, value=value, bound=20.0, at_most=True)


def _of_haproxy(report: Report) -> Iterator[Target]:
    ratios = report.get(ENGINE, {}).get("ratios", {})
    for mine, other, bound in COMPARED:
        for load, words in TWO_LOADS.items():
            name = f"{mine}, {words}: requests a second, as a multiple of {other}'s"
            turns = ratios.get(pair_name(mine, other), {}).get(load, [float("nan")])
            value = float(statistics.median(turns))
            yield Target(name=name, value=value, bound=bound)
    value = report.get("memory", {}).get(HAPROXY_ALONE, {}).get(str(CROWD), float("nan"))
    name = f"{HAPROXY_ALONE}: MB with {CROWD:,} guests"
    yield Target(name=name, value=value, bound=25.0, at_most=True)
    for change in (ADD, DELETE):
        changed = change_name(ENTRIES, change)
        value = report.get("map", {}).get(changed, {}).get("p99", float("nan"))
        name = f"haproxy's map, {changed}, p99 in ms"
        yield Target(name=name, value=value, bound=5.0, at_most=True)
