"""``dfmeta trace PORT``: the path of a guest's SYN through the switch and the host, and back."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final, NoReturn

import click
from oslo_config import cfg

from dfmeta.apps.switch_facts import read_flows
from dfmeta.cli.client import agent_of, make_host_settings, report_differences, take_over
from dfmeta.cli.common import command, config_options
from dfmeta.cli.port_argument import complete_port, find_with_trunks
from dfmeta.doctor import checks_host, checks_switch, find_port, finding, flow_diff, probes, table
from dfmeta.doctor.agent import set_owners
from dfmeta.doctor.facts import HostSettings, KnownPort, PathFacts
from dfmeta.doctor.trace_output import Trace, parse, unseen
from dfmeta.doctor.trace_paths import GuestPath, Leg, meta_path, no_patch
from dfmeta.errors import DfmetaError, NotRunningError, printable
from dfmeta.flows.family import FAMILIES, IPV4, IPV6, Family, family_of
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import Layout, Purpose
from dfmeta.flows.port_down import cut_of
from dfmeta.flows.reading import read_service
from dfmeta.identity.key import MetaKeys
from dfmeta.model import OBSERVED, VID_MAX, Endpoint, GuestAddress, PortState
from dfmeta.ovsdb.rows import RESTORE_WAIT, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, run_folder

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


class Scene(probes.Inspection):
    """The facts that the traces of all ports share: without the daemon, those of the flows."""

    @cached_property
    def snapshot(self) -> Snapshot:
        """OVSDB's configuration.

        :raises OvsdbError: when OVSDB does not answer.
        """
        return read_snapshot(self.wanted.ovsdb)

    @cached_property
    def _guests(self) -> tuple[tuple[KnownPort, ...], tuple[str, ...]]:
        if self.running:
            with contextlib.suppress(NotRunningError):  # it has ended since the first request
                return self.agent.ports(self.wanted.keys), self.agent.served_ip6()
        return _without_daemon(self.wanted, self.snapshot)

    @cached_property
    def reported(self) -> tuple[KnownPort, ...]:
        """Guests' ports from the daemon, or else from OVSDB with the addresses of the flows."""
        return self._guests[0]

    @cached_property
    def ip6(self) -> tuple[str, ...]:
        """The IPv6 addresses at which guests are served; empty: they are served over IPv4 only."""
        return self._guests[1]

    @cached_property
    def path(self) -> PathFacts:
        """Result of the daemon's own probe of the host."""
        return self.agent.path()

    @property
    def away(self) -> str:
        """Why the daemon is of no help while it is not ``running``."""
        return self.daemon.cause if self.daemon.hangs else AWAY


@command(
    "trace",
    "dfmeta trace tap3c1f2a5e-7b",
    "dfmeta trace 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10",
    "dfmeta trace 10.0.0.5",
    "dfmeta trace tap3c1f2a5e-7b --family 6",
    "dfmeta trace tap3c1f2a5e-7b --vid 100",
    failed="a fault is found on the path, or the port is not served",
)
@config_options
@click.argument("port", shell_complete=complete_port)
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
    scene = Scene(make_host_settings(conf), probes.InspectionOptions(), agent_of(conf))
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
        for endpoint, slot, address in flow_diff.addresses_of(seen, wanted.keys):
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


class PathEndError(Exception):
    """The path ends with a fault; the text is the place and the cause."""


def follow(scene: Scene, port: KnownPort, versions: Sequence[int] = (4,)) -> str:
    """Trace one port and print it.

    :param versions: the versions of IP to trace.
    :return: the place where it stops; empty when no fault is found.
    """
    wanted = scene.wanted
    tap = flow_diff.tap_of(wanted, scene.snapshot, ip6=scene.ip6)
    stop = find_port.unusable(port)
    if not stop and tap is None:
        stop = no_patch(wanted, scene.snapshot) or (
            f"{wanted.tap} is not on {wanted.bridge}, or has no port number: see `dfmeta doctor`"
        )
    if stop or tap is None:
        stop = f"not traced: {printable(stop)}"
        click.echo(f"{stop[:1].upper()}{stop[1:]}.")
        return stop
    paths = [path for version in versions for path in _paths(port, tap, version, wanted.layout)]
    ends: dict[int, str] = {}
    for number, path in enumerate(paths):
        try:
            _Walk(scene, path).walk()
        except PathEndError as end:
            ends[number] = str(end)
            if len(paths) > 1:
                click.echo(f"  end    {end}")
    stop = ""
    if ends:
        number, stop = next(iter(ends.items()))
        service = paths[number].address.service
        if service is not None and not (len(ends) == len(paths) and set(ends.values()) == {stop}):
            stop = f"over IPv6 to {service}: {stop}"
    if stop:
        click.echo(f"{stop[:1].upper()}{stop[1:]}.")
    else:
        probed = all(scene.path.over(path.address.ip.version).answered for path in paths)
        click.echo(LEADS if probed else UNPROBED)
    return stop


def _paths(port: KnownPort, tap: Tap, version: int, layout: Layout) -> list[GuestPath]:
    """Return the paths of one version of IP.

    There is one for each address of the service that the guest uses; if it uses none, one for an
    address that is not known yet, to the first address of the service.
    """
    paths: dict[IPv6Address | None, GuestPath] = {}
    for slot, address in sorted(port.addresses.items()):
        if address.ip.version == version:
            path = GuestPath(port, slot, address, seen=True, tap=tap, layout=layout)
            paths.setdefault(address.service, path)
    service = tap.service(version)
    if paths or not service.guest_ips:
        return list(paths.values())
    target = service.guest_ips[0] if version == IPV6.version else ""
    slot = tap.keys.slots(version)[0]
    if isinstance(tap.keys, MetaKeys):
        # The slot of an address that is not known yet cannot be known: the daemon's own is traced.
        slot = tap.keys.probe_number(version)
    return [GuestPath(port, slot, unseen(port.mac, target), seen=False, tap=tap, layout=layout)]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Prints one path. Each method raises :class:`PathEndError` at the first fault."""

    scene: Scene
    path: GuestPath

    def walk(self) -> None:
        scene, port, wanted = self.scene, self.path.port, self.scene.wanted
        click.echo(self._head())
        if port.cut or port.state is PortState.CUT_OFF:
            raise PathEndError(f"stops at {port.name}: {port.cut or port.fault}")
        device = scene.snapshot.interface(wanted.tap, wanted.home)
        bits = scene.bits.get(wanted.home, {})
        of_tap = bits.get(device.ofport or 0) if device is not None else None
        if (cut := cut_of(of_tap, wanted.tap, bridge=wanted.home)) is not None:
            raise PathEndError(f"stops at {wanted.tap}: {cut}")
        if scene.bits_cause:
            click.echo(f"         unknown whether a port is cut off: {scene.bits_cause}")
        self._both_ways()

    def _head(self) -> str:
        port, address = self.path.port, self.path.address
        instance = f"instance {port.instance}" if port.instance else "no instance"
        shown = "no address known yet"
        if self.path.seen:
            key = self.path.tap.keys.key_of(port.endpoint, self.path.slot)
            shown = f"{address.ip} {address.mac}, key {key}"
        service = f", to {address.service}" if address.service is not None else ""
        return f"{port.name} ({port.endpoint}), {instance}, {shown}{service}"

    def _both_ways(self) -> None:
        scene, path, wanted = self.scene, self.path, self.scene.wanted
        family = family_of(path.address.ip.version)
        self._neighbours()
        syn = self._traced(path.syn())
        leg = path.there(syn.first)
        _steps("there", leg)
        if stop := path.after_syn(self._traced(path.syn("ack"))):
            raise PathEndError(stop)
        if leg.to_controller:
            self._controller()
        beyond = meta_path(path, wanted, scene.snapshot, bits=scene.bits, ip6=scene.ip6)
        if isinstance(beyond, str):
            raise PathEndError(beyond)
        if beyond is not None:
            patched = None if leg.to_controller else syn
            _steps("there", beyond.there(path.address, patched, self._run))
        _host(scene, family)
        if not scene.running:
            if beyond is not None:  # no answer can come, but the way back is shown
                try:
                    _steps("back ", beyond.back(wanted.bridge, self._run))
                except PathEndError as end:
                    click.echo(f"         {end}")
            raise PathEndError(f"stops at the proxy: {scene.away}")
        self._answer()
        answer = path.syn_ack()
        if beyond is not None:
            _steps("back ", beyond.back(wanted.bridge, self._run))
            answer = beyond.answer(path.tap.ofport)
        installed = path.seen and not leg.to_controller
        _steps("back ", path.back(self._traced(answer), installed=installed))
        if not installed:
            click.echo(
                "         where the controller installs the flow of the key before that SYN goes on"
            )
        _probe(scene, family)
        if path.port.state in OBSERVED:
            raise PathEndError(f"the port is in the state '{path.port.state}': {path.port.fault}")

    def _neighbours(self) -> None:
        """Trace the requests for the MACs that the guest needs."""
        path = self.path
        if path.address.ip.version == IPV6.version:
            _steps("finds", path.neighbour(self._traced(path.solicitation())))
            return
        for hop in path.port.next_hops or ():
            _steps("finds", path.next_hop(self._traced(path.arp_request(hop)), hop))

    def _controller(self) -> None:
        scene, port, ip = self.scene, self.path.port, self.path.address.ip
        cause = f"{ip} has no flow" if self.path.seen else "no address is known yet"
        click.echo(f"         the first SYN goes to the controller: {cause}")
        stops = "stops at the controller: "
        if not scene.running:
            raise PathEndError(f"{stops}{scene.away}")
        if port.state is PortState.NO_META_IP:
            raise PathEndError(f"{stops}{port.fault}: see `dfmeta doctor` (line meta-range)")
        if self.path.seen:
            raise PathEndError(
                f"{stops}it knows {ip} of {port.name}, but the flow of the address is missing in "
                "the metadata service table"
            )
        click.echo(f"         which installs the flows of {port.name} for instance {port.instance}")

    def _answer(self) -> None:
        port, failure = self.path.port, self.path.port.failure
        if port.state is PortState.NO_PROJECT:
            raise PathEndError(
                f"stops at the proxy (no project): {port.fault}. `ovs-vsctl set Interface "
                f"{port.name} external_ids:project-id=<project's id>`"
            )
        if failure is not None:
            since = finding.time_of_day(failure.since, datetime.now(UTC))
            click.echo(
                f"  proxy  the guest gets an answer, and fails: {failure.status or 'no answer'} "
                f"({failure.brief}) since {since}: {failure.remedy}"
            )

    def _run(self, bridge: str, packet: str) -> Trace:
        return parse(Vswitchd(run_folder(self.scene.wanted.ovsdb)).trace(bridge, packet))

    def _traced(self, packet: str) -> Trace:
        return self._run(self.scene.wanted.bridge, packet)


def _steps(name: str, leg: Leg) -> None:
    for step in leg.steps:
        click.echo(f"  {name}  {step}")
    if leg.stop:
        raise PathEndError(leg.stop)


def _host(scene: Scene, family: Family) -> None:
    """Run doctor's checks of the host; the first fault ends the path."""
    findings = list(table.run(scene, HOST_CHECKS[family.version]))
    fine = [each.check for each in findings[:-1] if each.status is finding.CheckStatus.OK]
    click.echo(f"  host   ok: {', '.join(fine)}")
    for each in findings[:-1]:
        if each.status is finding.CheckStatus.UNKNOWN:
            click.echo(f"  host   {each.check} is unknown: {each.text}")
    click.echo(f"  proxy  {findings[-1].text}")
    wrong = [each for each in findings if each.status is finding.CheckStatus.WRONG]
    for each in wrong[1:]:
        click.echo(f"  host   {each.check} is wrong: {each.text}")
    if wrong:
        raise PathEndError(f"stops at the host: {wrong[0].text}; {wrong[0].remedy}")


def _probe(scene: Scene, family: Family) -> None:
    """Report the daemon's own probe, which shows the actual behaviour of the host."""
    facts = scene.path.over(family.version)
    waits = scene.snapshot.other_config.get(RESTORE_WAIT) == "true"
    waiting = checks_switch.restore_wait(waits, facts)
    if waiting.status is finding.CheckStatus.WRONG:
        raise PathEndError(f"stops at the switch: {waiting.text}: {waiting.remedy}")
    probe = checks_host.path(facts, scene.wanted.over(family))
    click.echo(f"  probe  {probe.text}")
    if probe.status is finding.CheckStatus.WRONG:
        raise PathEndError(f"stops at the host: {probe.text}: `dfmeta doctor` shows the remedy")
