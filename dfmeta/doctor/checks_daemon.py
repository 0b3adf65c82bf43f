"""Checks of the daemon's processes, haproxy included, its configuration and its files. Pure.

Sources: capabilities(7), getrlimit(2); HAProxy 2.6, management guide, 5 "File-descriptor
limitations".
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final

from dfmeta.doctor.agent import DaemonFacts
from dfmeta.doctor.facts import HostSettings
from dfmeta.doctor.finding import NEARLY_FULL, Finding, listed, ok, span, unknown, warning, wrong
from dfmeta.host.process import AccountFacts, ChildFacts, ProcessFacts, SocketFacts
from dfmeta.runtime.clock import ANSWER_TIMEOUT

RECENT: Final = timedelta(hours=1)
"""Time for which a restart of haproxy after a fault is a warning."""
_HAPROXY_LOG: Final = "`journalctl -u dfmeta-agent | grep haproxy` shows the cause"
_RELOAD: Final = "`systemctl reload dfmeta-agent`"
ALWAYS: Final = ("CAP_NET_ADMIN", "CAP_NET_RAW")
"""For addresses, rules and routes, and for SO_BINDTODEVICE."""
WITH_WORKERS: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
"""A worker becomes another user, and the daemon has to be able to end it."""
OWN_FILES: Final = 256
"""Descriptors in addition to those of guests' connections, see :mod:`dfmeta.cmd.serving`."""
LEAST_FREE: Final = 256 << 20
"""Bytes that have to be free on the disk of the store and the state: SQLite's log grows before it
is written back, and a record's user-data may have 16 MiB."""
LEAST_SHARE: Final = 0.02
LEAST_INODES: Final = 100
_MISSING: Final = {
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
class FolderFacts:
    """The state directory, [df_metadata] state_path."""

    exists: bool
    folder: bool = True
    mode: int = 0o700
    error: str = ""
    owners: Mapping[str, int] = field(default_factory=dict)
    """Path → user id of its owner, for the directory and for each file in it."""
    key: str = ""
    """Why the daemon cannot start with the token key in it; empty when it can."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Free space on the disk of state_path."""

    free: int
    total: int
    """Both in bytes; *free* leaves out the space that is reserved for root."""
    inodes: int | None = None
    """Number of files that can still be made; None: there is no limit."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A configuration file with a secret, or a file that is a secret, such as a key."""

    path: str
    what: str
    """Names of the secret options in it, or of the option that names the file."""
    mode: int
    uid: int = 0
    """User id of its owner."""
    strange: bool = False
    """Whether its owner is the user of workers."""


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """Options whose value in the running daemon differs from the files, as ``[group] option``."""

    reload: Sequence[str] = ()
    """Options that the daemon reads again on SIGHUP."""
    restart: Sequence[str] = ()
    """Options that the daemon reads only at its start."""
    given: Sequence[str] = ()
    """Options that are set by the daemon's command line or environment."""
    newer: Sequence[str] = ()
    """Files that have changed since the daemon read them."""
    files: Sequence[str] | None = None
    """Files that the daemon has read, if they are other files than doctor's; None: the same."""
    cause: str = ""
    """Why the daemon's values are not known; empty when they are known."""
    strange: Sequence[tuple[str, str]] = ()
    """Names in the files that are no options: each fault with its remedy."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """The program, as the daemon would start it now."""

    binary: str = ""
    version: str = ""
    cause: str = ""
    """Why it cannot be used; empty when it can."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFacts:
    """haproxy's map, compared with the registry."""

    entries: int
    missing: int = 0
    superfluous: int = 0
    different: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the daemon knows of haproxy."""

    pid: int | None = None
    """None: no haproxy accepts connections."""
    version: str = ""
    connections: int | None = None
    """Open connections of guests; None: haproxy has not told."""
    maxconn: int = 0
    fault: str = ""
    """Why there is no haproxy, or why it has not answered the daemon."""
    failed_replacement: str = ""
    """Why a process that was to replace this one has not started; empty: none has failed."""
    restarts: int = 0
    """Restarts after a fault since the daemon's start."""
    last_restart: datetime | None = None
    last_fault: str = ""
    map: MapFacts | None = None
    """None: haproxy has not answered."""


def engine_facts(row: Mapping[str, Any]) -> EngineFacts:
    """Return the daemon's answer about haproxy.

    :raises KeyError, TypeError, ValueError: for an answer of another form.
    """
    last, guest_map = row["last_restart"], row["map"]
    values = {each.name: row[each.name] for each in fields(EngineFacts)}
    values["maxconn"] = row["maxconn"] or 0
    values["last_restart"] = None if last is None else datetime.fromisoformat(last)
    values["map"] = None if guest_map is None else MapFacts(**guest_map)
    return EngineFacts(**values)


def user(uid: int) -> Finding:
    """Check that doctor runs as root.

    :param uid: effective user id of doctor.
    """
    if uid:
        return wrong(
            f"doctor runs as user {uid}: other lines may be wrong or unknown only because of that",
            "run it as root first: `sudo dfmeta doctor`",
        )
    return ok("doctor runs as root")


def daemon(facts: DaemonFacts, wanted: HostSettings) -> Finding:
    """Check that dfmeta-agent runs and is ready."""
    if facts.hangs:
        return wrong(
            f"dfmeta-agent, process {facts.hangs}, hangs: it does not answer at {wanted.admin} "
            f"within {ANSWER_TIMEOUT:g} s",
            "`systemctl restart dfmeta-agent`",
        )
    if not facts.running and facts.other:
        port = wanted.admin.rpartition(":")[2]
        return wrong(
            f"dfmeta-agent is not running: another program listens at {wanted.admin}: "
            f"{facts.cause}",
            f"stop that program, which `ss -ltnp sport = :{port}` shows",
        )
    if not facts.running:
        return wrong(
            f"dfmeta-agent is not running: no answer from {wanted.admin}: {facts.cause}",
            "`systemctl start dfmeta-agent`",
        )
    if not facts.ready:
        words = [_MISSING.get(part, part) for part in facts.missing]
        return wrong(
            f"dfmeta-agent runs and is not ready: {'; '.join(words) or 'it gives no reason'}",
            "fix the other lines, or read its log: `journalctl -u dfmeta-agent`",
        )
    return ok("dfmeta-agent runs and is ready")


def configuration(facts: OptionFacts, *, running: bool) -> Iterator[Finding]:
    """Check that all names in the files are options, and that the daemon has the files' values."""
    yield from (wrong(text, remedy) for text, remedy in facts.strange)
    differing = [*facts.restart, *facts.reload] if running else []
    if differing and facts.files is not None:
        yield _other_files(facts.files, differing)
        return
    for options, verb in ((facts.restart, "restart"), (facts.reload, "reload")):
        if running and options:
            yield wrong(
                f"the daemon runs with other values than the files for {listed(options)}; the "
                "other lines use the daemon's values",
                f"if the files are right: `systemctl {verb} dfmeta-agent`",
            )
    if running and facts.newer and not differing:
        yield warning(
            f"{listed(facts.newer)} has changed since the daemon read it: a secret may differ",
            f"if the file is right: {_RELOAD}",
        )
        return
    if not (differing or facts.strange):
        same = "; no daemon answers, so its values were not compared"
        if running:
            given = f", except those from its command line or environment: {listed(facts.given)}"
            same = f", and the running daemon has the same values{given if facts.given else ''}"
        yield ok(f"all names in the files are options{'' if facts.cause and running else same}")
    if running and facts.cause:
        yield unknown(
            f"the values of the running daemon are not known: {facts.cause}; the other lines use "
            "the values of the files"
        )


def _other_files(files: Sequence[str], options: Sequence[str]) -> Finding:
    same = " --config-file ".join(files)
    return wrong(
        f"the daemon has read other files ({listed(files) or 'none'}) than doctor and runs with "
        f"other values for {listed(options)}; the other lines use the daemon's values",
        f"give doctor the daemon's files: `dfmeta doctor --config-file {same}`"
        if files
        else "start dfmeta-agent with these files",
    )


def version(installed: str, running: str, python: str) -> Finding:
    """Check that the daemon is of the installed version.

    :param running: version of the running daemon; empty: it is not known.
    """
    if running and running != installed:
        text = f"dfmeta {installed} is installed, but dfmeta-agent {running} runs"
        return wrong(text, "`systemctl restart dfmeta-agent`")
    return ok(f"dfmeta {installed}, Python {python}")


def permissions(process: ProcessFacts, *, workers: int) -> Finding:
    """Check that the daemon has the capabilities that it needs.

    :param workers: the option proxy_workers.
    """
    needed = (*ALWAYS, *(WITH_WORKERS if workers and process.uid == 0 else ()))
    lacking = [name for name in needed if not process.can(name)]
    if lacking:
        return wrong(
            f"dfmeta-agent (pid {process.pid}) lacks {', '.join(lacking)}",
            f"`systemctl edit dfmeta-agent`: [Service] CapabilityBoundingSet={' '.join(needed)} "
            "and the same in AmbientCapabilities=",
        )
    return ok(f"dfmeta-agent (pid {process.pid}) has {', '.join(needed)}")


def sockets(process: ProcessFacts, sockets: Iterable[SocketFacts]) -> Finding:
    """Check that the daemon may connect to Open vSwitch's sockets."""
    closed = [sock.path for sock in sockets if not _may_write(process, sock)]
    if closed:
        return wrong(
            f"dfmeta-agent (user {process.uid}) may not connect to {listed(closed)}",
            f"add its user to the group that `ls -l {' '.join(closed)}` shows",
        )
    return ok("dfmeta-agent may connect to Open vSwitch's sockets")


def _may_write(process: ProcessFacts, sock: SocketFacts) -> bool:
    if process.can("CAP_DAC_OVERRIDE"):
        return True
    if process.uid == sock.uid:
        return bool(sock.mode & 0o200)
    if sock.gid in process.groups:
        return bool(sock.mode & 0o020)
    return bool(sock.mode & 0o002)


def workers(process: ProcessFacts, count: int) -> Finding:
    """Check that proxy_workers workers are alive.

    :param count: the option proxy_workers, not 0.
    """
    alive = len(process.workers)
    if alive < count:
        return wrong(
            f"{alive} of {count} workers are alive",
            "`journalctl -u dfmeta-agent | grep Worker` shows why workers end",
        )
    if alive > count:
        return ok(f"{count} workers are alive, and {alive - count} more are ending")
    return ok(f"all {count} workers are alive")


def account(facts: AccountFacts | None, *, which: str, option: str) -> Finding:
    """Check that no other program runs as the user of haproxy or of the workers.

    :param facts: None: the processes cannot be seen.
    :param which: ``haproxy`` or ``workers``.
    :param option: the option that names the user.
    """
    if facts is None:
        return unknown(f"the users of {which} cannot be seen")
    users = f"{which} {'run' if which == 'workers' else 'runs'} as user {listed(facts.users)}"
    if not facts.sharers:
        return ok(f"{users}, and no other program does")
    return wrong(
        f"{users}, and so does {listed(facts.sharers)}, which can read secrets of guests",
        f"leave {option} empty and {_RELOAD}",
    )


def open_files(process: ProcessFacts, connections: int) -> Finding:
    """Check that the daemon's limit of open files is enough for its guests' connections.

    :param connections: the option [guest_limits] connections. Each needs one more descriptor for
        the backend. Each worker has a limit of its own, which is set from the daemon's hard limit.
    """
    needed = 2 * connections + OWN_FILES
    if process.descriptors < needed:
        return wrong(
            f"dfmeta-agent may open {process.descriptors} files, and [guest_limits] connections "
            f"needs {needed}",
            f"`systemctl edit dfmeta-agent`: [Service] LimitNOFILE={needed}, and restart it",
        )
    return ok(f"{process.open} of {process.descriptors} files are open")


def state_path(facts: FolderFacts, path: str, *, owners: Owners) -> Finding:
    """Check that state_path is a directory of the daemon alone, with a valid token key."""
    if not facts.exists:
        return wrong(f"{path} does not exist", f"`mkdir -p -m 700 {path}`")
    if facts.error or not facts.folder:
        return wrong(
            f"{path} cannot be read: {facts.error or 'it is not a directory'}",
            "set [df_metadata] state_path to a directory of the daemon's own",
        )
    if facts.mode & 0o077:
        return wrong(
            f"{path} has mode {facts.mode:04o}: users other than its owner can access the store",
            f"`chmod 700 {path}`",
        )
    strange = owners.strange(facts.owners)
    if strange:
        return wrong(
            f"{listed(f'{name} (user {facts.owners[name]})' for name in strange)} belongs to "
            "another user than the daemon's",
            f"`chown -R {owners.rightful}: {path}`",
        )
    if facts.key:
        return wrong(f"dfmeta-agent does not start: {facts.key}", f"`rm {path}/token.key`")
    return ok(f"{path} and its files belong to the daemon's user or root, and are closed to others")


def disk(facts: DiskFacts, path: str) -> Finding:
    """Check that the disk of state_path has room."""
    least = min(LEAST_FREE, int(facts.total * LEAST_SHARE))
    no_files = facts.inodes is not None and facts.inodes < LEAST_INODES
    if facts.free < least or no_files:
        room = f"{facts.inodes} more files" if no_files else f"{facts.free >> 20} MiB more"
        return wrong(f"the disk of {path} has room for {room}", f"free some: `df -h {path}`")
    return ok(f"{facts.free >> 20} MiB are free for {path}")


def secret_files(files: Sequence[SecretFile]) -> Finding:
    """Check that files with secrets are closed to users other than owner and group."""
    strange = [file for file in files if file.strange]
    if strange:
        texts = [f"{file.path} ({file.what}, user {file.uid})" for file in strange]
        return wrong(
            f"the user of workers, which parse guests' requests, owns {listed(texts)}",
            f"`chown root: {_quoted(strange)}`, and replace the secrets that could be read",
        )
    exposed = [file for file in files if file.mode & 0o007]
    if exposed:
        texts = [f"{file.path} ({file.what}, mode {file.mode:04o})" for file in exposed]
        return wrong(
            f"all users of this host may read or change {listed(texts)}",
            f"`chmod o-rwx {_quoted(exposed)}`, and replace the secrets that could be read",
        )
    if not files:
        return ok("no file with a secret is configured")
    return ok(f"{len(files)} files with secrets are closed to other users")


def _quoted(files: Iterable[SecretFile]) -> str:
    return " ".join(shlex.quote(file.path) for file in files)


def haproxy(facts: ProgramFacts, engine: EngineFacts | None) -> Finding:
    """Check that haproxy can be started, and that the version which runs is the installed one.

    :param engine: None: the daemon does not tell.
    """
    runs = engine is not None and engine.pid is not None
    if facts.cause:
        until = "; the one that runs goes on, and could not be started again" if runs else ""
        return wrong(f"{facts.cause}{until}", facts.remedy)
    if engine is not None and runs and engine.version != facts.version:
        return warning(f"haproxy {facts.version} is installed, but {engine.version} runs", _RELOAD)
    return ok(f"haproxy {facts.version}, {facts.binary}")


def haproxy_process(
    engine: EngineFacts, child: ChildFacts | None, *, wanted: str, now: datetime
) -> Iterator[Finding]:
    """Check that haproxy runs without privileges, and has not failed lately.

    :param child: None: its process cannot be seen.
    :param wanted: the user that it has to run as; empty: it is not known.
    """
    if fault := _engine_fault(engine):
        yield wrong(fault, _HAPROXY_LOG)
        return
    recent = engine.last_restart is not None and now - engine.last_restart <= RECENT
    again = "once" if engine.restarts == 1 else f"{engine.restarts} times"
    if child is None:
        yield unknown(f"the process of haproxy ({engine.pid}) cannot be seen")
    elif not child.uid or child.capabilities or (wanted and child.user != wanted):
        has = f"capabilities 0x{child.capabilities:x}" if child.capabilities else "no capability"
        yield wrong(
            f"haproxy (pid {engine.pid}) runs as user {child.user} with {has}: it has to run as "
            f"user {wanted or 'of [haproxy] user'} without any",
            "`systemctl restart dfmeta-agent`",
        )
    elif not recent:
        restarts = f"; it was started again {again} after a fault" if engine.restarts else ""
        yield ok(
            f"haproxy (pid {engine.pid}) runs as user {child.user} without capabilities{restarts}"
        )
    if recent and engine.last_restart is not None:
        ago = span(max((now - engine.last_restart).total_seconds(), 0.0))
        yield warning(
            f"haproxy was started again {again} after a fault, the last time {ago} ago: it "
            f"{engine.last_fault}",
            _HAPROXY_LOG,
        )


def _engine_fault(engine: EngineFacts) -> str:
    """Return why no haproxy serves guests with the present configuration; empty: one does."""
    if engine.pid is None:
        return f"no haproxy runs: {engine.fault or 'dfmeta-agent is about to start it'}"
    if engine.fault:
        return f"haproxy (pid {engine.pid}) does not answer dfmeta-agent: {engine.fault}"
    if engine.failed_replacement:
        return (
            f"haproxy (pid {engine.pid}) runs with a former configuration: the process that was "
            f"to replace it has not started: {engine.failed_replacement}"
        )
    return ""


def haproxy_files(engine: EngineFacts, child: ChildFacts) -> Finding:
    """Check that haproxy has descriptors left."""
    taken = f"{child.open} of {child.descriptors} files of haproxy are open"
    return _room(taken, child.open, child.descriptors, engine)


def haproxy_connections(engine: EngineFacts) -> Finding:
    """Check that haproxy accepts further connections of guests."""
    if engine.connections is None:
        return unknown("haproxy has not told its connections")
    taken = f"guests have {engine.connections} of {engine.maxconn} connections"
    return _room(taken, engine.connections, engine.maxconn, engine)


def _room(taken: str, count: int, limit: int, engine: EngineFacts) -> Finding:
    if count < NEARLY_FULL * limit:
        return ok(taken)
    remedy = f"raise [haproxy] maxconn above {engine.maxconn} and {_RELOAD}"
    if count >= limit:
        return wrong(f"{taken}: it accepts no further connection", remedy)
    return warning(f"{taken}: when all are, it accepts no further connection", remedy)


def haproxy_map(engine: EngineFacts) -> Finding:
    """Check that haproxy's map has the guests of the registry."""
    facts = engine.map
    if facts is None:
        return unknown("haproxy has not told its map")
    counts = {kind: getattr(facts, kind) for kind in ("missing", "superfluous", "different")}
    faults = [f"{count} {kind}" for kind, count in counts.items() if count]
    if not faults:
        return ok(f"haproxy's map has the {facts.entries} addresses of its guests")
    return wrong(
        f"haproxy's map differs from dfmeta-agent's guests: {', '.join(faults)}, of "
        f"{facts.entries} entries",
        "`systemctl restart dfmeta-agent`",
    )
