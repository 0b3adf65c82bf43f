"""``dfmeta trace PORT``: the path of a guest's SYN through the switch and the host, and back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, NoReturn

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import read_bits, read_flows
from dfmeta.apps.switch_ports import PortBits, cut_of
from dfmeta.cli.client import agent_of, report_differences, take_over
from dfmeta.cli.common import config_options, ending, load_config
from dfmeta.cli.port_argument import find
from dfmeta.doctor import (
    checks_host,
    checks_switch,
    find_port,
    meta_trace_paths,
    table,
    trace_paths,
)
from dfmeta.doctor.agent import HangsError, own
from dfmeta.doctor.facts import GuestFailure, HostSettings, KnownPort, PathFacts
from dfmeta.doctor.finding import CheckStatus, Finding, time_of_day
from dfmeta.doctor.flow_diff import addresses_of, tap_of
from dfmeta.doctor.probes import Inspection, InspectionOptions
from dfmeta.doctor.trace_paths import Trace, parse
from dfmeta.errors import DfmetaError, NotRunningError, SwitchError, printable
from dfmeta.flows.family import FAMILIES, IPV4, IPV6, Family, family_of
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.reading import read_service
from dfmeta.identity.key import VID_MAX, MetaKeys
from dfmeta.model import OBSERVED, Endpoint, GuestAddress, PortState
from dfmeta.ovsdb.rows import RESTORE_WAIT, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, run_folder
from dfmeta.wiring.host import make_host_settings

LEADS: Final = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)
UNPROBED: Final = (
    "The switch's flows lead to tap-metadata and back, and no check of the host finds a fault. No "
    "packet was sent."
)


_SIDE: Final = ("address", "rule-from", "rule-oif", "route", "way-back", "neighbour")
HOST_CHECKS: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("device", *_SIDE, "rp_filter", "checksum", "firewall", "listener"),
    6: (
        "device",
        *(f"{name}-ipv6" for name in _SIDE),
        *("checksum", "firewall-ipv6", "listener-ipv6"),
    ),
}
"""Version of IP → doctor's checks of the host on the path, the listener last."""
AWAY: Final = "dfmeta-agent does not run, or not with this configuration"


@dataclass(frozen=True, slots=True)
class Scene:
    """The facts that the traces of all ports share."""

    wanted: HostSettings
    snapshot: Snapshot
    ports: tuple[KnownPort, ...]
    running: bool
    """Whether the daemon runs and has reported the ports."""
    bits: Mapping[int, PortBits]
    """Port number → the switch's description of the port."""
    ip6: tuple[str, ...] = ()
    """The IPv6 addresses at which guests are served; empty: they are served over IPv4 only."""
    unseen: str = ""
    """The reason why the switch has not described the ports; empty if it has."""
    path: PathFacts | None = None
    """Result of the daemon's own probe of the host; None: the daemon does not run."""
    meta_bits: Mapping[int, PortBits] = field(default_factory=dict)
    """The same as ``bits`` for the second bridge; empty: there is none."""
    judge: Callable[[Sequence[str]], Iterable[Finding]] = lambda _names: ()
    """Runs the checks of doctor that have these names."""
    away: str = AWAY
    """Why the daemon is of no help while it is not ``running``."""

    @property
    def tap_bits(self) -> Mapping[int, PortBits]:
        """Those of the bridge of tap-metadata."""
        return self.bits if self.wanted.meta is None else self.meta_bits


@click.command(
    "trace",
    epilog=ending(
        "dfmeta trace tap3c1f2a5e-7b",
        "dfmeta trace 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10",
        "dfmeta trace 10.0.0.5",
        "dfmeta trace tap3c1f2a5e-7b --family 6",
        "dfmeta trace tap3c1f2a5e-7b --vid 100",
        failed="a fault is found on the path, or the port is not served",
    ),
)
@config_options
@click.argument("port")
@click.option(
    "--family",
    type=click.Choice([str(one.version) for one in FAMILIES]),
    help="Version of IP to trace. Without it, those are traced that the guest has used, or IPv4 if "
    "it has used none.",
)
@click.option(
    "--vid",
    type=click.IntRange(1, VID_MAX),
    help="Trace the tagged subport with this VLAN id, instead of the port itself.",
)
def trace(config_files: tuple[str, ...], *, port: str, family: str | None, vid: int | None) -> None:
    """Trace a SYN of PORT through the switch and the host, and the answer back.

    PORT is a port's name, iface-id, MAC or guest's address, or an instance's id or name, also the
    name or host name in its record; each port that matches is traced. The switch simulates the
    packets, the host is checked with the checks of `dfmeta doctor`, and a running dfmeta-agent
    probes the path through the host with a SYN of its own. Over IPv6, the path to each address of
    the service that the guest uses is traced. No packet is sent in the guest's name, and nothing is
    changed. The last line names the place where the first path with a fault ends, IPv4's before
    IPv6's, or says that no fault was found.
    """
    conf = load_config(config_files)
    report_differences(take_over(conf))
    scene = look(conf)
    matching = find(conf, scene.ports, port)
    wanted, snapshot = scene.wanted, scene.snapshot
    trunks = find_port.behind_trunk(scene.ports, snapshot, port, bridge=wanted.bridge)
    matching += [each for each in trunks if each not in matching]
    behind, matching = matching, find_port.with_vid(matching, vid)
    if behind and not matching:
        _not_traced(f"{port} has no tagged subport with VID {vid}: see `dfmeta ports`")
    if not matching:
        _not_traced(find_port.no_port(snapshot, port, wanted=wanted, running=scene.running))
    if family == str(IPV6.version) and not scene.ip6:
        _not_traced(_without_ip6(scene))
    stops = [follow(scene, each, [int(family)] if family else used(each)) for each in matching]
    sys.exit(1 if any(stops) else 0)


def _not_traced(why: str) -> NoReturn:
    """Say why nothing is traced, and exit with status 1.

    :param why: may have the text of the command line, and names of other programs.
    """
    click.echo(f"Not traced: {printable(why)}.")
    sys.exit(1)


def look(conf: cfg.ConfigOpts) -> Scene:
    """Gather the facts that the traces of all ports share.

    :raises OvsdbError: when OVSDB does not answer.
    """
    wanted = make_host_settings(conf)
    snapshot, bits, unseen = read_snapshot(wanted.ovsdb), dict[int, PortBits](), ""
    away = AWAY
    meta_bits: dict[int, PortBits] = {}
    try:
        bits = read_bits(Path(wanted.socket), wanted.layout)
        if wanted.meta is not None:
            meta_bits = read_bits(Path(wanted.meta.socket), wanted.meta.layout)
    except SwitchError as error:
        unseen = str(error)
    agent = agent_of(conf)
    inspection = Inspection(wanted, InspectionOptions(), agent)
    try:
        ports, ip6, running = agent.ports(wanted.keys), agent.served_ip6(), True
    except NotRunningError as error:
        (ports, ip6), running = _without_daemon(wanted, snapshot), False
        if isinstance(error, HangsError):
            away = str(error)
    ports = find_port.with_cuts(ports, bits, wanted.bridge)
    path = agent.path() if running else None
    return Scene(
        wanted,
        snapshot,
        ports,
        running=running,
        bits=bits,
        ip6=ip6,
        unseen=unseen,
        path=path,
        meta_bits=meta_bits,
        judge=partial(table.run, inspection),
        away=away,
    )


def used(port: KnownPort) -> list[int]:
    """Return the versions of IP that the guest uses; IPv4 while no address of it is known."""
    versions = {address.ip.version for address in port.addresses.values()}
    return sorted(versions) or [IPV4.version]


def follow(scene: Scene, port: KnownPort, versions: Sequence[int] = (4,)) -> str:
    """Trace one port and print it.

    :param versions: the versions of IP to trace.
    :return: the places where it stops; empty when no fault is found.
    """
    tap = tap_of(scene.wanted, scene.snapshot, ip6=scene.ip6)
    stop = find_port.unusable(port)
    if not stop and tap is None:
        wanted = scene.wanted
        stop = meta_trace_paths.missing(wanted, scene.snapshot) or (
            f"{wanted.tap} is not on {wanted.bridge}, or has no port number: see `dfmeta doctor`"
        )
    if stop or tap is None:
        stop = f"not traced: {printable(stop)}"
        click.echo(f"{stop[:1].upper()}{stop[1:]}.")
        return stop
    ways = [way for version in versions for way in _ways(port, tap, version)]
    ends = {way: _follow_way(scene, port, tap, way, alone=len(ways) == 1) for way in ways}
    stop = _conclusion(ends)
    path = scene.path
    probed = path is not None and all(path.over(way.address.ip.version).answered for way in ways)
    click.echo(f"{stop[:1].upper()}{stop[1:]}." if stop else LEADS if probed else UNPROBED)
    return stop


@dataclass(frozen=True, slots=True)
class Way:
    """A path to trace: from an address of the guest to an address of the service."""

    slot: int
    address: GuestAddress
    known: bool
    """Whether the guest has used ``address``; if not, it stands for any address."""

    @property
    def name(self) -> str:
        """Its name in the last line, if a port has several paths."""
        if self.address.service is None:
            return "over IPv4"
        return f"over IPv6 to {self.address.service}"


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a path with a fault, and its cause."""

    text: str


def _ways(port: KnownPort, tap: Tap, version: int) -> list[Way]:
    """Return the paths of one version of IP.

    There is one for each address of the service that the guest uses; if it uses none, one for an
    address that is not known yet, to the first address of the service.
    """
    ways: dict[IPv6Address | None, Way] = {}
    for slot, address in sorted(port.addresses.items()):
        if address.ip.version == version:
            ways.setdefault(address.service, Way(slot, address, known=True))
    service = tap.service(version)
    if ways or not service.guest_ips:
        return list(ways.values())
    target = service.guest_ips[0] if version == IPV6.version else ""
    slot = tap.keys.slots(version)[0]
    if isinstance(tap.keys, MetaKeys):
        # The slot of an address that is not known yet cannot be known: the daemon's own is traced.
        slot = tap.keys.probe_number(version)
    return [Way(slot, trace_paths.unseen(port.mac, target), known=False)]


def _follow_way(scene: Scene, port: KnownPort, tap: Tap, way: Way, *, alone: bool) -> str:
    """Print one path; return the place where it stops, or empty text.

    :param alone: whether the port has no other path, so that its end is in the last line only.
    """
    for line in _walk(scene, port, tap, way):
        if isinstance(line, Stop):
            if not alone:
                click.echo(f"  end    {line.text}")
            return line.text
        click.echo(line)
    return ""


def _conclusion(ends: Mapping[Way, str]) -> str:
    """Return where the first path with a fault stops; empty if all lead to the proxy and back."""
    stops = {way: stop for way, stop in ends.items() if stop}
    if not stops:
        return ""
    way, stop = next(iter(stops.items()))
    everywhere = set(ends.values()) == {stop}
    return stop if everywhere or way.address.service is None else f"{way.name}: {stop}"


def _without_ip6(scene: Scene) -> str:
    """Return why there is no path of IPv6."""
    if not scene.wanted.ip6:
        return "[df_metadata] ip6 is empty, so guests are served over IPv4 only"
    if scene.running:
        return "dfmeta-agent serves guests over IPv4 only on this host: see `dfmeta doctor`"
    return "dfmeta-agent does not run, and the switch has no flows of it for IPv6"


def _walk(scene: Scene, port: KnownPort, tap: Tap, way: Way) -> Iterator[str | Stop]:
    """Yield the lines on one path; the first :class:`Stop` ends it, and no more lines are taken."""
    wanted = scene.wanted
    yield _head(port, tap, way)
    if port.cut or port.state is PortState.CUT_OFF:
        yield Stop(f"stops at {port.name}: {port.cut or port.fault}")
    device = scene.snapshot.interface(wanted.tap, wanted.home)
    bits = scene.tap_bits.get(device.ofport or 0) if device is not None else None
    of_tap = cut_of(bits, wanted.tap, bridge=wanted.home)
    if of_tap is not None:
        yield Stop(f"stops at {wanted.tap}: {of_tap}")
    if scene.unseen:
        yield f"         unknown whether a port is cut off: {scene.unseen}"
    yield from _both_ways(scene, port, tap, way)


def _both_ways(scene: Scene, port: KnownPort, tap: Tap, way: Way) -> Iterator[str | Stop]:
    wanted, used, version = scene.wanted, way.address, way.address.ip.version
    layout = wanted.layout

    def traced(packet: str) -> Trace:
        return parse(Vswitchd(run_folder(wanted.ovsdb)).trace(wanted.bridge, packet))

    if version == IPV6.version:
        request = traced(trace_paths.solicitation(port, used, tap=tap))
        leg = trace_paths.neighbour(request, port, used, tap=tap, layout=layout)
        yield from _steps("finds", leg)
    for hop in (port.next_hops or ()) if version == IPV4.version else ():
        request = traced(trace_paths.arp_request(port, used.mac, hop=hop))
        leg = trace_paths.next_hop(request, port, hop=hop, tap=tap, layout=layout)
        yield from _steps("finds", leg)
    syn, label = traced(trace_paths.syn(port, used, tap=tap)), tap.keys.label(way.slot)
    leg = trace_paths.there(syn.first, port, version=version, tap=tap, layout=layout, label=label)
    yield from _steps("there", leg)
    stop = trace_paths.on(traced(trace_paths.syn(port, used, tap=tap, flags="ack")), layout)
    if stop:
        yield Stop(stop)
    if leg.to_controller:
        yield from _controller(scene, port, way)
    patch = meta_trace_paths.of_way(
        wanted,
        scene.snapshot,
        bits={wanted.bridge: scene.bits, wanted.home: scene.tap_bits},
        slot=way.slot,
        address=used,
        ip6=scene.ip6,
    )
    if patch is not None:
        yield from _legs("there", patch.there(used, None if leg.to_controller else syn))
    yield from _host(scene, family_of(version))
    if not scene.running:
        if patch is not None:
            yield from _unanswered(patch)
        yield Stop(f"stops at the proxy: {scene.away}")
    if port.state is PortState.NO_PROJECT:
        yield Stop(
            f"stops at the proxy (no project): {port.fault}. `ovs-vsctl set Interface {port.name} "
            "external_ids:project-id=<project's id>`"
        )
    if port.failure is not None:
        yield f"  proxy  the guest gets an answer, and fails: {_experience(port.failure)}"
    expected = used if way.known and not leg.to_controller else None
    if patch is not None:
        yield from _legs("back ", patch.back())
        answer = patch.answer(tap.ofport)
    else:
        answer = trace_paths.syn_ack(port, used, slot=way.slot, tap=tap)
    back = traced(answer)
    yield from _steps(
        "back ", trace_paths.back(back, port, address=expected, tap=tap, layout=layout)
    )
    if expected is None:
        yield "         where the controller installs the flow of the key before that SYN goes on"
    yield from _probe(scene, family_of(version))
    if port.state in OBSERVED:
        yield Stop(f"the port is in the state '{port.state}': {port.fault}")


def _unanswered(patch: meta_trace_paths.Patch) -> Iterator[str]:
    """Yield the lines on the return path over the patch while no answer can come."""
    for leg in patch.back():
        yield from (f"  back   {step}" for step in leg.steps)
        if leg.stop:
            yield f"         {leg.stop}"
            return


def _legs(name: str, legs: Iterable[trace_paths.Leg]) -> Iterator[str | Stop]:
    for leg in legs:
        yield from _steps(name, leg)


def _steps(name: str, leg: trace_paths.Leg) -> Iterator[str | Stop]:
    yield from (f"  {name}  {step}" for step in leg.steps)
    if leg.stop:
        yield Stop(leg.stop)


def _host(scene: Scene, family: Family) -> Iterator[str | Stop]:
    """Run doctor's checks of the host; the first fault ends the path."""
    findings = list(scene.judge(HOST_CHECKS[family.version]))
    fine = [each.check for each in findings[:-1] if each.status is CheckStatus.OK]
    yield f"  host   ok: {', '.join(fine)}"
    for each in findings[:-1]:
        if each.status is CheckStatus.UNKNOWN:
            yield f"  host   {each.check} is unknown: {each.text}"
    yield f"  proxy  {findings[-1].text}"
    wrong = [each for each in findings if each.status is CheckStatus.WRONG]
    if wrong:
        yield from (f"  host   {each.check} is wrong: {each.text}" for each in wrong[1:])
        yield Stop(f"stops at the host: {wrong[0].text}; {wrong[0].remedy}")


def _probe(scene: Scene, family: Family) -> Iterator[str | Stop]:
    """Report the daemon's own probe, which shows the actual behaviour of the host."""
    if scene.path is None:
        yield f"  probe  not sent: {scene.away}"
        return
    facts = scene.path.over(family.version)
    waits = scene.snapshot.other_config.get(RESTORE_WAIT) == "true"
    waiting = checks_switch.restore_wait(waits, facts)
    if waiting.status is CheckStatus.WRONG:
        yield Stop(f"stops at the switch: {waiting.text}: {waiting.remedy}")
    probe = checks_host.path(facts, scene.wanted.over(family))
    yield f"  probe  {probe.text}"
    if probe.status is CheckStatus.WRONG:
        yield Stop(f"stops at the host: {probe.text}: `dfmeta doctor` shows the remedy")


def _experience(failure: GuestFailure) -> str:
    status = "no answer" if failure.status is None else str(failure.status)
    since = time_of_day(failure.since, datetime.now(UTC))
    return f"{status} ({failure.brief}) since {since}: {failure.remedy}"


def _controller(scene: Scene, port: KnownPort, way: Way) -> Iterator[str | Stop]:
    ip = way.address.ip
    why = f"{ip} has no flow" if way.known else "no address is known yet"
    yield f"         the first SYN goes to the controller: {why}"
    if not scene.running:
        yield Stop(f"stops at the controller: {scene.away}")
    elif port.state is PortState.NO_META_IP:
        yield Stop(f"stops at the controller: {port.fault}: see `dfmeta doctor` (line meta-range)")
    elif way.known:
        yield Stop(
            f"stops at the controller: it knows {ip} of {port.name}, but the flow of the "
            "address is missing in the metadata service table"
        )
    else:
        yield f"         which installs the flows of {port.name} for instance {port.instance}"


def _without_daemon(
    wanted: HostSettings, snapshot: Snapshot
) -> tuple[tuple[KnownPort, ...], tuple[str, ...]]:
    """Return guests' ports from OVSDB, and the IPv6 addresses of the service that have flows.

    The ports have the addresses for which the switch still has flows.
    """
    addresses: dict[Endpoint, dict[int, GuestAddress]] = {}
    ip6: list[str] = []
    with contextlib.suppress(DfmetaError):  # without flows, trace the path of an unseen address
        seen = read_flows(Path(wanted.socket), wanted.layout).dumped
        for endpoint, slot, address in addresses_of(seen, wanted.keys):
            addresses.setdefault(endpoint, {})[slot] = address
        own(wanted.keys, ((at, slot) for at, slots in addresses.items() for slot in slots))
        flows = (entry.flow for entry in seen if entry.flow is not None)
        ip6 += [read_service(flow) for flow in flows if flow.purpose is Purpose.SERVICE_ND]
    ports = find_port.ovsdb_ports(snapshot, wanted.bridge)
    # In the order of the option, so that the same address is traced with and without the daemon.
    ordered = tuple(address for address in wanted.ip6 if address in ip6)
    with_addresses = (replace(port, addresses=addresses.get(port.endpoint, {})) for port in ports)
    return tuple(with_addresses), ordered


def _head(port: KnownPort, tap: Tap, way: Way) -> str:
    who = f"instance {port.instance}" if port.instance else "no instance"
    what = "no address known yet"
    if way.known:
        key = tap.keys.key_of(port.endpoint, way.slot)
        what = f"{way.address.ip} {way.address.mac}, key {key}"
    service = way.address.service
    where = f", to {service}" if service is not None else ""
    return f"{port.name} ({port.endpoint}), {who}, {what}{where}"
