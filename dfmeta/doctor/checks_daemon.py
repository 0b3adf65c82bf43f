"""Checks of the daemon, its configuration, its state directory and its guests' ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dfmeta.doctor.checks_trunks import leads_to_trunk, without_vm
from dfmeta.doctor.facts import KnownPort, Settings
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.doctor.offload import remedies
from dfmeta.model import PortState
from dfmeta.ovsdb.rows import Snapshot

START = "start dfmeta-agent (`systemctl start dfmeta-agent`), and read its log if it ends again"


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The answers of the daemon's admin listener."""

    running: bool
    ready: bool = False
    missing: tuple[str, ...] = ()
    cause: str = ""
    """Why the daemon counts as not running."""
    other: bool = False
    """Whether another program answers at admin_listen."""
    hangs: int = 0
    """Process of a daemon that is there and has not answered within ``seconds``; 0: there is none.
    """
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The state directory, [df_metadata] state_path."""

    there: bool
    folder: bool = True
    mode: int = 0o700
    open_files: tuple[str, ...] = ()
    """Files in it that users other than their owner may read or write."""
    error: str = ""
    owners: Mapping[str, int] = field(default_factory=dict)
    """Path → user id of its owner, for the directory and for each file in it."""
    key: str = ""
    """Why the daemon cannot start with the token key in it; empty when it can."""


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """Options whose value in the running daemon differs from the files, as ``[group] option``."""

    reload: Sequence[str] = ()
    """Options that the daemon reads again on SIGHUP."""
    restart: Sequence[str] = ()
    """Options that the daemon reads only at its start."""
    given: Sequence[str] = ()
    """Options that are set by the daemon's command line or environment."""
    files: Sequence[str] | None = None
    """Files that the daemon has read, if they are other files than doctor's; None: the same."""
    cause: str = ""
    """Why the daemon's values are not known; empty when they are known."""


_MISSING = {
    "threads": "one of its threads has ended, and it is about to end itself (see its log)",
    "ovsdb": "it has no connection to OVSDB",
    "bridge": "OVSDB has no such bridge",
    "flows": "the switch has not confirmed its flows",
    "proxy": "the proxy does not listen, or tap-metadata is not in place",
    "flow-restore-wait": "ovs-vswitchd forwards nothing (see the line flow-restore-wait)",
    "path": "guests' SYNs do not reach the proxy (see the lines path and fail-mode)",
    "store": "the database of the store does not answer (see the lines store and disk)",
    "disk": "no room for token.key, without which guests get no tokens (see the line disk)",
}


@dataclass(frozen=True, slots=True)
class Owners:
    """Users that may own the daemon's files."""

    worker: int | None = None
    """User of the workers, which parse guests' requests and so may not own the files."""
    daemon: int | None = None
    """User of the running daemon; None when it is not known."""

    def strange(self, owners: Mapping[str, int]) -> list[str]:
        """Return the paths whose owner may not own the daemon's files.

        :param owners: path → user id of its owner.
        """
        return [path for path, uid in owners.items() if not self._may(uid)]

    @property
    def rightful(self) -> str:
        """The user to give to chown(1)."""
        return str(self.daemon) if self.daemon else "root"

    def _may(self, uid: int) -> bool:
        if self.daemon is not None:
            return uid in (0, self.daemon)
        return uid != self.worker


def user(uid: int) -> Finding:
    """Check that doctor runs as root, so that it may read everything that it checks.

    :param uid: effective user id of doctor.
    """
    if uid:
        return wrong(
            "user",
            f"doctor runs as user {uid}, not as root: lines below may be wrong or unknown only "
            "because that user may not read everything on this host",
            "run it as root first: `sudo dfmeta doctor`",
        )
    return ok("user", "doctor runs as root")


def daemon(facts: DaemonFacts, wanted: Settings) -> Finding:
    """Check that dfmeta-agent runs and is ready."""
    if not facts.running and facts.other:
        port = wanted.admin.rpartition(":")[2]
        return wrong(
            "daemon",
            f"dfmeta-agent is not running: another program listens at {wanted.admin}: "
            f"{facts.cause}",
            f"stop that program (`ss -ltnp sport = :{port}` shows it), or set [df_metadata] "
            f"admin_listen to another port; then {START}",
        )
    if facts.hangs:
        return wrong(
            "daemon",
            f"dfmeta-agent, process {facts.hangs}, hangs: it does not answer at {wanted.admin} "
            f"within {facts.seconds:g} s",
            f"`systemctl restart dfmeta-agent`; `grep State /proc/{facts.hangs}/status` shows T "
            "for a process that was stopped by a signal",
        )
    if not facts.running:
        return wrong(
            "daemon",
            f"dfmeta-agent is not running: no answer from {wanted.admin}: {facts.cause}",
            f"{START}; or name its configuration with --config-file",
        )
    if not facts.ready:
        words = [_MISSING.get(one, one) for one in facts.missing]
        return wrong(
            "daemon",
            f"dfmeta-agent runs and is not ready: {'; '.join(words) or 'it gives no reason'}",
            "fix the problems in the other lines; if there are none, wait until it has started, "
            "and then read its log",
        )
    return ok("daemon", "dfmeta-agent runs and is ready")


def configuration(facts: OptionFacts, *, running: bool) -> Iterator[Finding]:
    """Check that the running daemon has the values of the files.

    An ``ok`` line also says that all names in the files are options; the caller leaves that line
    out if one of them is not.

    :param running: the daemon answers.
    """
    check, names = "configuration", "all names in the files are options"
    if not running:
        yield ok(check, f"{names}; no daemon answers, so its values were not compared")
        return
    if facts.cause:
        yield ok(check, names)
        yield unknown(
            check,
            f"the values of the running daemon are not known: {facts.cause}; the other lines use "
            "the values of the files",
        )
        return
    other = [*facts.restart, *facts.reload]
    if other and facts.files is not None:
        yield _other_files(facts.files, other)
        return
    for differing, verb in ((facts.restart, "restart"), (facts.reload, "reload")):
        if differing:
            yield wrong(
                check,
                f"the daemon runs with other values than the files for {listed(differing)}; the "
                "other lines use the daemon's values",
                f"if the files are right: `systemctl {verb} dfmeta-agent`; if they are not, "
                "correct them first",
            )
    if not other:
        given = f", except those from its command line or environment: {listed(facts.given)}"
        yield ok(
            check,
            f"{names}, and the running daemon has the same values{given if facts.given else ''}",
        )


def _other_files(files: Sequence[str], names: Sequence[str]) -> Finding:
    read = listed(files) if files else "none"
    remedy = "start dfmeta-agent with these files"
    if files:
        same = " --config-file ".join(files)
        remedy = f"give doctor the daemon's files: `dfmeta doctor --config-file {same}`"
    return wrong(
        "configuration",
        f"the daemon has read other files ({read}) than doctor and runs with other values for "
        f"{listed(names)}; the other lines use the daemon's values",
        remedy,
    )


def state_path(facts: FolderFacts, wanted: Settings, *, owners: Owners) -> Finding:
    """Check that state_path is a directory of the daemon alone, with a valid token key."""
    path = wanted.state_path
    if not facts.there:
        return wrong(
            "state_path",
            f"{path} does not exist: addresses and the port are forgotten at a restart",
            f"`mkdir -p -m 700 {path}`, or start dfmeta-agent, which makes it",
        )
    if facts.error or not facts.folder:
        return wrong(
            "state_path",
            f"{path} cannot be read: {facts.error or 'it is not a directory'}",
            "run doctor as root; if it runs as root already, set [df_metadata] state_path to a "
            "directory of the daemon's own",
        )
    if facts.mode & 0o077:
        return wrong(
            "state_path",
            f"{path} has mode {facts.mode:04o}: users other than its owner can access the store",
            f"`chmod 700 {path}`",
        )
    strange = owners.strange(facts.owners)
    if strange:
        return wrong(
            "state_path",
            f"{listed(f'{one} (user {facts.owners[one]})' for one in strange)} belongs to another "
            "user than the daemon's: that user can read addresses, records and the token key",
            f"`chown -R {owners.rightful}: {path}`",
        )
    if facts.key:
        return wrong(
            "state_path",
            f"dfmeta-agent does not start: {facts.key}",
            f"`rm {path}/token.key` and start dfmeta-agent: it makes a new key, and guests have to "
            "get new tokens",
        )
    return ok(
        "state_path",
        f"{path} and its files belong to the daemon's user or root, and the "
        "directory is closed to other users",
    )


def ports(
    known: Iterable[KnownPort],
    wanted: Settings,
    *,
    running: bool,
    snapshot: Snapshot | None = None,
) -> Iterator[Finding]:
    """Check that each guest's port can be served. A dead port is not a fault: its owner wants it.

    :param running: *known* comes from the running daemon, which has queried all identity sources.
    :param snapshot: OVSDB's configuration, for the datapath's type and the devices' drivers.
    """
    by_state: dict[PortState, list[KnownPort]] = {}
    for port in known:
        by_state.setdefault(port.state, []).append(port)
    served = by_state.get(PortState.SERVED, [])
    strangers = [port for port in served if wanted.needs_project and running and not port.project]
    strangers += by_state.get(PortState.NO_PROJECT, [])
    nameless = by_state.get(PortState.NO_INSTANCE, [])
    behind = [one for one in nameless if leads_to_trunk(one, snapshot, wanted.bridge)]
    found = [
        *_broken(by_state.get(PortState.BROKEN, [])),
        *_without_instance([one for one in nameless if one not in behind], wanted),
        *without_vm(behind),
        *_without_number(by_state.get(PortState.NO_OFPORT, [])),
        *_without_project(strangers, wanted),
        *_without_connection(by_state.get(PortState.NO_CONNECTION, []), wanted, snapshot),
        *_cut_off(by_state.get(PortState.CUT_OFF, []), wanted),
    ]
    yield from found
    if not found:
        dead = by_state.get(PortState.DEAD, [])
        off = f"; switched off by their owner: {listed(p.name for p in dead)}" if dead else ""
        count = sum(map(len, by_state.values()))
        unnamed = len(by_state.get(PortState.UNNAMED, ()))
        without = f"; subports without an instance, which get 404: {unnamed}" if unnamed else ""
        yield ok(
            "ports",
            f"{len(served)} of {count} guests' ports on {wanted.bridge} served{without}{off}",
        )


def _broken(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"broken: {listed(f'{port.name} ({port.fault})' for port in ports)}",
            "correct its external_ids, of a subport external_ids:dfmeta-instance: "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _without_instance(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        others = [one for one in wanted.sources if one != "ovsdb"]
        nor = f", and {listed(others)} does not know it" if others else ""
        yield wrong(
            "ports",
            f"no instance is known for {listed(port.name for port in ports)}: "
            f"external_ids:vm-uuid is missing{nor}",
            "check that os-vif or libvirt sets it, or run "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _without_number(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"Open vSwitch has given no port number to {listed(port.name for port in ports)}",
            f"`ovs-vsctl get Interface {ports[0].name} error` shows the cause; its device may be "
            "missing",
        )


def _without_connection(
    ports: Sequence[KnownPort], wanted: Settings, snapshot: Snapshot | None
) -> Iterator[Finding]:
    if ports:
        checksums = "; ".join(remedies(snapshot, wanted.bridge, [port.name for port in ports]))
        if checksums:
            checksums = (
                "complete TCP checksums, if `nstat -az TcpInCsumErrors` grows while the guests "
                f"try: {checksums} (userspace datapath); "
            )
        yield wrong(
            "ports",
            "SYNs arrive and no connection follows: "
            f"{listed(f'{port.name} ({port.fault})' for port in ports)}",
            f"check in this order: {checksums}a packet filter of the host or of the guest (`nft "
            f"list ruleset`); the listener (`ss -ltn sport = :{wanted.port}`)",
        )


def _cut_off(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        named = listed(f"{one.name} ({one.cut.cause if one.cut else one.fault})" for one in ports)
        cut = next((one.cut for one in ports if one.cut), None)
        look = (
            f"run the command of each port; `ovs-ofctl -O OpenFlow13 show {wanted.bridge}` shows "
            "the bits of each"
        )
        yield wrong("ports", f"cut off: {named}", cut.remedy if cut else look)


def _without_project(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"no project is known for {listed(port.name for port in ports)}, and Nova needs it to "
            f"answer: {listed(wanted.sources)} does not know it",
            "add libvirt or neutron to [df_metadata] identity_sources, or run `ovs-vsctl set "
            f"Interface {ports[0].name} external_ids:project-id=<project's id>`",
        )
