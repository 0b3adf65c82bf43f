"""Drops privileges that a process does not need (capabilities(7), prctl(2), setrlimit(2)).

The daemon runs haproxy by ``python -m dfmeta.cmd.privileges USER DESCRIPTORS PARENT BINARY
ARGUMENT...``, with an empty USER for a user id that no other process has. haproxy keeps the
descriptors that this process has inherited, has no capability, and ends when the daemon ends:
without the daemon, no program would take a guest's entry away.

Trust: execve(2) makes the process dumpable again (prctl(2), PR_SET_DUMPABLE), so each process of
its account can read its memory. What keeps others out is that no other program has the account.
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dfmeta.host import accounts

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
FIRST = -5
"""Nice value of a daemon with workers; the nice value of the workers is 0."""
MEMORY = 2 << 30
"""Bytes of address space: far more than a worker needs, far less than the memory of a host."""
BUFFERS = 1 << 18
"""Bytes of address space for each connection of haproxy: far more than its buffers."""


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def allow_descriptors() -> None:
    """Raise the soft limit of open descriptors to the hard limit (getrlimit(2)).

    Each connection takes a descriptor, and the usual soft limit is 1,024.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def die_with_parent() -> None:
    """Make the kernel end this process when its parent process ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def go_first(priority: int = FIRST) -> None:
    """Give this process priority over its workers, if permitted (setpriority(2), CAP_SYS_NICE).

    Processing a first SYN takes a millisecond, and the guest waits for it.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, priority)


def drop(user: str, *, descriptors: int, memory: int = MEMORY) -> None:
    """Become *user*, if running as root, and drop all capabilities for good.

    :param user: name of a user; empty: a user id that no other process has.
    :param descriptors: maximum number of open descriptors.
    :param memory: bytes of address space.
    :raises SystemExit: with one line, when the kernel refuses; the process must not serve then.
    """
    try:
        _drop(user, descriptors, memory)
    except OSError as error:
        remedy = ": give dfmeta-agent CAP_SETUID, CAP_SETGID and CAP_SETPCAP"
        sys.exit(
            f"process {os.getpid()} cannot become user {user or '(an unused id)'}: {error}"
            f"{remedy if error.errno == errno.EPERM else ''}"
        )


def _drop(user: str, descriptors: int, memory: int) -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        descriptors = min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    if os.geteuid() == 0:
        account = accounts.named(user) if user else accounts.unused()
        for capability in range(int(LAST_CAPABILITY.read_text()) + 1):
            _prctl(_PR_CAPBSET_DROP, capability)
        os.setgroups([])
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        if not user and accounts.others(account.uid):
            # Another process has taken the number in the meantime.
            raise OSError(errno.EAGAIN, f"user id {account.uid} is in use")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = _Header(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(none)):
        _fail("capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    # Set again: a change of user clears it.
    die_with_parent()


def main(argv: Sequence[str] | None = None) -> None:
    """Drop the privileges and replace this process by haproxy; return only if its parent has ended.

    :raises SystemExit: with one line, when the kernel refuses to take the privileges away, or the
        user may not run the program.
    """
    user, descriptors, parent, binary, *arguments = sys.argv[1:] if argv is None else argv
    count = int(descriptors)
    drop(user, descriptors=count, memory=MEMORY + count * BUFFERS)
    if os.getppid() != int(parent):
        return
    try:
        # Without the environment, which may have secrets.
        os.execve(binary, [binary, *arguments], {})  # noqa: S606  # no shell is needed
    except OSError as error:
        sys.exit(f"user {user or os.geteuid()} cannot run {binary}: {error.strerror}")


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0):
        _fail(f"prctl {option}")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
