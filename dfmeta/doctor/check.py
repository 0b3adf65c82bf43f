"""A check of ``dfmeta doctor``, the conditions on which it depends, and composed verdicts."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from dfmeta.doctor import checks_daemon, checks_flows, checks_host, checks_system, checks_trunks
from dfmeta.doctor.facts import HostSettings
from dfmeta.doctor.finding import Finding, unknown
from dfmeta.doctor.probes import Inspection
from dfmeta.errors import SwitchError
from dfmeta.flows.family import IPV4, IPV6, Family
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.host import process, system
from dfmeta.host.host_facts import HostFacts
from dfmeta.runtime import clock as time

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


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table."""

    name: str
    """Operators and programs rely on it: it does not change."""
    about: str
    """The faults that it finds, in reStructuredText."""
    _: KW_ONLY
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
    "process": Condition("no process of dfmeta-agent can be seen", lambda of: of.has_process),
    "ovsdb": Condition("OVSDB does not answer", lambda of: of.has_ovsdb),
    "tap": Condition("tap-metadata is not on its bridge", lambda of: of.tap is not None),
    "socket": Condition("the bridge does not answer", lambda of: not of.socket_cause),
    "switch": Condition("the switch does not answer", lambda of: of.reading is not None),
    "ports": Condition(
        "neither OVSDB nor dfmeta-agent answers", lambda of: of.reported is not None
    ),
    "kernel": Condition("see the line host", lambda of: not of.host_cause(IPV4)),
    "kernel-ipv6": Condition(
        "the kernel's state of IPv6 cannot be read", lambda of: not of.host_cause(IPV6)
    ),
    "haproxy": Condition("dfmeta-agent does not tell of haproxy", lambda of: of.has_engine),
    "attachments": Condition(
        "dfmeta-agent does not answer", lambda of: of.running or of.options.attachments is None
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
    "nova": Condition("``backend = nova``", lambda of: of.options.services.nova is not None),
    "ipv6": Condition("IPv6, where no setting of the host prevents it", lambda of: of.over_ip6),
    "no-ipv6": Condition(
        "``ip6`` where the host prevents IPv6", lambda of: of.lack_of_ip6 is not None
    ),
    "path-ipv6": Condition("guests that are served over IPv6", lambda of: of.path_over_ip6),
}
"""Hosts that have a check."""


def both(
    name: str, about: str, judge: Callable[[HostFacts, HostSettings, Inspection], Verdict]
) -> tuple[Check, Check]:
    """Return the rows of a check of the host's side in both versions of IP."""

    def run(family: Family) -> Run:
        return lambda of: judge(of.host(family), of.wanted.over(family), of)

    return (
        Check(name, about, needs=("kernel",), run=run(IPV4)),
        Check(
            f"{name}-ipv6",
            f"As ``{name}``, over IPv6.",
            needs=("kernel-ipv6",),
            only=("ipv6",),
            run=run(IPV6),
        ),
    )


def flows(of: Inspection) -> Iterator[Finding]:
    """Judge dfmeta's flows on each bridge."""
    if isinstance(of.compared, SwitchError):
        yield unknown(f"not compared: {of.compared}")
        return
    alone = len(of.wanted.sides) == 1
    for bridge in of.wanted.sides:
        problem = str(of.compared.unread.get(bridge) or of.compared.problems.get(bridge, ""))
        rows = of.compared.of(bridge)
        yield from checks_flows.our_flows(rows, problem, bridge=bridge, alone=alone)


def foreign_flows(of: Inspection) -> Verdict:
    """Judge the flows of other programs."""
    flows = of.reading.foreign if of.reading is not None else None
    return checks_flows.foreign_flows(flows, of.names, wanted=of.wanted, ip6=of.ip6)


def mappings(of: Inspection) -> Verdict:
    """Judge the second bridge's flows of other programs."""
    reading = of.meta_reading[0]
    flows = reading.foreign if reading is not None else None
    return checks_flows.mappings(of.snapshot, flows, of.meta)


def checksum(of: Inspection) -> Verdict:
    """Judge the checksums of tap-metadata on its datapath."""
    bridge, host = of.snapshot.bridge(of.wanted.bridge), of.host(IPV4)
    if bridge is None or host.up is None:
        return unknown(f"{of.wanted.bridge} or {of.wanted.tap} does not exist")
    return checks_host.checksum(host, bridge.datapath_type, wanted=of.wanted)


def haproxy_process(of: Inspection) -> Verdict:
    """Judge the process of haproxy."""
    wanted = of.options.haproxy_user if of.as_root else ""
    now = datetime.now(UTC)
    return checks_daemon.haproxy_process(of.engine, of.child, wanted=wanted, now=now)


def account(of: Inspection) -> Verdict:
    """Judge the users of the processes that answer guests."""
    if of.options.haproxy is not None:
        pid = of.engine.pid if of.has_engine else None
        facts = process.read_account([pid] if pid else [], of.process.pid)
        return checks_daemon.account(facts, which="haproxy", option="[haproxy] user")
    facts = process.read_account(of.process.workers, of.process.pid)
    option = "[df_metadata] proxy_worker_user"
    return checks_daemon.account(facts, which="workers", option=option)


def haproxy(of: Inspection) -> Verdict:
    """Judge the program haproxy."""
    program, engine = of.options.haproxy, of.engine if of.has_engine else None
    return checks_daemon.haproxy(program(), engine) if program is not None else None


def attachments(of: Inspection) -> Verdict:
    """Judge the attachments, or what they have left where they are off."""
    if of.options.attachments is None:
        return checks_trunks.left(of.snapshot)
    facts, snapshot = of.attachments()
    return checks_trunks.attachments(facts, snapshot, of.wanted.bridge, now=time.wall())


def version(of: Inspection) -> Verdict:
    """Judge the running version."""
    running = of.agent.version() if of.running else ""
    return checks_daemon.version(metadata.version("dfmeta"), running, platform.python_version())


def conntrack(of: Inspection) -> Verdict:
    """Judge the table of tracked connections."""
    facts = system.read_conntrack(of.wanted.host_ip, of.wanted.port)
    return checks_system.conntrack(facts, rate=RATES[Purpose.GUEST_SYN])


def clock(of: Inspection) -> Verdict:
    """Judge the clock."""
    return checks_system.clock(system.read_clock(), of.services.skews, of.options.clock_needs)
