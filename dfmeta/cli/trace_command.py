"""``dfmeta trace PORT``: the path of a guest's SYN through the switch and the host, and back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import read_bits, read_flows
from dfmeta.cli import doctor_host, gather
from dfmeta.cli.common import config_options, ending, load_config
from dfmeta.cli.in_force import say, take_over
from dfmeta.exceptions import DfmetaError, NotRunningError, SwitchError
from dfmeta.flows.key import IN_PORT
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.reading import read_address
from dfmeta.flows.service import Tap
from dfmeta.host.host_facts import read_host
from dfmeta.inspect import checks_host, checks_path, legs, which
from dfmeta.inspect.checks_path import PathFacts
from dfmeta.inspect.cuts import PortBits, cut_of
from dfmeta.inspect.facts import GuestFailure, KnownPort, Settings, Snapshot
from dfmeta.inspect.finding import Status
from dfmeta.inspect.moments import clock
from dfmeta.inspect.tracing import parse
from dfmeta.inspect.vswitchd import Vswitchd, run_folder
from dfmeta.model import OBSERVED, Endpoint, GuestAddress, PortState
from dfmeta.ports.ovsdb_facts import read_snapshot

LEADS: Final = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)
UNPROBED: Final = (
    "The switch's flows lead to tap-metadata and back, and no check of the host finds a fault. No "
    "packet was sent."
)


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts that the traces of all ports share."""

    wanted: Settings
    snapshot: Snapshot
    ports: tuple[KnownPort, ...]
    running: bool
    """Whether the daemon runs and has reported the ports."""
    bits: Mapping[int, PortBits]
    """Port number → the switch's description of the port."""
    unseen: str = ""
    """The reason why the switch has not described the ports; empty if it has."""
    path: PathFacts | None = None
    """Result of the daemon's own probe of the host; None: the daemon does not run."""


@click.command(
    "trace",
    epilog=ending(
        "dfmeta trace tap3c1f2a5e-7b",
        "dfmeta trace 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10",
        "dfmeta trace 10.0.0.5",
        failed="a fault is found on the path, or the port is not served",
    ),
)
@config_options
@click.argument("port")
def trace(config_files: tuple[str, ...], *, port: str) -> None:
    """Trace a SYN of PORT through the switch and the host, and the answer back.

    PORT is a port's name, iface-id, MAC or guest's address, or an instance's id or name; each port
    that matches is traced. The switch simulates the packets, the host is checked with the checks of
    `dfmeta doctor`, and a running dfmeta-agent probes the path through the host with a SYN of its
    own. No packet is sent in the guest's name, and nothing is changed. The last line names the
    place where the path ends, or says that no fault was found.
    """
    conf = load_config(config_files)
    say(take_over(conf))
    scene = look(conf)
    found = list(which.named(scene.ports, port)) or _of_domain(conf, scene, port)
    wanted, snapshot = scene.wanted, scene.snapshot
    trunks = which.behind_trunk(scene.ports, snapshot, port, bridge=wanted.bridge)
    found += [one for one in trunks if one not in found]
    if not found:
        why = which.no_port(snapshot, port, wanted=wanted, running=scene.running)
        click.echo(f"Not traced: {why}.")
        sys.exit(1)
    stops = [follow(scene, one) for one in found]
    sys.exit(1 if any(stops) else 0)


def look(conf: cfg.ConfigOpts) -> Scene:
    """Gather the facts that the traces of all ports share.

    :raises OvsdbError: when OVSDB does not answer.
    """
    wanted = gather.settings(conf)
    snapshot, bits, unseen = read_snapshot(wanted.ovsdb), dict[int, PortBits](), ""
    try:
        bits = read_bits(Path(wanted.socket), wanted.layout)
    except SwitchError as error:
        unseen = str(error)
    try:
        ports, running = gather.daemon_ports(conf), True
    except NotRunningError:
        ports, running = _without_daemon(wanted, snapshot), False
    ports = gather.with_cuts(ports, bits, wanted.bridge)
    path = gather.path_facts(conf) if running else None
    return Scene(wanted, snapshot, ports, running=running, bits=bits, unseen=unseen, path=path)


def _of_domain(conf: cfg.ConfigOpts, scene: Scene, text: str) -> list[KnownPort]:
    """Return the ports of the libvirt domains on this host that have the name *text*."""
    from dfmeta.cli.store_target import Domains

    ids = Domains(conf).ids(text)
    return [port for instance in ids for port in which.named(scene.ports, instance)]


def follow(scene: Scene, port: KnownPort) -> str:
    """Trace one port and print it.

    :return: the place where it stops; empty when no fault is found.
    """
    stop = ""
    for line in _walk(scene, port):
        if isinstance(line, Stop):
            stop = line.text
            break
        click.echo(line)
    text = stop[:1].upper() + stop[1:]
    probed = scene.path is not None and scene.path.answered
    click.echo(f"{text}." if stop else LEADS if probed else UNPROBED)
    return stop


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a path with a fault, and its cause."""

    text: str


def _walk(scene: Scene, port: KnownPort) -> Iterator[str | Stop]:
    wanted = scene.wanted
    tap = gather.tap_of(wanted, scene.snapshot)
    stop = which.unusable(port)
    if not stop and tap is None:
        stop = f"{wanted.tap} is not on {wanted.bridge}, or has no port number: see `dfmeta doctor`"
    if stop or tap is None:
        yield Stop(f"not traced: {stop}")
        return
    slot, address = _address(port)
    yield _head(port, slot, address)
    if port.cut or port.state is PortState.CUT_OFF:
        yield Stop(f"stops at {port.name}: {port.cut or port.fault}")
        return
    of_tap = cut_of(scene.bits.get(tap.ofport), wanted.tap, bridge=wanted.bridge)
    if of_tap is not None:
        yield Stop(f"stops at {wanted.tap}: {of_tap}")
        return
    if scene.unseen:
        yield f"         unknown whether a port is cut off: {scene.unseen}"
    yield from _both_ways(scene, port, tap, (slot, address))


def _both_ways(
    scene: Scene, port: KnownPort, tap: Tap, known: tuple[int, GuestAddress | None]
) -> Iterator[str | Stop]:
    wanted, (slot, address) = scene.wanted, known
    vswitchd = Vswitchd(run_folder(wanted.ovsdb))
    used = address or _guess(port)
    text = vswitchd.trace(wanted.bridge, legs.syn(port, used, tap=tap))
    leg = legs.there(parse(text), port, tap=tap, layout=wanted.layout)
    yield from (f"  there  {step}" for step in leg.steps)
    if leg.stop:
        yield Stop(leg.stop)
        return
    after = parse(vswitchd.trace(wanted.bridge, legs.syn(port, used, tap=tap, flags="ack")))
    stop = legs.on(after, wanted.layout)
    if stop:
        yield Stop(stop)
        return
    if leg.to_controller:
        yield from _controller(scene, port, address)
    yield from _host(scene)
    if not scene.running:
        yield Stop("stops at the proxy: dfmeta-agent does not run, or not with this configuration")
        return
    if port.state is PortState.NO_PROJECT:
        yield Stop(
            f"stops at the proxy (no project): {port.fault}. `ovs-vsctl set Interface {port.name} "
            "external_ids:project-id=<project's id>`"
        )
        return
    if port.failure is not None:
        yield f"  proxy  the guest gets an answer, and fails: {_experience(port.failure)}"
    answer = legs.syn_ack(port, used, slot=slot, tap=tap)
    way_back = parse(vswitchd.trace(wanted.bridge, answer))
    expected = None if leg.to_controller else address
    leg = legs.back(way_back, port, address=expected, tap=tap, layout=wanted.layout)
    yield from (f"  back   {step}" for step in leg.steps)
    if leg.stop:
        yield Stop(leg.stop)
        return
    if expected is None:
        yield "         where the controller installs the flow of the key before that SYN goes on"
    yield from _probe(scene)
    if port.state in OBSERVED:
        yield Stop(f"the port is in the state '{port.state}': {port.fault}")


def _host(scene: Scene) -> Iterator[str | Stop]:
    """Run doctor's checks of the host; the first fault ends the path."""
    wanted = scene.wanted
    host = read_host(wanted.tap, wanted.host_ip, table=wanted.route_table, family=wanted.family)
    findings = list(doctor_host.way(host, wanted, scene.snapshot))
    listener = checks_host.listener(host, wanted, running=scene.running)
    fine = [one.check for one in findings if one.status is Status.OK]
    yield f"  host   ok: {', '.join(fine)}"
    for one in findings:
        if one.status is Status.UNKNOWN:
            yield f"  host   {one.check} is unknown: {one.text}"
    yield f"  proxy  {listener.text}"
    wrong = [one for one in (*findings, listener) if one.status is Status.WRONG]
    if wrong:
        yield from (f"  host   {one.check} is wrong: {one.text}" for one in wrong[1:])
        yield Stop(f"stops at the host: {wrong[0].text}; {wrong[0].remedy}")


def _probe(scene: Scene) -> Iterator[str | Stop]:
    """Report the daemon's own probe, which shows the actual behaviour of the host."""
    if scene.path is None:
        yield "  probe  not sent: dfmeta-agent does not run"
        return
    probe = checks_path.path(scene.path, scene.wanted)
    yield f"  probe  {probe.text}"
    if probe.status is Status.WRONG:
        yield Stop(f"stops at the host: {probe.text}: `dfmeta doctor` shows the remedy")


def _experience(failure: GuestFailure) -> str:
    said = "no answer" if failure.status is None else str(failure.status)
    since = clock(failure.since, datetime.now(UTC))
    return f"{said} ({failure.brief}) since {since}: {failure.remedy}"


def _controller(
    scene: Scene, port: KnownPort, address: GuestAddress | None
) -> Iterator[str | Stop]:
    why = "no address is known yet" if address is None else f"{address.ip} has no flow"
    yield f"         the first SYN goes to the controller: {why}"
    if not scene.running:
        yield Stop(
            "stops at the controller: dfmeta-agent does not run, or not with this configuration"
        )
    elif address is not None:
        yield Stop(
            f"stops at the controller: it knows {address.ip} of {port.name}, but the flow of the "
            "address is missing in the metadata service table"
        )
    else:
        yield f"         which installs the flows of {port.name} for instance {port.instance}"


def _address(port: KnownPort) -> tuple[int, GuestAddress | None]:
    """Return the slot and address to trace: the first known one, or slot 0 and None."""
    for slot, address in sorted(port.addresses.items()):
        return slot, address
    return 0, None


def _without_daemon(wanted: Settings, snapshot: Snapshot) -> tuple[KnownPort, ...]:
    """Return guests' ports from OVSDB, with the addresses for which the switch still has flows."""
    found: dict[Endpoint, dict[int, GuestAddress]] = {}
    with contextlib.suppress(DfmetaError):  # without flows, trace the path of an unseen address
        for seen in read_flows(Path(wanted.socket), wanted.layout).ours:
            if seen.flow is None or seen.flow.purpose is not Purpose.ADDRESS:
                continue
            read = read_address(seen.flow)
            if read.endpoint is not None and read.slot is not None and read.address is not None:
                found.setdefault(read.endpoint, {})[read.slot] = read.address
    ports = gather.ovsdb_ports(snapshot, wanted.bridge)
    return tuple(replace(port, addresses=found.get(port.endpoint, {})) for port in ports)


def _guess(port: KnownPort) -> GuestAddress:
    return replace(legs.UNSEEN, mac=port.mac) if port.mac else legs.UNSEEN


def _head(port: KnownPort, slot: int, address: GuestAddress | None) -> str:
    who = f"instance {port.instance}" if port.instance else "no instance"
    what = "no address known yet"
    if address is not None:
        key = IN_PORT.key_of(port.endpoint, slot)
        what = f"{address.ip} {address.mac}, key {key}"
    return f"{port.name} (ofport {port.ofport}), {who}, {what}"
