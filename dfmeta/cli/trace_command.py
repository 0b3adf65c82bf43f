"""``dfmeta trace PORT``: the path of a guest's SYN through the switch and the host, and back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, NoReturn

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import read_bits, read_flows
from dfmeta.cli.client import agent_of, report_differences, take_over
from dfmeta.cli.common import config_options, ending
from dfmeta.cli.port_argument import find_with_trunks
from dfmeta.doctor import (
    checks_host,
    checks_switch,
    find_port,
    table,
    trace_output,
    trace_paths,
)
from dfmeta.doctor.agent import HangsError, set_owners
from dfmeta.doctor.facts import HostSettings, KnownPort, PathFacts
from dfmeta.doctor.finding import CheckStatus, Finding, time_of_day
from dfmeta.doctor.flow_diff import addresses_of, tap_of
from dfmeta.doctor.probes import Inspection, InspectionOptions
from dfmeta.doctor.trace_output import Trace, parse, unseen
from dfmeta.errors import DfmetaError, NotRunningError, SwitchError, printable
from dfmeta.flows.family import FAMILIES, IPV4, IPV6, Family, family_of
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.port_down import PortBits, cut_of
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
    bits: Mapping[str, Mapping[int, PortBits]]
    """Bridge → port number → the switch's description of the port, as far as it is known."""
    ip6: tuple[str, ...] = ()
    """The IPv6 addresses at which guests are served; empty: they are served over IPv4 only."""
    unseen: str = ""
    """The reason why the switch has not described the ports; empty if it has."""
    path: PathFacts | None = None
    """Result of the daemon's own probe of the host; None: the daemon does not run."""
    judge: Callable[[Sequence[str]], Iterable[Finding]] = lambda _names: ()
    """Runs the checks of doctor that have these names."""
    away: str = AWAY
    """Why the daemon is of no help while it is not ``running``."""


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
    type=click.Choice([str(each.version) for each in FAMILIES]),
    help="Version of IP to trace. Without it, those are traced that the guest has used, or IPv4 if "
    "it has used none.",
)
@click.option(
    "--vid",
    type=click.IntRange(1, VID_MAX),
    help="Trace the tagged subport with this VLAN id, instead of the port itself.",
)
def trace(conf: cfg.ConfigOpts, *, port: str, family: str | None, vid: int | None) -> None:
    """Trace a SYN of PORT through the switch and the host, and the answer back.

    PORT is a port's name, iface-id, MAC or guest's address, or an instance's id or name, also the
    name or host name in its record; each port that matches is traced. The switch simulates the
    packets, the host is checked with the checks of `dfmeta doctor`, and a running dfmeta-agent
    probes the path through the host with a SYN of its own. Over IPv6, the path to each address of
    the service that the guest uses is traced. No packet is sent in the guest's name, and nothing is
    changed. The last line names the place where the first path with a fault ends, IPv4's before
    IPv6's, or says that no fault was found.
    """
    report_differences(take_over(conf))
    scene = look(conf)
    wanted, snapshot = scene.wanted, scene.snapshot
    named = find_with_trunks(conf, scene.ports, port, snapshot, bridge=wanted.bridge)
    matching = find_port.with_vid(named, vid)
    if named and not matching:
        _not_traced(f"{port} has no tagged subport with VID {vid}: see `dfmeta ports`")
    if not matching:
        _not_traced(find_port.no_port(snapshot, port, wanted=wanted, running=scene.running))
    if family == str(IPV6.version) and not scene.ip6:
        _not_traced(_without_ip6(scene))
    stops = [follow(scene, each, [int(family)] if family else used(each)) for each in matching]
    sys.exit(1 if any(stops) else 0)


def _not_traced(cause: str) -> NoReturn:
    """Say why nothing is traced, and exit with status 1.

    :param cause: may have the text of the command line, and names of other programs.
    """
    click.echo(f"Not traced: {printable(cause)}.")
    sys.exit(1)


def look(conf: cfg.ConfigOpts) -> Scene:
    """Gather the facts that the traces of all ports share.

    :raises OvsdbError: when OVSDB does not answer.
    """
    wanted, agent = make_host_settings(conf), agent_of(conf)
    snapshot = read_snapshot(wanted.ovsdb)
    bits: dict[str, dict[int, PortBits]] = {}
    unseen, away = "", AWAY
    try:
        for bridge, (socket, layout) in wanted.sides.items():
            bits[bridge] = read_bits(Path(socket), layout)
    except SwitchError as error:
        unseen = str(error)
    try:
        ports, ip6, running = agent.ports(wanted.keys), agent.served_ip6(), True
    except NotRunningError as error:
        (ports, ip6), running = _without_daemon(wanted, snapshot), False
        away = str(error) if isinstance(error, HangsError) else AWAY
    return Scene(
        wanted,
        snapshot,
        find_port.with_cuts(ports, bits.get(wanted.bridge, {}), wanted.bridge),
        running=running,
        bits=bits,
        ip6=ip6,
        unseen=unseen,
        path=agent.path() if running else None,
        judge=partial(table.run, Inspection(wanted, InspectionOptions(), agent)),
        away=away,
    )


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
        set_owners(wanted.keys, ((at, slot) for at, slots in addresses.items() for slot in slots))
        flows = (entry.flow for entry in seen if entry.flow is not None)
        ip6 += [read_service(flow) for flow in flows if flow.purpose is Purpose.SERVICE_ND]
    ports = find_port.ovsdb_ports(snapshot, wanted.bridge)
    with_addresses = (replace(port, addresses=addresses.get(port.endpoint, {})) for port in ports)
    # In the order of the option, so that the same address is traced with and without the daemon.
    return tuple(with_addresses), tuple(address for address in wanted.ip6 if address in ip6)


def used(port: KnownPort) -> list[int]:
    """Return the versions of IP that the guest uses; IPv4 while no address of it is known."""
    versions = {address.ip.version for address in port.addresses.values()}
    return sorted(versions) or [IPV4.version]


def _without_ip6(scene: Scene) -> str:
    """Return why there is no path of IPv6."""
    if not scene.wanted.ip6:
        return "[df_metadata] ip6 is empty, so guests are served over IPv4 only"
    if scene.running:
        return "dfmeta-agent serves guests over IPv4 only on this host: see `dfmeta doctor`"
    return "dfmeta-agent does not run, and the switch has no flows of it for IPv6"


@dataclass(frozen=True, slots=True)
class Way:
    """A path to trace: from an address of the guest to an address of the service."""

    slot: int
    address: GuestAddress
    seen: bool
    """Whether the guest has used ``address``; if not, it stands for any address."""

    @property
    def name(self) -> str:
        """Its name in the last line, if a port has several paths."""
        if self.address.service is None:
            return "over IPv4"
        return f"over IPv6 to {self.address.service}"


class PathEndError(Exception):
    """The path ends with a fault; the text is the place and the cause."""


def follow(scene: Scene, port: KnownPort, versions: Sequence[int] = (4,)) -> str:
    """Trace one port and print it.

    :param versions: the versions of IP to trace.
    :return: the place where it stops; empty when no fault is found.
    """
    wanted = scene.wanted
    tap = tap_of(wanted, scene.snapshot, ip6=scene.ip6)
    stop = find_port.unusable(port)
    if not stop and tap is None:
        stop = trace_paths.no_patch(wanted, scene.snapshot) or (
            f"{wanted.tap} is not on {wanted.bridge}, or has no port number: see `dfmeta doctor`"
        )
    if stop or tap is None:
        stop = f"not traced: {printable(stop)}"
        click.echo(f"{stop[:1].upper()}{stop[1:]}.")
        return stop
    ways = [way for version in versions for way in _ways(port, tap, version)]
    ends: dict[Way, str] = {}
    for way in ways:
        try:
            _Walk(scene, port, tap, way).walk()
        except PathEndError as end:
            ends[way] = str(end)
            if len(ways) > 1:
                click.echo(f"  end    {end}")
    stop = ""
    if ends:
        way, stop = next(iter(ends.items()))
        if way.address.service is not None and not (
            len(ends) == len(ways) and set(ends.values()) == {stop}
        ):
            stop = f"{way.name}: {stop}"
    path = scene.path
    probed = path is not None and all(path.over(way.address.ip.version).answered for way in ways)
    click.echo(f"{stop[:1].upper()}{stop[1:]}." if stop else LEADS if probed else UNPROBED)
    return stop


def _ways(port: KnownPort, tap: Tap, version: int) -> list[Way]:
    """Return the paths of one version of IP.

    There is one for each address of the service that the guest uses; if it uses none, one for an
    address that is not known yet, to the first address of the service.
    """
    ways: dict[IPv6Address | None, Way] = {}
    for slot, address in sorted(port.addresses.items()):
        if address.ip.version == version:
            ways.setdefault(address.service, Way(slot, address, seen=True))
    service = tap.service(version)
    if ways or not service.guest_ips:
        return list(ways.values())
    target = service.guest_ips[0] if version == IPV6.version else ""
    slot = tap.keys.slots(version)[0]
    if isinstance(tap.keys, MetaKeys):
        # The slot of an address that is not known yet cannot be known: the daemon's own is traced.
        slot = tap.keys.probe_number(version)
    return [Way(slot, unseen(port.mac, target), seen=False)]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Prints one path. Each method raises :class:`PathEndError` at the first fault."""

    scene: Scene
    port: KnownPort
    tap: Tap
    way: Way

    def walk(self) -> None:
        scene, port, wanted = self.scene, self.port, self.scene.wanted
        click.echo(self._head())
        if port.cut or port.state is PortState.CUT_OFF:
            raise PathEndError(f"stops at {port.name}: {port.cut or port.fault}")
        device = scene.snapshot.interface(wanted.tap, wanted.home)
        bits = scene.bits.get(wanted.home, {})
        of_tap = bits.get(device.ofport or 0) if device is not None else None
        if (cut := cut_of(of_tap, wanted.tap, bridge=wanted.home)) is not None:
            raise PathEndError(f"stops at {wanted.tap}: {cut}")
        if scene.unseen:
            click.echo(f"         unknown whether a port is cut off: {scene.unseen}")
        self._both_ways()

    def _head(self) -> str:
        port, way = self.port, self.way
        instance = f"instance {port.instance}" if port.instance else "no instance"
        address = "no address known yet"
        if way.seen:
            key = self.tap.keys.key_of(port.endpoint, way.slot)
            address = f"{way.address.ip} {way.address.mac}, key {key}"
        service = f", to {way.address.service}" if way.address.service is not None else ""
        return f"{port.name} ({port.endpoint}), {instance}, {address}{service}"

    def _both_ways(self) -> None:
        scene, port, tap, way = self.scene, self.port, self.tap, self.way
        wanted, address = scene.wanted, way.address
        family, layout = family_of(address.ip.version), wanted.layout
        self._neighbours()
        syn = self._traced(trace_output.syn(port, address, tap=tap))
        leg = trace_paths.there(
            syn.first, port, address, tap=tap, layout=layout, label=tap.keys.label(way.slot)
        )
        _steps("there", leg)
        after = self._traced(trace_output.syn(port, address, tap=tap, flags="ack"))
        if stop := trace_paths.after_syn(after, layout):
            raise PathEndError(stop)
        if leg.to_controller:
            self._controller()
        beyond = trace_paths.meta_path(
            wanted, scene.snapshot, bits=scene.bits, slot=way.slot, address=address, ip6=scene.ip6
        )
        if isinstance(beyond, str):
            raise PathEndError(beyond)
        if beyond is not None:
            _steps("there", beyond.there(address, None if leg.to_controller else syn, self._run))
        _host(scene, family)
        if not scene.running:
            if beyond is not None:  # no answer can come, but the way back is shown
                try:
                    _steps("back ", beyond.back(wanted.bridge, self._run))
                except PathEndError as end:
                    click.echo(f"         {end}")
            raise PathEndError(f"stops at the proxy: {scene.away}")
        self._answer()
        answer = trace_output.syn_ack(port, address, slot=way.slot, tap=tap)
        if beyond is not None:
            _steps("back ", beyond.back(wanted.bridge, self._run))
            answer = beyond.answer(tap.ofport)
        expected = address if way.seen and not leg.to_controller else None
        back = self._traced(answer)
        _steps("back ", trace_paths.back(back, port, address=expected, tap=tap, layout=layout))
        if expected is None:
            click.echo(
                "         where the controller installs the flow of the key before that SYN goes on"
            )
        _probe(scene, family)
        if port.state in OBSERVED:
            raise PathEndError(f"the port is in the state '{port.state}': {port.fault}")

    def _neighbours(self) -> None:
        """Trace the requests for the MACs that the guest needs."""
        port, tap, address = self.port, self.tap, self.way.address
        layout = self.scene.wanted.layout
        if address.ip.version == IPV6.version:
            request = self._traced(trace_output.solicitation(port, address, tap=tap))
            leg = trace_paths.neighbour(request, port, address, tap=tap, layout=layout)
            _steps("finds", leg)
            return
        for hop in port.next_hops or ():
            request = self._traced(trace_output.arp_request(port, address.mac, hop=hop))
            _steps("finds", trace_paths.next_hop(request, port, hop=hop, tap=tap, layout=layout))

    def _controller(self) -> None:
        scene, port, ip = self.scene, self.port, self.way.address.ip
        cause = f"{ip} has no flow" if self.way.seen else "no address is known yet"
        click.echo(f"         the first SYN goes to the controller: {cause}")
        stops = "stops at the controller: "
        if not scene.running:
            raise PathEndError(f"{stops}{scene.away}")
        if port.state is PortState.NO_META_IP:
            raise PathEndError(f"{stops}{port.fault}: see `dfmeta doctor` (line meta-range)")
        if self.way.seen:
            raise PathEndError(
                f"{stops}it knows {ip} of {port.name}, but the flow of the address is missing in "
                "the metadata service table"
            )
        click.echo(f"         which installs the flows of {port.name} for instance {port.instance}")

    def _answer(self) -> None:
        port, failure = self.port, self.port.failure
        if port.state is PortState.NO_PROJECT:
            raise PathEndError(
                f"stops at the proxy (no project): {port.fault}. `ovs-vsctl set Interface "
                f"{port.name} external_ids:project-id=<project's id>`"
            )
        if failure is not None:
            since = time_of_day(failure.since, datetime.now(UTC))
            click.echo(
                f"  proxy  the guest gets an answer, and fails: {failure.status or 'no answer'} "
                f"({failure.brief}) since {since}: {failure.remedy}"
            )

    def _run(self, bridge: str, packet: str) -> Trace:
        return parse(Vswitchd(run_folder(self.scene.wanted.ovsdb)).trace(bridge, packet))

    def _traced(self, packet: str) -> Trace:
        return self._run(self.scene.wanted.bridge, packet)


def _steps(name: str, leg: trace_paths.Leg) -> None:
    for step in leg.steps:
        click.echo(f"  {name}  {step}")
    if leg.stop:
        raise PathEndError(leg.stop)


def _host(scene: Scene, family: Family) -> None:
    """Run doctor's checks of the host; the first fault ends the path."""
    findings = list(scene.judge(HOST_CHECKS[family.version]))
    fine = [each.check for each in findings[:-1] if each.status is CheckStatus.OK]
    click.echo(f"  host   ok: {', '.join(fine)}")
    for each in findings[:-1]:
        if each.status is CheckStatus.UNKNOWN:
            click.echo(f"  host   {each.check} is unknown: {each.text}")
    click.echo(f"  proxy  {findings[-1].text}")
    wrong = [each for each in findings if each.status is CheckStatus.WRONG]
    for each in wrong[1:]:
        click.echo(f"  host   {each.check} is wrong: {each.text}")
    if wrong:
        raise PathEndError(f"stops at the host: {wrong[0].text}; {wrong[0].remedy}")


def _probe(scene: Scene, family: Family) -> None:
    """Report the daemon's own probe, which shows the actual behaviour of the host."""
    if scene.path is None:
        click.echo(f"  probe  not sent: {scene.away}")
        return
    facts = scene.path.over(family.version)
    waits = scene.snapshot.other_config.get(RESTORE_WAIT) == "true"
    waiting = checks_switch.restore_wait(waits, facts)
    if waiting.status is CheckStatus.WRONG:
        raise PathEndError(f"stops at the switch: {waiting.text}: {waiting.remedy}")
    probe = checks_host.path(facts, scene.wanted.over(family))
    click.echo(f"  probe  {probe.text}")
    if probe.status is CheckStatus.WRONG:
        raise PathEndError(f"stops at the host: {probe.text}: `dfmeta doctor` shows the remedy")
