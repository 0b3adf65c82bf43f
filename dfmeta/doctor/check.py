"""A check of ``dfmeta doctor``, and the conditions on which checks depend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dfmeta.doctor.checks_haproxy import EngineFacts
from dfmeta.doctor.facts import HostSettings
from dfmeta.doctor.finding import Finding, unknown
from dfmeta.doctor.probes import Inspection
from dfmeta.flows.family import IPV4, IPV6, Family
from dfmeta.host.host_facts import HostFacts, LimitFacts
from dfmeta.host.process import ProcessFacts

Verdict = Finding | Iterable[Finding] | None
Run = Callable[[Inspection], Verdict]


@dataclass(frozen=True, slots=True)
class Condition:
    """What holds on some hosts, or during some runs."""

    text: str
    """Of a need: why a check is unknown without it. Of a place: the hosts that have the check."""
    holds: Callable[[Inspection], bool]
    page: str = ""
    """The page on such hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row of the table."""

    name: str
    """Operators and programs rely on it: it does not change."""
    about: str
    """The faults that it finds, in reStructuredText."""
    run: Run
    needs: tuple[str, ...] = ()
    """Names of :data:`NEEDS`: without one of them, the check is unknown."""
    only: tuple[str, ...] = ()
    """Names of :data:`PLACES`: the check has lines only where all of them hold."""
    page: str = ""
    """The page on its subject, if it is not that of doctor."""

    def findings(self, inspection: Inspection) -> Iterator[Finding]:
        """Yield the lines of the check."""
        if not all(PLACES[place].holds(inspection) for place in self.only):
            return
        lacking = (NEEDS[need] for need in self.needs if not NEEDS[need].holds(inspection))
        if lack := next(lacking, None):
            yield replace(unknown(lack.text), check=self.name)
            return
        verdict = self.run(inspection)
        verdicts = [verdict] if isinstance(verdict, Finding) else verdict or ()
        yield from (replace(finding, check=self.name) for finding in verdicts)


NEEDS: Final[Mapping[str, Condition]] = {
    "daemon": Condition("dfmeta-agent does not answer", lambda of: of.running),
    "process": Condition(
        "no process of dfmeta-agent can be seen", lambda of: of.process is not None
    ),
    "ovsdb": Condition("OVSDB does not answer", lambda of: of.has_ovsdb),
    "tap": Condition("tap-metadata is not on its bridge", lambda of: of.tap is not None),
    "socket": Condition("the bridge does not answer", lambda of: not of.socket_cause),
    "switch": Condition("the switch does not answer", lambda of: of.reading is not None),
    "ports": Condition("neither OVSDB nor dfmeta-agent answers", lambda of: of.known is not None),
    "kernel": Condition("see the line host", lambda of: not of.host_cause(IPV4)),
    "kernel-ipv6": Condition(
        "the kernel's state of IPv6 cannot be read", lambda of: not of.host_cause(IPV6)
    ),
    "haproxy": Condition(
        "dfmeta-agent does not tell of haproxy", lambda of: of.running and of.engine is not None
    ),
    "attachments": Condition(
        "dfmeta-agent does not answer",
        lambda of: of.running or of.options.attachments is None,
    ),
    "haproxy-process": Condition(
        "the process of haproxy cannot be seen", lambda of: of.child is not None
    ),
}
"""Facts on which checks depend."""

PLACES: Final[Mapping[str, Condition]] = {
    "workers": Condition("``proxy_workers`` above 0", lambda of: of.options.workers > 0),
    "accounts": Condition(
        "a daemon that is root, with haproxy or workers",
        lambda of: of.as_root and (of.options.workers > 0 or of.options.haproxy is not None),
    ),
    "haproxy": Condition(
        "``engine = haproxy``", lambda of: of.options.haproxy is not None, page="haproxy"
    ),
    "meta": Condition(
        "``identity_scheme = meta_ip``", lambda of: of.wanted.meta is not None, page="meta-ip"
    ),
    "nova": Condition("``backend = nova``", lambda of: of.options.nova),
    "ipv6": Condition("IPv6, where no setting of the host prevents it", lambda of: of.over_ip6),
    "no-ipv6": Condition(
        "``ip6`` where the host prevents IPv6", lambda of: of.lack_of_ip6 is not None
    ),
    "path-ipv6": Condition("guests that are served over IPv6", lambda of: of.path_over_ip6),
}
"""Hosts that have a check."""


def of_process(judge: Callable[[Inspection, ProcessFacts], Verdict]) -> Run:
    """Return the verdict on the daemon's process, of a check that needs it."""
    return lambda of: judge(of, of.process) if of.process is not None else None


def of_engine(judge: Callable[[Inspection, EngineFacts], Verdict]) -> Run:
    """Return the verdict on haproxy as the daemon tells of it, of a check that needs it."""
    return lambda of: judge(of, of.engine) if of.engine is not None else None


def of_limits(judge: Callable[[LimitFacts], Verdict]) -> Run:
    """Return the verdict on the host's limits."""
    return lambda of: judge(of.host(IPV4).limits)


def both(
    name: str, about: str, judge: Callable[[HostFacts, HostSettings, Inspection], Verdict]
) -> tuple[Check, Check]:
    """Return the rows of a check of the host's side in both versions of IP."""

    def run(family: Family) -> Run:
        return lambda of: judge(of.host(family), of.wanted.over(family), of)

    return (
        Check(name=name, about=about, needs=("kernel",), run=run(IPV4)),
        Check(
            name=f"{name}-ipv6",
            about=f"As ``{name}``, over IPv6.",
            needs=("kernel-ipv6",),
            only=("ipv6",),
            run=run(IPV6),
        ),
    )
