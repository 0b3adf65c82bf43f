"""Reads processes in proc(5), such as the daemon with its rights. Standard library alone."""

import contextlib
import io
import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_UIDS: Final = re.compile(rb"^Uid:((?:\t[0-9]+){4})$", re.MULTILINE)
_PROGRAM_NAME: Final = b"dfmeta"
_WORKER: Final = b"dfmeta.cmd.worker"
_SO_ACCEPTCON: Final = 1 << 16
"""From linux/net.h."""
CAPABILITIES: Final = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_NICE": 23,
}
"""The capabilities that the checks use, with their numbers in linux/capability.h."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The daemon's process, from proc(5)."""

    pid: int
    uid: int = 0
    """Effective user id."""
    groups: Sequence[int] = ()
    """Effective group id and supplementary group ids."""
    capabilities: int = 0
    """Effective capabilities, as a bit mask."""
    descriptors: int = 0
    """Limit of open file descriptors (RLIMIT_NOFILE, soft)."""
    open: int = 0
    """Number of open file descriptors."""
    workers: Sequence[int] = ()
    """Process ids of its live workers."""

    def can(self, capability: str) -> bool:
        """Return whether the process has the capability of that name."""
        return bool(self.capabilities >> CAPABILITIES[capability] & 1)


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A unix socket that the daemon connects to; connect(2) needs write permission."""

    path: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """The users that processes of one kind run as, from proc(5)."""

    users: Sequence[str]
    """Names of the users, or numbers of those without a name."""
    sharers: Sequence[str] = ()
    """Other programs that run as one of these users, with their process ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """The process of haproxy, from proc(5)."""

    user: str
    """Name of its user, or the user's number."""
    uid: int
    capabilities: int
    """Inheritable, permitted, effective and ambient capabilities together, as a bit mask."""
    descriptors: int
    """Limit of open file descriptors (RLIMIT_NOFILE, soft)."""
    open: int
    """Number of open file descriptors."""


@dataclass(frozen=True, slots=True)
class NamedSocket:
    """A unix socket with a name."""

    name: str
    """A path, or ``@`` followed by a name in the abstract namespace."""
    inode: str
    listens: bool
    """Whether it is a listener. Each accepted connection has the listener's name as well."""


def of_each(file: str, *, proc: Path = PROC) -> Iterator[tuple[int, bytes]]:
    """Yield the pid of each process, and what a file of its directory has, if it can be read."""
    for name in os.listdir(proc):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(name), _bytes(f"{proc}/{name}/{file}")


def users(*, proc: Path = PROC) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the pid of each visible process with its real, effective, saved and file system uid."""
    for pid, status in of_each("status", proc=proc):
        line = _UIDS.search(status)
        if line is not None:
            yield pid, frozenset(map(int, line[1].split()))


def read_process(lock: str, *, proc: Path = PROC) -> ProcessFacts | None:
    """Read the process that holds *lock*; None when there is none or it is not visible.

    :param lock: name of a unix socket in the abstract namespace, without the ``@``.
    """
    inode = _inode(lock, proc)
    every = of_each("cmdline", proc=proc) if inode else ()
    # Of what may be the daemon or one of its workers.
    lines = {pid: line for pid, line in every if _PROGRAM_NAME in line}
    for pid in lines:
        with contextlib.suppress(OSError, ValueError):
            if _holds(proc / str(pid), inode):
                return _facts(pid, proc, lines)
    return None


def read_haproxy(pid: int, parent: int, *, proc: Path = PROC) -> ChildFacts | None:
    """Read the process of haproxy; None when it is not visible, or not a child of *parent*.

    :param pid: as the daemon says, which may be in another PID namespace.
    """
    folder = proc / str(pid)
    with contextlib.suppress(OSError, ValueError, KeyError):
        status = _status(folder)
        if int(status["PPid"]) != parent:
            return None
        uid = int(status["Uid"].split()[1])
        kinds = ("CapInh", "CapPrm", "CapEff", "CapAmb")
        capabilities = 0
        for kind in kinds:
            capabilities |= int(status[kind], 16)
        return ChildFacts(
            user=_name(uid),
            uid=uid,
            capabilities=capabilities,
            descriptors=_descriptors(folder),
            open=len(list((folder / "fd").iterdir())),
        )
    return None


def read_account(
    processes: Iterable[int], parent: int, *, proc: Path = PROC
) -> AccountFacts | None:
    """Read which other programs run as the users of some processes; None: they are not visible.

    :param processes: children of *parent*, whose other children may be the same users.
    """
    present = dict(users(proc=proc))
    wanted = {uid for pid in processes for uid in present.get(pid, ())}
    sharers = [
        f"{_program(proc / str(pid))} (pid {pid})"
        for pid, uids in present.items()
        if uids & wanted and not _is_of(proc / str(pid), parent)
    ]
    return AccountFacts(users=sorted(map(_name, wanted)), sharers=sharers) if wanted else None


def read_sockets(paths: Iterable[str]) -> tuple[SocketFacts, ...]:
    """Read owner, group and mode of each socket; paths that do not exist are left out."""
    sockets = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            sockets.append(SocketFacts(path, status.st_uid, status.st_gid, status.st_mode & 0o777))
    return tuple(sockets)


def named_sockets(*, proc: Path = PROC) -> Iterator[NamedSocket]:
    """Read the named unix sockets of this network namespace (``/proc/net/unix``).

    Trust: any user of the host may have given a socket its name.
    """
    with contextlib.suppress(OSError):
        for line in (proc / "net/unix").read_text(errors="replace").splitlines()[1:]:
            columns = line.split(maxsplit=7)
            if len(columns) == 8:
                listens = bool(int(columns[3], 16) & _SO_ACCEPTCON)
                yield NamedSocket(columns[7], columns[6], listens=listens)


def _inode(lock: str, proc: Path) -> str:
    """Return the inode of the socket that is the lock; empty when there is none."""
    inodes = (sock.inode for sock in named_sockets(proc=proc) if sock.name == f"@{lock}")
    return next(inodes, "")


def _holds(folder: Path, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    return any(_link(path) == wanted for path in (folder / "fd").iterdir())


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""  # it was closed in the meantime


def _facts(pid: int, proc: Path, lines: Mapping[int, bytes]) -> ProcessFacts:
    folder = proc / str(pid)
    status = _status(folder)
    return ProcessFacts(
        pid=pid,
        uid=int(status["Uid"].split()[1]),
        groups=(int(status["Gid"].split()[1]), *map(int, status["Groups"].split())),
        capabilities=int(status["CapEff"], 16),
        descriptors=_descriptors(folder),
        open=len(list((folder / "fd").iterdir())),
        workers=tuple(
            child
            for child, line in lines.items()
            if _WORKER in line and _is_of(proc / str(child), pid)
        ),
    )


def _descriptors(folder: Path) -> int:
    """Return the soft limit of open files."""
    limits = (folder / "limits").read_text().splitlines()
    (files,) = (line.split()[3] for line in limits if line.startswith("Max open files"))
    return int(files) if files.isdecimal() else 1 << 30


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _program(folder: Path) -> str:
    """Return the name of a process' program; its user may have chosen the name."""
    try:
        return (folder / "comm").read_bytes().decode("ascii", "replace").strip()
    except OSError:
        return "a process"  # it has ended in the meantime


def _is_of(folder: Path, parent: int) -> bool:
    """Return whether a process runs and is a child of *parent*."""
    with contextlib.suppress(OSError):
        status = _status(folder)
        return int(status["PPid"]) == parent and not status["State"].startswith(("Z", "X"))
    return False


def _status(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _bytes(path: str) -> bytes:
    """Return what a file has, with the calls that this needs: a host has thousands of processes."""
    file = os.open(path, os.O_RDONLY)
    try:
        content = part = os.read(file, io.DEFAULT_BUFFER_SIZE)
        while part:
            part = os.read(file, io.DEFAULT_BUFFER_SIZE)
            content += part
    finally:
        os.close(file)
    return content
