"""The facts that the checks of ``dfmeta doctor`` judge; nothing is changed on the host."""

import contextlib
import os
import pwd
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, cast

from dfmeta.apps.switch_facts import (
    BridgeFlows,
    NoSocketError,
    SilentError,
    check_socket,
    read_bits,
    read_flows,
)
from dfmeta.doctor import checks_host, checks_switch, flow_diff
from dfmeta.doctor.agent import Agent, DaemonFacts
from dfmeta.doctor.checks_daemon import (
    DiskFacts,
    EngineFacts,
    FolderFacts,
    OptionFacts,
    Owners,
    ProgramFacts,
    SecretFile,
    engine_facts,
)
from dfmeta.doctor.checks_trunks import AttachmentFacts, AttachmentOptions, attached
from dfmeta.doctor.facts import HostSettings, KnownPort, MetaSide, PathFacts
from dfmeta.doctor.find_port import ovsdb_ports, with_cuts
from dfmeta.doctor.finding import CheckStatus, Finding, unknown
from dfmeta.doctor.services import ServiceOptions, Services
from dfmeta.errors import HostError, NotRunningError, OvsdbError, SwitchError
from dfmeta.flows.family import Family
from dfmeta.flows.port_down import Cut, PortBits, cut_of
from dfmeta.host import host_facts, ipv6, system
from dfmeta.host.process import (
    ChildFacts,
    ProcessFacts,
    SocketFacts,
    read_haproxy,
    read_process,
    read_sockets,
)
from dfmeta.model import Endpoint
from dfmeta.ovsdb.external_ids import own_ids
from dfmeta.ovsdb.rows import RESTORE_WAIT, Interface, Snapshot
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.ovsdb.vswitchd import Vswitchd, VswitchdError, run_folder
from dfmeta.proxy.tokens import unusable_key
from dfmeta.runtime import clock

SILENT: Final = "the switch, which sends the SYN, does not answer: see the line openflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionOptions:
    """The configuration that the checks need, besides the settings of the host."""

    lock: str = ""
    """Name of the daemon's lock, by which its process is found."""
    haproxy: Callable[[], ProgramFacts] | None = None
    """Tries the program; None: the engine is not haproxy."""
    haproxy_user: str = ""
    """User that haproxy has to run as, where the daemon is root; empty: any."""
    workers: int = 0
    worker_user: str = ""
    connections: int = 0
    """[guest_limits] connections."""
    attachments: AttachmentOptions | None = None
    """None: attachments are off."""
    services: ServiceOptions = field(default_factory=ServiceOptions)
    secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Path of a file with secrets → names of the options."""
    clock_needs: Sequence[str] = ()
    """Certificates and tokens that are refused while the clock is wrong."""
    compared: OptionFacts = field(default_factory=OptionFacts)


class Inspection:
    """One run of doctor: each fact is read once, when the first check needs it.

    :param root: root directory of the host's files.
    """

    def __init__(
        self,
        wanted: HostSettings,
        options: InspectionOptions,
        agent: Agent,
        *,
        root: Path = Path("/"),
    ) -> None:
        self.wanted = wanted
        self.options = options
        self.agent = agent
        self.root = root
        self._hosts: dict[int, host_facts.HostFacts | HostError] = {}

    def begin(self) -> None:
        """Query other services, which answer while doctor checks this host."""
        _ = self.services

    @property
    def meta(self) -> MetaSide:
        """The second bridge, on a host that has it."""
        return cast("MetaSide", self.wanted.meta)

    # The daemon

    @cached_property
    def daemon(self) -> DaemonFacts:
        """The daemon's readiness."""
        return self.agent.readiness()

    @property
    def running(self) -> bool:
        """Whether the daemon answers; if not, it is not queried again."""
        return self.daemon.running

    @cached_property
    def _process(self) -> ProcessFacts | None:
        return read_process(self.options.lock)

    @property
    def has_process(self) -> bool:
        """Whether the daemon's process exists and is visible."""
        return self._process is not None

    @property
    def process(self) -> ProcessFacts:
        """The daemon's process, if there is one."""
        return cast("ProcessFacts", self._process)

    @cached_property
    def owners(self) -> Owners:
        """The users that may own the daemon's files."""
        worker = None
        with contextlib.suppress(KeyError):
            worker = pwd.getpwnam(self.options.worker_user).pw_uid
        return Owners(worker=worker, daemon=self.process.uid if self.has_process else None)

    @property
    def sockets(self) -> tuple[SocketFacts, ...]:
        """The sockets that the daemon connects to."""
        kind, _, path = self.wanted.ovsdb.partition(":")
        bridges = (socket for socket, _layout in self.wanted.sides.values())
        return read_sockets((*((path,) if kind == "unix" else ()), *bridges))

    @property
    def folder(self) -> FolderFacts:
        """The directory state_path, and the files in it."""
        path = Path(self.wanted.state_path)
        try:
            status = path.stat()
            files = {str(file): file.stat().st_uid for file in path.iterdir() if file.is_file()}
        except FileNotFoundError:
            return FolderFacts(exists=False)
        except OSError as error:
            return FolderFacts(exists=True, error=error.strerror or str(error))
        return FolderFacts(
            exists=True,
            folder=stat.S_ISDIR(status.st_mode),
            mode=stat.S_IMODE(status.st_mode),
            owners=dict(sorted({str(path): status.st_uid, **files}.items())),
            key=unusable_key(path),
        )

    @property
    def disk(self) -> DiskFacts | None:
        """The disk of state_path; None if it cannot be queried."""
        folder = Path(self.wanted.state_path)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with contextlib.suppress(OSError):
            room = os.statvfs(folder)
            return DiskFacts(
                free=room.f_bavail * room.f_frsize,
                total=room.f_blocks * room.f_frsize,
                inodes=room.f_favail if room.f_files else None,
            )
        return None

    @property
    def secret_files(self) -> list[SecretFile]:
        """The files with secrets."""
        files = []
        for path, names in self.options.secrets.items():
            with contextlib.suppress(OSError):
                status = os.stat(path)
                mode, uid = stat.S_IMODE(status.st_mode), status.st_uid
                strange = uid == self.owners.worker
                files.append(SecretFile(path, ", ".join(names), mode, uid=uid, strange=strange))
        return files

    # The engine haproxy

    @property
    def has_engine(self) -> bool:
        """Whether the daemon runs and tells of haproxy."""
        return self.running and self._engine is not None

    @property
    def engine(self) -> EngineFacts:
        """The daemon's facts about haproxy, if it has any."""
        return cast("EngineFacts", self._engine)

    @cached_property
    def _engine(self) -> EngineFacts | None:
        try:
            row = self.agent.ask("/haproxy")
            return None if row is None else engine_facts(row)
        except (NotRunningError, KeyError, TypeError, ValueError):
            return None

    @cached_property
    def child(self) -> ChildFacts | None:
        """The process of haproxy; None if it cannot be seen."""
        if self._engine is None or not self._engine.pid or not self.has_process:
            return None
        return read_haproxy(self._engine.pid, self.process.pid)

    @property
    def as_root(self) -> bool:
        """Whether the daemon is root, and so can make its children other users."""
        return self.has_process and not self.process.uid

    # Open vSwitch

    @cached_property
    def _ovsdb(self) -> tuple[Snapshot | None, str]:
        try:
            return read_snapshot(self.wanted.ovsdb), ""
        except OvsdbError as error:
            return None, str(error)

    @property
    def has_ovsdb(self) -> bool:
        """Whether OVSDB answers."""
        return self._ovsdb[0] is not None

    @property
    def ovsdb_cause(self) -> str:
        """Why OVSDB does not answer; empty: it does."""
        return self._ovsdb[1]

    @property
    def snapshot(self) -> Snapshot:
        """OVSDB's configuration; empty if OVSDB does not answer."""
        return self._ovsdb[0] or Snapshot()

    @property
    def tap(self) -> Interface | None:
        """The row of tap-metadata; None if it does not exist."""
        return self.snapshot.interface(self.wanted.tap, self.wanted.home)

    @property
    def tap_cut(self) -> Cut | None:
        """Why the switch cuts tap-metadata off; None: it does not, or was not queried.

        The check ``device`` reports whether it is up and has a link.
        """
        tap = self.tap
        bits = self.bits[self.wanted.home].get(tap.ofport or 0) if tap is not None else None
        return cut_of(bits.of_switch(), self.wanted.tap, bridge=self.wanted.home) if bits else None

    @cached_property
    def vswitchd(self) -> tuple[str, str]:
        """The name and version that ovs-vswitchd reports, and the reason if it does not."""
        try:
            return Vswitchd(run_folder(self.wanted.ovsdb)).version(), ""
        except VswitchdError as error:
            return "", str(error)

    @cached_property
    def _bits(self) -> tuple[dict[str, dict[int, PortBits]], dict[str, SwitchError]]:
        bits: dict[str, dict[int, PortBits]] = {bridge: {} for bridge in self.wanted.sides}
        errors: dict[str, SwitchError] = {}
        for bridge, (path, layout) in self.wanted.sides.items() if self.vswitchd[0] else ():
            try:
                bits[bridge] = read_bits(Path(path), layout)
            except SwitchError as error:
                errors[bridge] = error
        return bits, errors

    @property
    def bits(self) -> dict[str, dict[int, PortBits]]:
        """Bridge → port number → the switch's description of the port, as far as it is known."""
        return self._bits[0]

    @property
    def bits_cause(self) -> str:
        """Why the switch has not described all ports; empty: it has."""
        return next(map(str, self._bits[1].values()), "")

    @cached_property
    def socket_cause(self) -> str:
        """Why the bridge's management socket accepts no connection; empty: it does."""
        try:
            check_socket(Path(self.wanted.socket))
        except NoSocketError as error:
            return str(error)
        return str(self._reading) if isinstance(self._reading, NoSocketError) else ""

    @cached_property
    def _reading(self) -> BridgeFlows | SwitchError:
        return self._read(self.wanted.bridge)

    def _read(self, bridge: str) -> BridgeFlows | SwitchError:
        path, layout = self.wanted.sides[bridge]
        try:
            if isinstance(silent := self._bits[1].get(bridge), SilentError):
                return silent  # another request would take its time-out again
            return read_flows(Path(path), layout)
        except SwitchError as error:
            return error

    @property
    def reading(self) -> BridgeFlows | None:
        """The bridge's flows; None if it does not answer."""
        return self._reading if isinstance(self._reading, BridgeFlows) else None

    @property
    def openflow_cause(self) -> str:
        """Why the bridge's flows cannot be read; empty: they can."""
        return "" if isinstance(self._reading, BridgeFlows) else str(self._reading)

    @cached_property
    def meta_reading(self) -> tuple[BridgeFlows | None, str]:
        """The second bridge's flows, and the reason if they cannot be read."""
        reading = self._read(self.wanted.home)
        return (reading, "") if isinstance(reading, BridgeFlows) else (None, str(reading))

    @cached_property
    def fail_mode(self) -> Finding:
        """The verdict on the bridge's own flow while its controllers are away."""
        bridge = self.snapshot.bridge(self.wanted.bridge)
        if bridge is None:
            return unknown(f"{self.wanted.bridge} does not exist")
        if not checks_switch.is_at_risk(bridge):
            return checks_switch.fail_mode(bridge, "")
        try:
            trace = Vswitchd(run_folder(self.wanted.ovsdb)).trace(bridge.name, "in_port=LOCAL")
        except VswitchdError as error:
            return checks_switch.fail_mode(bridge, "", str(error))
        return checks_switch.fail_mode(bridge, trace)

    @cached_property
    def compared(self) -> flow_diff.FlowComparison | SwitchError:
        """The flows of all bridges, compared with the desired flows."""
        try:
            return flow_diff.compare(self.agent, self.wanted, self.snapshot)
        except SwitchError as error:
            return error

    # Guests

    @cached_property
    def reported(self) -> tuple[KnownPort, ...] | None:
        """Guests' ports from the daemon, or else from OVSDB; None if neither answers."""
        if self.running:
            with contextlib.suppress(NotRunningError):  # it has ended since the first request
                return self.agent.ports(self.wanted.keys)
        return ovsdb_ports(self.snapshot, self.wanted.bridge) if self.has_ovsdb else None

    @cached_property
    def ports(self) -> tuple[KnownPort, ...]:
        """Guests' ports, with the causes for which the switch cuts them off."""
        return with_cuts(self.reported or (), self.bits[self.wanted.bridge], self.wanted.bridge)

    @cached_property
    def names(self) -> dict[Endpoint, str]:
        """Endpoint → name of the guest's port."""
        ports = ovsdb_ports(self.snapshot, self.wanted.bridge)
        return {port.endpoint: port.name for port in ports if port.ofport is not None}

    @cached_property
    def ip6(self) -> tuple[str, ...]:
        """The IPv6 addresses at which guests are served, or a daemon would serve them."""
        if self.running:
            return self.agent.served_ip6()
        return self.wanted.ip6 if ipv6.lack_of(self.wanted.tap) is None else ()

    @cached_property
    def services(self) -> Services:
        """The requests to other services, which start now."""
        return Services(self.options.services, self.reported or (), owners=self.owners)

    def settled_ids(self) -> Finding:
        """Return the verdict on the Meta IPs in OVSDB, which the daemon may write meanwhile."""
        ports = self.ports
        for _ in range(flow_diff.SETTLE_TRIES):
            try:
                rows = read_snapshot(self.wanted.ovsdb).interfaces
                here = (row for row in rows if row.bridge == self.wanted.bridge)
                stored = {row.name: own_ids(row.external_ids) for row in here}
                finding = checks_switch.meta_ids(ports, stored)
                if finding.status is not CheckStatus.WRONG:
                    break
                clock.sleep(clock.CHECK_INTERVAL)
                ports = self.agent.ports(self.wanted.keys)
            except (OvsdbError, NotRunningError) as error:
                return unknown(f"not compared: {error}")
        return finding

    def attachments(self) -> tuple[AttachmentFacts, Snapshot]:
        """Return the attachments, and OVSDB read between two readings of their table.

        An attachment that a VM adds or deletes meanwhile is no fault.
        """
        before = self._attached()
        try:
            snapshot = read_snapshot(self.wanted.ovsdb)
        except OvsdbError as error:
            return AttachmentFacts(cause=str(error)), Snapshot()
        return self._attached(before), snapshot

    def _attached(self, before: AttachmentFacts | None = None) -> AttachmentFacts:
        options = self.options.attachments
        if options is None:
            return AttachmentFacts()
        try:
            rows = self.agent.ask("/attachments")
            return AttachmentFacts(
                rows=[attached(row) for row in rows if row["host"] == options.host],
                before=None if before is None else before.rows,
                options=options,
            )
        except (NotRunningError, AttributeError, KeyError, TypeError) as error:
            return AttachmentFacts(cause=str(error))

    # The host

    def host(self, family: Family) -> host_facts.HostFacts:
        """Return the kernel's side of the packet path in one version of IP.

        :raises HostError: when the kernel does not answer.
        """
        facts = self._hosts.get(family.version)
        if facts is None:
            wanted = self.wanted.over(family)
            try:
                facts = host_facts.read_host(
                    wanted.tap,
                    wanted.host_ip,
                    table=wanted.route_table,
                    family=family,
                    keys=wanted.keys,
                    network=wanted.network,
                )
            except HostError as error:
                facts = error
            self._hosts[family.version] = facts
        if isinstance(facts, HostError):
            raise facts
        return facts

    def host_cause(self, family: Family) -> str:
        """Return why the kernel does not answer; empty: it does."""
        try:
            self.host(family)
        except HostError as error:
            return str(error)
        return ""

    @cached_property
    def lack_of_ip6(self) -> ipv6.Lack | None:
        """The setting that prevents IPv6; None: none does, or only IPv4 is wanted."""
        return ipv6.lack_of(self.wanted.tap) if self.wanted.ip6 else None

    @property
    def over_ip6(self) -> bool:
        """Whether the host has IPv6's side of the path."""
        return bool(self.wanted.ip6) and self.lack_of_ip6 is None

    @cached_property
    def chains(self) -> tuple[checks_host.Chain, ...] | None:
        """The packet filter's base chains that drop; None if no program can list them."""
        return checks_host.read_chains()

    @cached_property
    def firewalld(self) -> bool:
        """Whether firewalld runs."""
        return system.runs("firewalld", self.root)

    @property
    def restore_wait(self) -> Finding:
        """The verdict on ``other_config:flow-restore-wait``."""
        waits = self.snapshot.other_config.get(RESTORE_WAIT) == "true"
        return checks_switch.restore_wait(waits, self._probe if self.running else None)

    @cached_property
    def _probe(self) -> PathFacts:
        mute = SILENT if isinstance(self._reading, SilentError) else ""
        if not mute and self.has_ovsdb and self.fail_mode.status is CheckStatus.WRONG:
            mute = "see the line fail-mode"
        return self.agent.path(silent=mute)

    @cached_property
    def path(self) -> PathFacts:
        """Result of the daemon's own probe of the path, or why it shows nothing about the host."""
        if self.restore_wait.status is CheckStatus.WRONG:
            return self._probe.because("see the line flow-restore-wait")
        return self._probe

    @property
    def path_over_ip6(self) -> bool:
        """Whether the path over IPv6 is probed."""
        return self.path.ip6 is not None if self.running else bool(self.ip6)
