"""``dfmeta trace PORT``: a guest's SYN through the bridge and back, in words."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Final

import click

from dfmeta.apps.look import read_flows
from dfmeta.cmd import gather
from dfmeta.cmd.common import config_options, ending, load_config
from dfmeta.exceptions import DfmetaError, NotRunningError
from dfmeta.flows.flow import Flow
from dfmeta.flows.key import key_of
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.service import Tap
from dfmeta.host.look import read_host
from dfmeta.inspect import checks_host, legs, which
from dfmeta.inspect.facts import KnownPort, Settings, Snapshot
from dfmeta.inspect.finding import Status
from dfmeta.inspect.ledger import slot_of
from dfmeta.inspect.tracing import parse
from dfmeta.inspect.vswitchd import Vswitchd, run_folder
from dfmeta.model import Endpoint, GuestAddress
from dfmeta.ports.look import read_snapshot

LEADS: Final = "The way leads to the proxy and back."


@dataclass(frozen=True, slots=True)
class Scene:
    """What every port's trace goes by."""

    wanted: Settings
    snapshot: Snapshot
    ports: tuple[KnownPort, ...]
    running: bool
    """The daemon runs and has given the ports."""


@click.command(
    "trace",
    epilog=ending(
        "dfmeta trace tap3c1f2a5e-7b",
        "dfmeta trace 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10",
        failed="the way does not lead to the proxy and back",
    ),
)
@config_options
@click.argument("port")
def trace(config_files: tuple[str, ...], *, port: str) -> None:
    """Follow a SYN of PORT (name, iface-id or instance id) to the proxy and back.

    The switch is asked what it would do; nothing is sent and nothing changes. The last line says
    where the way ends, or that it leads to the proxy and back.
    """
    conf = load_config(config_files)
    wanted = gather.settings(conf)
    snapshot = read_snapshot(wanted.ovsdb)
    try:
        scene = Scene(wanted, snapshot, gather.daemon_ports(conf), running=True)
    except NotRunningError:
        ports = gather.ovsdb_ports(snapshot, wanted.bridge)
        scene = Scene(wanted, snapshot, ports, running=False)
    found = which.named(scene.ports, port)
    if not found:
        click.echo(f"Stops before it starts: {which.no_port(snapshot, port, wanted=wanted)}.")
        sys.exit(1)
    stops = [follow(scene, one) for one in found]
    sys.exit(1 if any(stops) else 0)


def follow(scene: Scene, port: KnownPort) -> str:
    """Trace one port and print it.

    :return: where it stops; empty when it leads to the proxy and back.
    """
    stop = ""
    for line in _walk(scene, port):
        if isinstance(line, Stop):
            stop = line.text
            break
        click.echo(line)
    text = stop[:1].upper() + stop[1:]
    click.echo(f"{text}." if stop else LEADS)
    return stop


@dataclass(frozen=True, slots=True)
class Stop:
    """The way ends here."""

    text: str


def _walk(scene: Scene, port: KnownPort) -> Iterator[str | Stop]:
    wanted = scene.wanted
    tap = gather.tap_of(wanted, scene.snapshot)
    stop = which.unusable(port)
    if not stop and tap is None:
        stop = f"{wanted.tap} is not on {wanted.bridge}, or has no port number: see `dfmeta doctor`"
    if stop or tap is None:
        yield Stop(f"stops before it starts: {stop}")
        return
    slot, address = _address(scene, port)
    yield _head(port, slot, address)
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
    if leg.to_controller and not scene.running:
        return
    finding = checks_host.listener(
        read_host(wanted.tap, wanted.host_ip, table=wanted.route_table),
        wanted,
        running=scene.running,
    )
    yield f"  proxy  {finding.text}"
    if finding.status is not Status.OK:
        yield Stop(f"stops at the host: {finding.text}; {finding.remedy}")
        return
    if not scene.running:
        yield Stop("stops at the proxy: dfmeta-agent does not run, or not with this configuration")
        return
    answer = legs.syn_ack(port, used, slot=slot, tap=tap)
    way_back = parse(vswitchd.trace(wanted.bridge, answer))
    expected = None if leg.to_controller else address
    leg = legs.back(way_back, port, address=expected, tap=tap, layout=wanted.layout)
    yield from (f"  back   {step}" for step in leg.steps)
    if leg.stop:
        yield Stop(leg.stop)
    elif expected is None:
        yield "         where the controller puts its key's flow in before that SYN goes on"


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
            f"stops at the controller: it knows {address.ip} of {port.name}, but the address' "
            "flow is missing in the metadata service table"
        )
    else:
        yield f"         which will put the flows of {port.name} in for instance {port.instance}"


def _address(scene: Scene, port: KnownPort) -> tuple[int, GuestAddress | None]:
    """Slot and address to trace: the daemon's first, else one that the switch still has."""
    addresses = dict(port.addresses)
    if not scene.running:
        addresses = _addresses_on_switch(scene.wanted, port)
    for slot, address in sorted(addresses.items()):
        return slot, address
    return 0, None


def _addresses_on_switch(wanted: Settings, port: KnownPort) -> dict[int, GuestAddress]:
    found: dict[int, GuestAddress] = {}
    with contextlib.suppress(DfmetaError):  # without them the way of an unseen address is traced
        for seen in read_flows(Path(wanted.socket), wanted.layout).ours:
            flow = seen.flow
            if flow is None or flow.purpose is not Purpose.ADDRESS:
                continue
            if flow.field("in_port") == port.ofport:
                _note(found, flow)
    return found


def _note(found: dict[int, GuestAddress], flow: Flow) -> None:
    slot = slot_of(flow)
    with contextlib.suppress(AddressValueError):
        if slot is not None:
            ip = IPv4Address(str(flow.field("ipv4_src")))
            found[slot] = GuestAddress(str(flow.field("eth_src")), ip)


def _guess(port: KnownPort) -> GuestAddress:
    return replace(legs.UNSEEN, mac=port.mac) if port.mac else legs.UNSEEN


def _head(port: KnownPort, slot: int, address: GuestAddress | None) -> str:
    who = f"instance {port.instance}" if port.instance else "no instance"
    what = "no address known yet"
    if address is not None:
        key = key_of(Endpoint(port.ofport or 0), slot)
        what = f"{address.ip} {address.mac}, key {key}"
    return f"{port.name} (ofport {port.ofport}), {who}, {what}"
