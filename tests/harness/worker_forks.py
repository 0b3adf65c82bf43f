"""Workers of a prepared daemon, as forks of what it was before it began.

A worker is an interpreter of its own, which imports for most of a second. The daemon of a test
leaves a copy of itself behind instead, which has everything imported, and forks a worker for each
start. The kernel makes the daemon its parent (CLONE_PARENT, clone(2)). It has the arguments, the
descriptors, the name and the command line of the installed one, and runs the same ``main``. Its
memory has also what the daemon imports, and /proc/PID/environ is the nursery's: a test of these
sets :attr:`tests.harness.agent.Agent.forks_workers`.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NoReturn, Protocol

from tests.harness import forking

_LAUNCHER: Final = "dfmeta.proxy.worker.workers"
IMPORTED: Final = (_LAUNCHER, "dfmeta.cmd.worker", "dfmeta.cmd.serving")
"""What the daemon's process and its workers need, to be imported before."""
_CLONE3: Final = 435
"""Its number on every architecture."""
_CLONE_PARENT: Final = 0x8000
_MESSAGE: Final = 1 << 12
_DESCRIPTORS: Final = 8


class Become(Protocol):
    """Makes a process the program with a command, to its end."""

    def __call__(self, command: Sequence[str]) -> NoReturn:
        """:param command: an interpreter, ``-m``, a module and its arguments."""


class Worker:
    """A worker, with the part of :class:`subprocess.Popen` that dfmeta uses."""

    def __init__(self, starter: socket.socket, command: Sequence[str], descriptors: Any) -> None:
        """:param descriptors: they have the same numbers in the worker.

        :raises OSError: it cannot be started.
        """
        order = {"arguments": list(command), "numbers": list(descriptors)}
        socket.send_fds(starter, [json.dumps(order).encode()], list(descriptors))
        self.pid = int(starter.recv(16))
        if self.pid < 0:
            raise OSError(-self.pid, os.strerror(-self.pid))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end, and return the exit status."""
        return self._wait(0)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def prepare(fork: Callable[[], int], end_with_parent: Callable[[], None], become: Become) -> None:
    """Have this process, which is to be a daemon, start its workers so.

    :param fork: the system's own, not eventlet's.
    :param end_with_parent: has the kernel end this process with its parent.
    :param become: makes this process the program with a command, to its end.
    """
    # As they are without eventlet, in a process that has no hub.
    sockets = importlib.import_module("eventlet.patcher").original("socket")
    ours, theirs = sockets.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = vars(sys.modules[_LAUNCHER])
    if fork() == 0:
        ours.close()
        end_with_parent()
        _serve(theirs, become)
    theirs.close()

    def start(command: Sequence[str], *, pass_fds: Sequence[int], **_streams: Any) -> Worker:
        return Worker(ours, command, pass_fds)

    used = launcher["subprocess"]
    launcher["subprocess"] = SimpleNamespace(Popen=start, DEVNULL=used.DEVNULL)


def _serve(orders: Any, become: Become) -> NoReturn:
    """Fork a worker for each order of the daemon, until the daemon has ended."""
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(orders, _MESSAGE, _DESCRIPTORS)
        if not message:
            os._exit(0)
        pid = _fork_for_parent()
        if pid == 0:
            # To fork has begun one of this process.
            forking.end_hub()
            order = json.loads(message)
            _arrange(descriptors, order["numbers"])
            os.chdir("/")
            become(order["arguments"])
        for one in descriptors:
            os.close(one)
        orders.send(str(pid).encode())


def _fork_for_parent() -> int:
    """Fork a child of this process' parent.

    :return: 0 in the child; its pid here, or the negative number of an error.
    """
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal and six more. The child's
    # end is told as that of this process is.
    arguments = (ctypes.c_uint64 * 11)(_CLONE_PARENT)
    # The interpreter's lock is held meanwhile.
    libc = ctypes.PyDLL(None, use_errno=True)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = libc.syscall(_CLONE3, arguments, ctypes.sizeof(arguments))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid if pid > 0 else -number


def _arrange(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors their numbers, have nothing at the standard input, and close all others."""
    above = max(*descriptors, *numbers) + 1
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, above) for one in descriptors]
    os.closerange(3, above)
    for one, number in zip(moved, numbers, strict=True):
        os.dup2(one, number)
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(above, limit)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
