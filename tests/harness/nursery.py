"""Processes of dfmeta that begin with everything imported.

The imports are most of the CPU time of a daemon's start and of a command. A nursery imports once,
and forks a child for each start; the child joins its namespace, takes its arguments, environment
and descriptors, and calls the same ``main`` as the installed program. Parent and pid apart, a
test sees no difference: name, command line, signals and exit status are the program's own.

``pytest --prepared`` has the harness start programs so where a test does not say how they are to be
started. ``tools/test`` does so.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from tests.harness import kernel, netns
from tests.harness.netns import CommandError, Namespace
from tests.harness.poll import PATIENCE

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 15, 24, 38
_CAPABILITIES, _CAP_VERSION_3 = 41, 0x20080522
"""prctl(2), capset(2)."""
_MESSAGE: Final = 1 << 16
_LINE: Final = 1024
"""Bytes of a command line."""
_PROGRAMS: Final = {
    "dfmeta-agent": (
        "dfmeta.cmd.agent",
        (
            "dfmeta.cmd.daemon",
            "dfmeta.ports.folders",
            "dfmeta.ports.libvirt",
            "dfmeta.ports.neutron",
            "dfmeta.ports.records",
            "dfmeta.ports.attachments",
            "dfmeta.store.db.sqlite",
            "dfmeta.store.guest.backend",
            "dfmeta.wiring.api",
            "dfmeta.wiring.attachments",
            "dfmeta.wiring.database",
            "encodings.ascii",
            "encodings.idna",
            "keystoneauth1.identity",
            "keystoneauth1.loading",
            "sqlite3",
        ),
    ),
    "dfmeta-store": (
        "dfmeta.cmd.store",
        (
            "dfmeta.cmd.central",
            "dfmeta.store.auth.oidc",
            "dfmeta.store.db.sqlite",
            "dfmeta.store.guest.backend",
            "dfmeta.store.lookup.puller",
            "encodings.ascii",
            "encodings.idna",
            "sqlite3",
        ),
    ),
    "dfmeta": (
        "dfmeta.cli.ctl",
        (
            "dfmeta.cli.doctor_command",
            "dfmeta.cli.flows_command",
            "dfmeta.cli.ports_command",
            "dfmeta.cli.store_commands",
            "dfmeta.cli.subport_command",
            "dfmeta.cli.trace_command",
            "dfmeta.cli.trunk_command",
            "dfmeta.store.db.repository",
            "dfmeta.store.db.sqlite",
            "dfmeta.store.lookup.upstream",
            "encodings.ascii",
            "encodings.idna",
            "keystoneauth1.identity",
            "keystoneauth1.loading",
        ),
    ),
}
"""Program → the module that has its ``main``, and those that it imports later."""
_PATCHED: Final = frozenset({"dfmeta-agent", "dfmeta-store"})
"""Programs that eventlet patches."""

enabled = False
"""Set by ``--prepared``."""


def serves(prefix: Sequence[str] = (), descriptors: Sequence[int] = ()) -> bool:
    """Whether a program is started so: by itself, with no descriptor of a service manager's."""
    return enabled and not prefix and not descriptors


class Forked:
    """A child of a nursery, with the part of :class:`subprocess.Popen` that the harness uses."""

    def __init__(self, program: str, pid: int, ended: socket.socket) -> None:
        """:param ended: has the exit status as text, once the child has ended."""
        self.pid = pid
        self._program = program
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status, negative after a signal.

        :raises subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                self.returncode = int(self._ended.recv(16))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self._program, timeout or 0) from None
            self._ended.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """A process with everything of a program imported, and its children."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            # The last argument is room for a child's command line.
            command = [sys.executable, "-m", __name__, program, str(number), "-" * _LINE]
            # Coverage is measured in the children alone: what they find imported is measured by
            # the tests of units, and under a trace it takes three times as long to import.
            env = {name: value for name, value in os.environ.items() if name != netns.MEASURING}
            self._process = subprocess.Popen(command, env=env, pass_fds=(number,), process_group=0)
        atexit.register(self.close)

    def close(self) -> None:
        """End it, and with it its children."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def start(
        self,
        command: Sequence[str],
        *,
        namespace: Namespace,
        streams: tuple[int, int, int],
        rights: bool = True,
    ) -> Forked:
        """Start a child in a process group of its own.

        :param command: the program's path and its arguments.
        :param streams: descriptors of its standard input, output and error.
        :param rights: False: without any capability, as setpriv(1) would start it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "arguments": list(command),
            "env": netns.environment(command, None),
            "resolv_conf": str(namespace.resolv_conf or ""),
            "namespace": namespace.name,
            "rights": rights,
        }
        with theirs, open(f"/run/netns/{namespace.name}", "rb") as net:
            descriptors = [theirs.fileno(), net.fileno(), *streams]
            socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
        return Forked(self._program, int(ours.recv(16)), ours)


@functools.cache
def nursery(program: str) -> Nursery:
    """The one of this process for a program."""
    return Nursery(program)


def run(
    command: Sequence[str],
    *,
    namespace: Namespace,
    stdin: str | None = None,
    timeout: float = 30,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of dfmeta to its end, as :meth:`tests.harness.netns.Namespace.run` does.

    As it is installed where *env* is given: an interpreter reads its own at its start.

    :raises CommandError, TimeoutExpired: as that does.
    """
    program = os.path.basename(command[0])
    if env is not None or program not in _PROGRAMS or not serves():
        return namespace.run(command, stdin=stdin, timeout=timeout, check=check, env=env)
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(open(os.memfd_create(name), "w+b")) for name in ("in", "out", "err")
        ]
        files[0].write((stdin or "").encode(errors="surrogateescape"))
        files[0].seek(0)
        numbers = (files[0].fileno(), files[1].fileno(), files[2].fileno())
        child = nursery(program).start(command, namespace=namespace, streams=numbers)
        try:
            status = child.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        said = []
        for file in files[1:]:
            file.seek(0)
            said.append(file.read().decode(errors="surrogateescape"))
    if check and status:
        raise CommandError(command, status, *said)
    return subprocess.CompletedProcess(command, status, *said)


# The nursery's own process


def main() -> None:
    """Import, fork for each order, and report each end; until the harness is gone."""
    program, number = sys.argv[1:3]
    module, later = _PROGRAMS[program]
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    orders = socket.socket(fileno=int(number))
    # The hub's versions of these would start a hub, which no child may inherit.
    fork, waitpid, open_socket, poll = os.fork, os.waitpid, socket.socket, select.poll()
    if program in _PATCHED:
        os.environ["OSKEN_HUB_TYPE"] = "eventlet"
        importlib.import_module("dfmeta.cmd.patching").patch()
    for name in (module, *later):
        importlib.import_module(name)
    # A collection in a child would copy every page of what it has inherited.
    gc.collect()
    gc.freeze()
    poll.register(orders, select.POLLIN)
    running: dict[int, Child] = {}
    while True:
        ready = {one for one, _event in poll.poll()}
        for one in ready & running.keys():
            poll.unregister(one)
            running.pop(one).tell_end(waitpid)
        if orders.fileno() not in ready:
            continue
        message, descriptors, _flags, _address = socket.recv_fds(orders, _MESSAGE, 5)
        if not message:
            return
        ended = open_socket(fileno=descriptors[0])
        pid = fork()
        if pid == 0:
            inherited: list[Child | socket.socket] = [*running.values(), ended, orders]
            for each in inherited:
                each.close()
            _become(module, json.loads(message), descriptors[1], descriptors[2:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        ended.send(str(pid).encode())
        child = Child(pid, ended)
        poll.register(child.descriptor, select.POLLIN)
        running[child.descriptor] = child


class Child:
    """A running child, and the socket that gets its exit status."""

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self._pid, self._ended = pid, ended
        self.descriptor = os.pidfd_open(pid)
        """Readable once the child has ended (pidfd_open(2))."""

    def tell_end(self, waitpid: Callable[[int, int], tuple[int, int]]) -> None:
        """Send the exit status of the child that has ended."""
        _pid, status = waitpid(self._pid, 0)
        with contextlib.suppress(OSError):
            self._ended.send(str(os.waitstatus_to_exitcode(status)).encode())
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        self._ended.close()


def _become(module: str, order: dict[str, Any], net: int, streams: Sequence[int]) -> NoReturn:
    """Be the program, to its end."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    os.setpgid(0, 0)
    _join(net, order["namespace"], order["resolv_conf"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in {*streams, net}:
        os.close(descriptor)
    if not order["rights"]:
        _drop_rights()
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv[:] = order["arguments"]
    _rename([sys.executable, *sys.argv])
    if netns.MEASURING in os.environ:
        importlib.import_module("coverage").process_startup()
    try:
        sys.exit(importlib.import_module(module).main())
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            _end(error.code or 0)
        raise


def _end(status: int) -> NoReturn:
    """End as the interpreter does, but leave its objects: to free them copies all inherited pages.

    The order is that of Py_FinalizeEx (Python/pylifecycle.c). A stream that takes no more is left
    to the interpreter.
    """
    getattr(threading, "_shutdown")()  # noqa: B009  # it is not in the types of threading
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _join(net: int, name: str, resolv_conf: str) -> None:
    """Do as ``ip netns exec`` does (ip-netns(8))."""
    kernel.call("setns", net, kernel.CLONE_NEWNET)
    kernel.call("unshare", kernel.CLONE_NEWNS)
    kernel.call("mount", b"", b"/", b"none", kernel.MS_SLAVE | kernel.MS_REC, None)
    kernel.call("umount2", b"/sys", kernel.MNT_DETACH)
    kernel.call("mount", name.encode(), b"/sys", b"sysfs", 0, None)
    if resolv_conf:
        kernel.call(
            "mount", resolv_conf.encode(), b"/etc/resolv.conf", b"none", kernel.MS_BIND, None
        )


def _drop_rights() -> None:
    """Give up each capability for good (capabilities(7))."""
    for number in range(_CAPABILITIES):
        _prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number))
    _prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))
    kernel.call("capset", (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def _rename(command: Sequence[str]) -> None:
    """Have /proc show the command's name and its line (proc(5))."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(os.path.basename(command[1]).encode()[:15]))
    line = b"".join(part.encode() + b"\0" for part in command)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _prctl(option: int, value: Any) -> None:
    nothing = ctypes.c_ulong(0)
    kernel.call("prctl", option, value, nothing, nothing, nothing)


if __name__ == "__main__":
    main()
