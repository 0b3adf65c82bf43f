"""Judgements on the daemon, its memory and its guests' ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dfmeta.inspect.facts import KnownPort, Settings, Snapshot
from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong
from dfmeta.inspect.offload import remedies
from dfmeta.inspect.which import TRUNK_REMEDY
from dfmeta.model import PortState

START = "start dfmeta-agent (`systemctl start dfmeta-agent`), and read its log if it ends again"


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What the daemon's admin listener says."""

    running: bool
    ready: bool = False
    missing: tuple[str, ...] = ()
    cause: str = ""
    """Why it counts as not running."""
    other: str = ""
    """The program that has its place, as ``NAME, pid PID``; empty: none is seen."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What state_path is."""

    there: bool
    folder: bool = True
    mode: int = 0o700
    open_files: tuple[str, ...] = ()
    """Files in it that others than their owner may read or write."""
    error: str = ""
    owners: Mapping[str, int] = field(default_factory=dict)
    """Path → user that it belongs to: of the folder, and of each file in it."""
    key: str = ""
    """Why the daemon does not start with the key of tokens in it; empty: it would."""


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """Where the running daemon's values differ from those of the files, as ``[group] option``."""

    reload: Sequence[str] = ()
    """Options that a SIGHUP takes in."""
    restart: Sequence[str] = ()
    """Those that only a start takes in."""
    given: Sequence[str] = ()
    """Those that the daemon has from its command line or its environment."""
    files: Sequence[str] | None = None
    """The daemon's files, where it has read others; None where it has read these."""
    cause: str = ""
    """Why the daemon's values are not known; empty when they are."""


_MISSING = {
    "threads": "a thread of its own has ended, and it is about to end (see its log)",
    "ovsdb": "it has no connection to OVSDB",
    "bridge": "OVSDB has no such bridge",
    "flows": "the switch has not confirmed its flows",
    "proxy": "the proxy does not listen, or tap-metadata is not in place",
}


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose the daemon's files may be."""

    worker: int | None = None
    """User of workers, who may not have them: it reads what guests send."""
    daemon: int | None = None
    """User of the daemon that runs; None when it is not known."""

    def strange(self, owners: Mapping[str, int]) -> list[str]:
        """Paths, of those with their owners, that belong to a user who may not have them."""
        return [path for path, uid in owners.items() if not self._may(uid)]

    @property
    def rightful(self) -> str:
        """The user for chown(1)."""
        return str(self.daemon) if self.daemon else "root"

    def _may(self, uid: int) -> bool:
        if self.daemon is not None:
            return uid in (0, self.daemon)
        return uid != self.worker


def user(uid: int) -> Finding:
    """Whether doctor may look at all that it has to.

    :param uid: effective user of doctor.
    """
    if uid:
        return wrong(
            "user",
            f"doctor runs as user {uid}, who may not look at all of this host: lines below may be "
            "wrong or unknown for that reason alone",
            "run it as root first: `sudo dfmeta doctor`",
        )
    return ok("user", "doctor runs as root")


def daemon(facts: DaemonFacts, wanted: Settings) -> Finding:
    """Whether dfmeta-agent runs and is ready."""
    if not facts.running and facts.other:
        port = wanted.admin.rpartition(":")[2]
        return wrong(
            "daemon",
            f"dfmeta-agent is not running: another program ({facts.other}) listens at "
            f"{wanted.admin}: {facts.cause}",
            f"stop that program (`ss -ltnp sport = :{port}` shows it), or give [df_metadata] "
            f"admin_listen another port; then {START}",
        )
    if not facts.running:
        return wrong(
            "daemon",
            f"dfmeta-agent is not running: nobody answers at {wanted.admin}: {facts.cause}",
            f"{START}; or name its configuration with --config-file",
        )
    if not facts.ready:
        words = [_MISSING.get(one, one) for one in facts.missing]
        return wrong(
            "daemon",
            f"dfmeta-agent runs and is not ready: {'; '.join(words) or 'it does not say why'}",
            "mend what the other lines name; when there is none, wait until it has started, "
            "and then read its log",
        )
    return ok("daemon", "dfmeta-agent runs and is ready")


def configuration(facts: OptionFacts, *, running: bool) -> Iterator[Finding]:
    """Whether the files have what the daemon runs with; each name in them is an option's.

    :param running: the daemon answers.
    """
    check, names = "configuration", "each name in its files is an option's"
    if not running:
        yield ok(check, f"{names}; no daemon answers whose values could be compared with theirs")
        return
    if facts.cause:
        yield ok(check, names)
        yield unknown(
            check,
            f"the values of the running daemon are not known: {facts.cause}; the other lines go "
            "by the files",
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
                "the daemon runs with other values than the files in "
                f"{listed(differing)}: {verb} dfmeta-agent; the other lines go by the daemon's",
                f"if the files are right: `systemctl {verb} dfmeta-agent`; if they are not, mend "
                "them first",
            )
    if not other:
        given = f", but for its command line or environment: {listed(facts.given)}"
        yield ok(
            check,
            f"{names}, and the running daemon has the same values{given if facts.given else ''}",
        )


def _other_files(files: Sequence[str], names: Sequence[str]) -> Finding:
    what = listed(files) if files else "none"
    remedy = "have it read these files"
    if files:
        remedy = f"name the same: `dfmeta doctor --config-file {' --config-file '.join(files)}`"
    return wrong(
        "configuration",
        f"the daemon has read other files ({what}) and runs with other values than these in "
        f"{listed(names)}; the other lines go by the daemon's",
        remedy,
    )


def state_path(facts: FolderFacts, wanted: Settings, *, owners: Owners) -> Finding:
    """Whether state_path is a folder for the daemon alone, with what it starts with."""
    path = wanted.state_path
    if not facts.there:
        return wrong(
            "state_path",
            f"{path} is not there: addresses and the port are forgotten at a restart",
            f"`mkdir -p -m 700 {path}`, or start dfmeta-agent, which makes it",
        )
    if facts.error or not facts.folder:
        return wrong(
            "state_path",
            f"{path} cannot be looked into: {facts.error or 'it is no folder'}",
            "run doctor as root; if that is so already, give [df_metadata] state_path a folder "
            "of the daemon's own",
        )
    if facts.mode & 0o077:
        return wrong(
            "state_path",
            f"{path} has mode {facts.mode:04o}: others than its owner get at the store",
            f"`chmod 700 {path}`",
        )
    strange = owners.strange(facts.owners)
    if strange:
        return wrong(
            "state_path",
            f"{listed(f'{one} (user {facts.owners[one]})' for one in strange)} belongs to another "
            "user than the daemon's, who reads addresses, records and the key of tokens",
            f"`chown -R {owners.rightful}: {path}`",
        )
    if facts.key:
        return wrong(
            "state_path",
            f"dfmeta-agent does not start: {facts.key}",
            f"`rm {path}/token.key` and start dfmeta-agent: it makes another one, and guests take "
            "new tokens",
        )
    return ok(
        "state_path",
        f"{path} and its files belong to the daemon's user or root, and the "
        "folder is closed to others",
    )


def ports(
    known: Iterable[KnownPort],
    wanted: Settings,
    *,
    running: bool,
    snapshot: Snapshot | None = None,
) -> Iterator[Finding]:
    """Whether each guest's port can be served; a dead one is its owner's wish.

    :param running: they come from the running daemon, who has asked all sources.
    :param snapshot: OVSDB, which has the datapath's type and the devices' drivers.
    """
    by_state: dict[PortState, list[KnownPort]] = {}
    for port in known:
        by_state.setdefault(port.state, []).append(port)
    served = by_state.get(PortState.SERVED, [])
    strangers = [port for port in served if wanted.needs_project and running and not port.project]
    strangers += by_state.get(PortState.NO_PROJECT, [])
    found = [
        *_broken(by_state.get(PortState.BROKEN, [])),
        *_trunks(by_state.get(PortState.TRUNK, [])),
        *_without_instance(by_state.get(PortState.NO_INSTANCE, []), wanted),
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
        yield ok("ports", f"{len(served)} of {count} guests' ports on {wanted.bridge} served{off}")


def _broken(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"broken: {listed(f'{port.name} ({port.fault})' for port in ports)}",
            "mend its external_ids: "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _trunks(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        named = listed(f"{port.name} ({port.fault}, iface-id {port.iface_id})" for port in ports)
        yield wrong("ports", f"no guest behind a trunk is served: {named}", TRUNK_REMEDY)


def _without_instance(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        others = [one for one in wanted.sources if one != "ovsdb"]
        nor = f", and {listed(others)} says none" if others else ""
        yield wrong(
            "ports",
            f"no instance is known for {listed(port.name for port in ports)}: "
            f"external_ids:vm-uuid is missing{nor}",
            "see that os-vif or libvirt sets it, or "
            f"`ovs-vsctl set Interface {ports[0].name} external_ids:vm-uuid=<instance's UUID>`",
        )


def _without_number(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"Open vSwitch has given no port number to {listed(port.name for port in ports)}",
            f"see why: `ovs-vsctl get Interface {ports[0].name} error`; its device may be missing",
        )


def _without_connection(
    ports: Sequence[KnownPort], wanted: Settings, snapshot: Snapshot | None
) -> Iterator[Finding]:
    if ports:
        checksums = "; ".join(remedies(snapshot, wanted.bridge, [port.name for port in ports]))
        if checksums:
            checksums = (
                f"whole checksums, if `nstat -az TcpInCsumErrors` grows while they try: {checksums}"
                " (userspace datapath); "
            )
        yield wrong(
            "ports",
            "SYNs arrive and no connection follows: "
            f"{listed(f'{port.name} ({port.fault})' for port in ports)}",
            f"in this order: {checksums}a packet filter of the host or of the guest (`nft list "
            f"ruleset`); the listener (`ss -ltn sport = :{wanted.port}`)",
        )


def _cut_off(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        named = listed(f"{one.name} ({one.cut.cause if one.cut else one.fault})" for one in ports)
        cut = next((one.cut for one in ports if one.cut), None)
        look = f"`ovs-ofctl -O OpenFlow13 show {wanted.bridge}` shows the bits of each port"
        yield wrong("ports", f"cut off: {named}", cut.remedy if cut else look)


def _without_project(ports: Sequence[KnownPort], wanted: Settings) -> Iterator[Finding]:
    if ports:
        yield wrong(
            "ports",
            f"no project is known for {listed(port.name for port in ports)}, and Nova answers "
            f"nobody without: {listed(wanted.sources)} says none",
            "add libvirt or neutron to [df_metadata] identity_sources, or `ovs-vsctl set Interface "
            f"{ports[0].name} external_ids:project-id=<project's id>`",
        )
