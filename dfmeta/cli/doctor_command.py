"""``dfmeta doctor``: checks of everything that a working host needs, each with its remedy."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import (
    NoSocketError,
    Reading,
    SilentError,
    check_socket,
    read_bits,
    read_flows,
)
from dfmeta.cli import (
    doctor_attachments,
    doctor_haproxy,
    doctor_host,
    doctor_meta,
    doctor_system,
    gather,
    terminal,
)
from dfmeta.cli.common import (
    TABLE,
    cell_text,
    config_options,
    ending,
    format_option,
    load_config,
    print_rows,
    wide_option,
)
from dfmeta.cli.doctor_services import Services
from dfmeta.cli.flows_command import compare
from dfmeta.cli.in_force import InForce, take_over
from dfmeta.cli.progress import shown
from dfmeta.conf import limits as limit_options
from dfmeta.conf.unknown import unknown_options
from dfmeta.doctor import (
    checks_daemon,
    checks_floods,
    checks_forwarding,
    checks_guests,
    checks_host,
    checks_limits,
    checks_next_hops,
    checks_path,
    checks_switch,
    checks_trunks,
)
from dfmeta.doctor.checks_daemon import OptionFacts
from dfmeta.doctor.facts import KnownPort, Settings
from dfmeta.doctor.finding import Finding, Status, healthy, summary, unknown, wrong
from dfmeta.errors import HostError, NotRunningError, OvsdbError, SwitchError
from dfmeta.flows.family import IPV6
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.flows.port_down import PortBits, cut_of
from dfmeta.host import ipv6
from dfmeta.host.conntrack import read_conntrack
from dfmeta.host.process import read_process
from dfmeta.http.limits import BACKLOG
from dfmeta.model import Endpoint
from dfmeta.ovsdb.rows import RESTORE_WAIT, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, VswitchdError, run_folder
from dfmeta.wiring.lock import lock_name

SILENT: Final = "the switch, which sends the SYN, does not answer: see the line openflow"
COLUMNS: Final = {"status": "STATUS", "check": "CHECK", "text": "FOUND", "remedy": "REMEDY"}
STYLES: Final = {
    "status": {"ok": "green", "warning": "yellow", "wrong": "bold red", "unknown": "yellow"}
}


@click.command(
    "doctor",
    epilog=ending(
        "dfmeta doctor",
        "dfmeta doctor --failing",
        "dfmeta doctor --format json",
        failed="anything is wrong, or dfmeta-agent does not run",
    ),
)
@config_options
@format_option
@wide_option
@click.option("--failing", is_flag=True, help="Show only lines that are not ok.")
@click.option(
    "--root",
    default="/",
    metavar="DIRECTORY",
    help="Root directory of the host's files, for doctor in a container that has them mounted "
    "elsewhere: the files of systemd-networkd.",
)
def doctor(
    config_files: tuple[str, ...], *, fmt: str, wide: bool, failing: bool, root: str
) -> None:
    """Check everything that a working host needs, and show the remedy for each fault.

    Each check has a line: its status (ok, warning, wrong, unknown), its name, the finding and, for
    a warning and a fault, the remedy. The last line has the number of each status; JSON has no such
    line. The command changes nothing. Run it as root, on the host.
    """
    conf = load_config(config_files)
    # Errors of libraries are in the findings; their log lines would not help the operator.
    logging.disable()
    # On terminals only: programs that read doctor's output take text on stderr for an error.
    with shown("checking the host", lines=False):
        findings = list(examine(conf, Path(root)))
    shown_ones = [one for one in findings if not (failing and one.status is Status.OK)]
    rows = [asdict(finding) for finding in shown_ones]
    if fmt == TABLE and not wide and sys.stdout.isatty():
        # A command that is broken over lines cannot be copied.
        texts = [{key: cell_text(text) for key, text in row.items() if text} for row in rows]
        terminal.draw_findings(texts, ("status", "check"), ("text", "remedy"), styles=STYLES)
    else:
        print_rows(rows, COLUMNS, fmt, styles=STYLES, wide=wide)
    if fmt == TABLE:
        click.echo(summary(findings))
    sys.exit(0 if healthy(findings) else 1)


def examine(conf: cfg.ConfigOpts, root: Path) -> Iterator[Finding]:
    """Run every check.

    :param root: root directory of the host's files.
    """
    # The checks use the values in force in the daemon, not those that its files have now.
    in_force = take_over(conf)
    wanted = gather.settings(conf)
    facts = gather.daemon_facts(conf)
    yield checks_daemon.user(os.geteuid())
    yield checks_daemon.daemon(facts, wanted)
    yield from _configuration(conf, in_force, running=facts.running)
    process = read_process(lock_name(wanted.ovsdb, wanted.bridge))
    owners = gather.owners(conf, process)
    folder = gather.folder_facts(wanted.state_path)
    yield checks_daemon.state_path(folder, wanted, owners=owners)
    try:
        snapshot: Snapshot | None = read_snapshot(wanted.ovsdb)
        cause = ""
    except OvsdbError as error:
        snapshot, cause = None, str(error)
    # A daemon that does not answer is not queried again: each request would take its time-out.
    asked = conf if facts.running else None
    known = _known_ports(asked, wanted, snapshot)
    services = Services(
        conf, known or (), running=facts.running, owners=owners, secrets=in_force.taken.secrets
    )
    yield from doctor_system.files(conf, wanted, owners)
    yield checks_switch.ovsdb(cause, wanted)
    version, cause = _vswitchd(wanted)
    yield checks_switch.vswitchd(version, cause)
    yield from doctor_system.process(conf, wanted, process, ovs=version, running=facts.running)
    yield from doctor_haproxy.haproxy(conf, process, running=facts.running)
    bits: dict[str, dict[int, PortBits]] = {one: {} for one in wanted.sides}
    silent: dict[str, SilentError] = {}
    for bridge in wanted.sides if version else ():
        try:
            bits[bridge] = _bits(wanted, bridge)
        except SilentError as error:
            # It is not asked again: each request would take its time-out.
            silent[bridge] = error
    yield from _bridge(wanted, snapshot, bits[wanted.home])
    yield from doctor_meta.bridge(wanted, snapshot, bits, silent.get(wanted.home))
    switch = _reach(wanted, silent.get(wanted.bridge))
    yield from switch.findings
    mode = _fail_mode(wanted, snapshot)
    yield mode
    yield from _switch(asked, wanted, snapshot, switch.reading)
    yield from _host(conf, wanted, snapshot, running=facts.running)
    mute = SILENT if switch.silent else mode.because if mode.status is Status.WRONG else ""
    yield from _path(asked, wanted, snapshot or Snapshot(), silent=mute)
    yield from doctor_system.system(wanted, root)
    yield from services.findings()
    yield from doctor_system.clock(conf, services.skews)
    yield from checks_guests.guests(known or (), datetime.now(UTC), running=facts.running)
    if known is None:
        yield unknown("ports", "neither OVSDB nor dfmeta-agent answers")
    else:
        known = gather.with_cuts(known, bits[wanted.bridge], wanted.bridge)
        yield from checks_daemon.ports(known, wanted, running=facts.running, snapshot=snapshot)
        yield from checks_next_hops.next_hops(known)
        if snapshot is not None:
            yield from checks_trunks.trunks(known, snapshot, wanted.bridge)
    yield from doctor_attachments.attachments(conf, wanted, snapshot, running=facts.running)
    yield from doctor_meta.numbers(asked, wanted, known)
    if snapshot is not None:
        yield from checks_switch.other_ports(snapshot, wanted)


def _configuration(conf: cfg.ConfigOpts, in_force: InForce, *, running: bool) -> Iterator[Finding]:
    strange = unknown_options(conf)
    for error in strange:
        yield wrong("configuration", str(error), error.remedy)
    taken = in_force.taken
    facts = OptionFacts(
        reload=taken.reload,
        restart=taken.restart,
        given=taken.given,
        files=taken.files,
        cause=in_force.cause,
    )
    for finding in checks_daemon.configuration(facts, running=running):
        # "ok" would be wrong for files with unknown options.
        if not (strange and finding.status is Status.OK):
            yield finding


def _vswitchd(wanted: Settings) -> tuple[str, str]:
    """Return the name and version that ovs-vswitchd reports, and the reason if it does not."""
    try:
        return Vswitchd(run_folder(wanted.ovsdb)).version(), ""
    except VswitchdError as error:
        return "", str(error)


def _bits(wanted: Settings, bridge: str) -> dict[int, PortBits]:
    """Return the switch's state of each port; empty if it cannot be read (reported elsewhere).

    :raises SilentError: the switch accepts the connection, and executes no request.
    """
    path, layout = wanted.sides[bridge]
    try:
        return read_bits(Path(path), layout)
    except SilentError:
        raise
    except SwitchError:
        return {}


def _bridge(
    wanted: Settings, snapshot: Snapshot | None, bits: Mapping[int, PortBits]
) -> Iterator[Finding]:
    if snapshot is None:
        for check in ("bridge", "tap", "tap-vlan"):
            yield unknown(check, "OVSDB does not answer")
        return
    yield checks_switch.bridge(snapshot.bridge(wanted.bridge), wanted)
    tap = snapshot.interface(wanted.tap, wanted.home)
    found = bits.get(tap.ofport or 0) if tap is not None else None
    # The check of the device reports whether it is up and has a link.
    cut = cut_of(found.of_switch(), wanted.tap, bridge=wanted.home) if found else None
    yield from checks_switch.tap_port(tap, snapshot, cut=cut, wanted=wanted)


@dataclass(frozen=True, slots=True)
class Reached:
    """The bridge's answer on its management socket."""

    findings: tuple[Finding, ...]
    """The lines about the socket and OpenFlow."""
    reading: Reading | None = None
    """The flows; None if the bridge does not answer."""
    silent: bool = False
    """Whether the bridge accepts connections and executes no request."""


def _reach(wanted: Settings, silent: SilentError | None) -> Reached:
    """Connect to the bridge and read its flows.

    :param silent: the error of a request that it has not answered; None: it has answered, or was
        not asked.
    """
    path = Path(wanted.socket)
    try:
        check_socket(path)
    except NoSocketError as error:
        return _unreachable(error, wanted)
    accepts = checks_switch.management_socket("", wanted)
    try:
        if silent is not None:
            raise silent
        reading = read_flows(path, wanted.layout)
    except NoSocketError as error:
        return _unreachable(error, wanted)
    except SwitchError as error:
        found = (accepts, checks_switch.openflow(str(error), wanted))
        return Reached(found, silent=isinstance(error, SilentError))
    return Reached((accepts, checks_switch.openflow("", wanted)), reading)


def _unreachable(error: NoSocketError, wanted: Settings) -> Reached:
    found = checks_switch.management_socket(str(error), wanted)
    return Reached((found, unknown("openflow", "the bridge does not answer")))


def _switch(
    conf: cfg.ConfigOpts | None,
    wanted: Settings,
    snapshot: Snapshot | None,
    reading: Reading | None,
) -> Iterator[Finding]:
    """Check the bridge's flows.

    :param conf: None when the daemon does not run.
    :param reading: None when the switch does not answer.
    """
    there = snapshot or Snapshot()
    if reading is None:
        yield unknown("foreign-flows", "the switch does not answer")
        yield unknown("flows", "not compared: the switch does not answer")
        yield unknown("floods", "the switch does not answer")
        return
    names = _guest_ports(there, wanted)
    ip6 = gather.served_ip6(conf) if conf is not None else _ip6_of_host(wanted)
    yield from checks_switch.foreign_flows(reading.foreign, names, wanted=wanted, ip6=ip6)
    yield from _our_flows(conf, wanted, there)
    yield checks_floods.floods(reading.ours, names)


def _ip6_of_host(wanted: Settings) -> tuple[str, ...]:
    """Return the IPv6 addresses at which a daemon would serve guests, given the host's settings."""
    return wanted.ip6 if ipv6.lack_of(wanted.tap) is None else ()


def _fail_mode(wanted: Settings, snapshot: Snapshot | None) -> Finding:
    bridge = snapshot.bridge(wanted.bridge) if snapshot is not None else None
    if bridge is None:
        return unknown("fail-mode", "OVSDB does not answer, or has no such bridge")
    if not checks_forwarding.is_at_risk(bridge):
        return checks_forwarding.fail_mode(bridge, "")
    try:
        trace = Vswitchd(run_folder(wanted.ovsdb)).trace(wanted.bridge, "in_port=LOCAL")
    except VswitchdError as error:
        return checks_forwarding.fail_mode(bridge, "", str(error))
    return checks_forwarding.fail_mode(bridge, trace)


def _path(
    conf: cfg.ConfigOpts | None, wanted: Settings, snapshot: Snapshot, *, silent: str
) -> Iterator[Finding]:
    """Check the path through the host, over each version of IP that guests are served over.

    :param conf: None when the daemon does not run.
    :param silent: why a probe would show nothing about the host; empty: it shows something.
    """
    waits = snapshot.other_config.get(RESTORE_WAIT) == "true"
    if conf is None:
        yield checks_forwarding.restore_wait(waits, None)
        yield checks_path.path(None, wanted)
        if _ip6_of_host(wanted):
            yield checks_path.path(None, wanted.over(IPV6))
        return
    found = gather.path_facts(conf, silent=silent)
    waiting = checks_forwarding.restore_wait(waits, found)
    yield waiting
    if waiting.status is Status.WRONG:
        found = found.because(waiting.because)
    yield checks_path.path(found, wanted)
    if found.ip6 is not None:
        yield checks_path.path(found.ip6, wanted.over(IPV6))


def _our_flows(
    conf: cfg.ConfigOpts | None, wanted: Settings, snapshot: Snapshot
) -> Iterator[Finding]:
    if conf is None:
        yield unknown("flows", "not compared: dfmeta-agent is needed for the list of desired flows")
        return
    try:
        found = compare(conf, wanted, snapshot=snapshot)
    except SwitchError as error:
        yield unknown("flows", f"not compared: {error}")
        return
    for bridge in wanted.sides:
        problem = str(found.unread.get(bridge) or found.problems.get(bridge, ""))
        yield from checks_switch.our_flows(
            found.of(bridge), problem, bridge=bridge, alone=len(wanted.sides) == 1
        )


def _host(
    conf: cfg.ConfigOpts, wanted: Settings, snapshot: Snapshot | None, *, running: bool
) -> Iterator[Finding]:
    try:
        host = doctor_host.read(wanted)
    except HostError as error:
        yield wrong("host", str(error), "run doctor as root, in the host's own network namespace")
        return
    yield from doctor_host.way(host, wanted, snapshot)
    if wanted.family.arp:
        yield checks_host.arp_ignore(host, wanted)
    yield checks_host.listener(host, wanted, running=running)
    yield from _host6(wanted, running=running)
    yield from checks_limits.queue(host.limits, backlog=BACKLOG)
    tracked = read_conntrack(wanted.host_ip, wanted.port)
    yield checks_limits.conntrack(tracked, rate=RATES[Purpose.GUEST_SYN])
    yield checks_limits.neighbours(host.limits)
    if conf.df_metadata.backend == "nova":
        needed = conf[limit_options.GROUP.name].connections
        yield checks_limits.local_ports(host.limits, needed=needed)


def _host6(wanted: Settings, *, running: bool) -> Iterator[Finding]:
    """Check IPv6's side of the host; no line if guests are to be served over IPv4 only."""
    if not wanted.ip6:
        return
    lack = ipv6.lack_of(wanted.tap)
    if lack is not None:
        yield checks_host.no_ipv6(lack.cause, lack.remedy)
        return
    wanted = wanted.over(IPV6)
    try:
        yield from doctor_host.beside(doctor_host.read(wanted), wanted, running=running)
    except HostError as error:
        yield unknown("ipv6", str(error))


def _known_ports(
    conf: cfg.ConfigOpts | None, wanted: Settings, snapshot: Snapshot | None
) -> tuple[KnownPort, ...] | None:
    """Return guests' ports from the daemon, or else from OVSDB; None if neither answers."""
    if conf is not None:
        with contextlib.suppress(NotRunningError):  # it has ended since the first request
            return gather.daemon_ports(conf, wanted.keys)
    return gather.ovsdb_ports(snapshot, wanted.bridge) if snapshot is not None else None


def _guest_ports(snapshot: Snapshot, wanted: Settings) -> dict[Endpoint, str]:
    ports = gather.ovsdb_ports(snapshot, wanted.bridge)
    return {port.endpoint: port.name for port in ports if port.ofport is not None}
