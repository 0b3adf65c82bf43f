"""Verdicts of ``dfmeta doctor`` that need more than one fact."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata

from dfmeta.doctor import (
    checks_daemon,
    checks_haproxy,
    checks_host,
    checks_meta,
    checks_switch,
    checks_system,
    checks_trunks,
)
from dfmeta.doctor.check import Verdict
from dfmeta.doctor.checks_haproxy import EngineFacts
from dfmeta.doctor.finding import Finding, unknown
from dfmeta.doctor.probes import Inspection
from dfmeta.errors import SwitchError
from dfmeta.flows.family import IPV4
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.host.process import ProcessFacts, read_account
from dfmeta.host.system import read_clock, read_conntrack
from dfmeta.runtime import clock as time


def flows(of: Inspection) -> Iterator[Finding]:
    """Judge dfmeta's flows on each bridge."""
    if isinstance(of.compared, SwitchError):
        yield unknown(f"not compared: {of.compared}")
        return
    alone = len(of.wanted.sides) == 1
    for bridge in of.wanted.sides:
        problem = str(of.compared.unread.get(bridge) or of.compared.problems.get(bridge, ""))
        rows = of.compared.of(bridge)
        yield from checks_switch.our_flows(rows, problem, bridge=bridge, alone=alone)


def foreign_flows(of: Inspection) -> Verdict:
    """Judge the flows of other programs."""
    flows = of.reading.foreign if of.reading is not None else None
    return checks_switch.foreign_flows(flows, of.names, wanted=of.wanted, ip6=of.ip6)


def mappings(of: Inspection) -> Verdict:
    """Judge the second bridge's flows of other programs."""
    reading = of.meta_reading[0]
    flows = reading.foreign if reading is not None else None
    return checks_meta.mappings(of.snapshot, flows, of.meta)


def checksum(of: Inspection) -> Verdict:
    """Judge the checksums of tap-metadata on its datapath."""
    bridge, host = of.snapshot.bridge(of.wanted.bridge), of.host(IPV4)
    if bridge is None or host.up is None:
        return unknown(f"{of.wanted.bridge} or {of.wanted.tap} does not exist")
    return checks_host.checksum(host, bridge.datapath_type, wanted=of.wanted)


def haproxy_process(of: Inspection, engine: EngineFacts) -> Verdict:
    """Judge the process of haproxy."""
    wanted = of.options.haproxy_user if of.as_root else ""
    return checks_haproxy.process(engine, of.child, wanted=wanted, now=datetime.now(UTC))


def account(of: Inspection, process: ProcessFacts) -> Verdict:
    """Judge the users of the processes that answer guests."""
    if of.options.haproxy is not None:
        pid = of.engine.pid if of.running and of.engine is not None else None
        facts = read_account([pid] if pid else [], process.pid)
        return checks_daemon.account(facts, which="haproxy", option="[haproxy] user")
    facts = read_account(process.workers, process.pid)
    option = "[df_metadata] proxy_worker_user"
    return checks_daemon.account(facts, which="workers", option=option)


def haproxy(of: Inspection) -> Verdict:
    """Judge the program haproxy."""
    program = of.options.haproxy
    engine = of.engine if of.running else None
    return checks_haproxy.program(program(), engine) if program is not None else None


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
    facts = read_conntrack(of.wanted.host_ip, of.wanted.port)
    return checks_system.conntrack(facts, rate=RATES[Purpose.GUEST_SYN])


def clock(of: Inspection) -> Verdict:
    """Judge the clock."""
    return checks_system.clock(read_clock(), of.services.skews, of.options.clock_needs)
