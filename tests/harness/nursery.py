"""Processes of dfmeta that begin with everything imported.

The imports are most of the CPU time of a daemon's start and of a command. A nursery imports once,
and forks a child for each start; the child joins its namespace, takes its arguments, environment
and descriptors, and calls the same ``main`` as the installed program. Parent and pid apart, a
test sees no difference: name, command line, signals and exit status are the program's own.

``pytest --prepared`` has the harness start programs so where a test does not say how they are to be
started. ``tools/test`` does so, and has the nurseries imported once for all processes of pytest.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from tests.harness import forking, kernel, netns, worker_forks
from tests.harness.activator import Activator
from tests.harness.netns import CommandError, Namespace
from tests.harness.poll import PATIENCE

_PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 15, 24, 38
_CAPABILITIES, _CAP_VERSION_3 = 41, 0x20080522
"""prctl(2), capset(2)."""
_USUAL: Final = 4
"""Descriptors of each child: a namespace and three streams."""
_FIRST, _ASIDE = 3, 100
"""The first number of a passed listener, and where none is in the way."""
_NAME: Final = "tests.harness.nursery"
_LINE: Final = 1024
"""Bytes of a command line."""
NEUTRON_AGENT: Final = "neutron-agent"
NEUTRON_SERVER: Final = "neutron-server"
CLOUD_INITS: Final = ("cloud-init", "cloud-init-requests-2.31", "cloud-init-requests-2.32")
"""See :data:`tests.harness.cloudinit.RELEASES`."""
SCRIPTS: Final = "scripts"
"""The harness' own programs, which use only the standard library."""
_PROGRAMS: Final = {
    "dfmeta-agent": (
        "dfmeta.cmd.agent",
        (
            "dfmeta.cmd.daemon",
            *worker_forks.IMPORTED,
            "dfmeta.ports.folders",
            "dfmeta.ports.libvirt",
            "dfmeta.ports.neutron",
            "dfmeta.ports.next_hops",
            "dfmeta.ports.records",
            "dfmeta.ports.attachments",
            "dfmeta.ports.trunk_details",
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
    NEUTRON_AGENT: (
        "tests.harness.neutron_launcher",
        (
            "neutron.agent.l2.extensions.dhcp.extension",
            "neutron.agent.l2.extensions.dns_forwarder",
            "neutron.agent.l2.extensions.metadata.metadata_path",
            "neutron.agent.l2.extensions.qos",
            "neutron.agent.linux.openvswitch_firewall",
            "neutron.plugins.ml2.drivers.openvswitch.agent.extension_drivers.qos_driver",
            "neutron.plugins.ml2.drivers.openvswitch.agent.openflow.native.ovs_oskenapp",
            "neutron.services.qos.drivers.openvswitch.driver",
            "neutron.services.trunk.drivers.openvswitch.agent.driver",
            "os_ken.app.ofctl.service",
            "os_ken.controller.ofp_handler",
            "oslo_messaging._drivers.impl_fake",
            "ovsdbapp.schema.open_vswitch.impl_idl",
        ),
    ),
    NEUTRON_SERVER: ("tests.harness.neutron_api_program", ()),
    **dict.fromkeys(CLOUD_INITS, ("tests.harness.cloudinit_forks", ())),
    SCRIPTS: (
        "tests.harness.client",
        (
            "tests.harness.echo",
            "tests.harness.flood",
            "tests.harness.greedy_client",
            "tests.harness.neutron_server",
            "tests.harness.nova_server",
            "tests.harness.tagger",
        ),
    ),
}
"""Program → the module that has its ``main``, and those that it imports later."""
_NEUTRON: Final = frozenset({NEUTRON_AGENT, NEUTRON_SERVER})
INTERPRETER: Final = ("/usr/bin/python3", "-W", "ignore", "-B")
"""Debian's own, with the python3-* packages that cloud-init imports; without warnings: deprecated
code in a release's modules does not concern these tests."""
GUEST: Final = ("/usr/bin/env", "product_name=OpenStack Nova", *INTERPRETER)
"""The same with what cloud-init reads in the environment that PID 1 began with (proc(5))."""
_PYTHON: Final = {
    **dict.fromkeys(_NEUTRON, (str(netns.ROOT / ".cache/neutron/bin/python"),)),
    **dict.fromkeys(CLOUD_INITS, GUEST),
}
"""Program → its interpreter, if it is another one."""
_PATCHED: Final = frozenset({"dfmeta-agent", "dfmeta-store"})
"""Programs that eventlet patches."""

SHARED: Final = "DFMETA_TEST_NURSERIES"
"""Environment variable with the directory of sockets at which nurseries serve several processes:
one for each program."""

_fork = os.fork
"""The system's own: eventlet may replace it later."""
enabled = False
"""Set by ``--prepared``."""


@contextlib.contextmanager
def as_installed() -> Iterator[None]:
    """Have a part of a test start programs as they are installed."""
    global enabled
    before, enabled = enabled, False
    try:
        yield
    finally:
        enabled = before


def serves(prefix: Sequence[str] = ()) -> bool:
    """Whether a program is started so: by itself, not by another one that gets words before it."""
    return enabled and not prefix


def serves_command(command: Sequence[str]) -> bool:
    """Whether this is the command of a program that is started so."""
    return serves() and os.path.basename(command[0]) in _PROGRAMS


def in_shell(command: Sequence[str], code: str = "") -> list[str]:
    """The command of a program as a shell's script starts it: a fork, if there is one for all.

    See ``stub.py``. Not for a shell that has given up rights: the fork has all.

    :param code: run in place of the program's ``main``.
    """
    name = os.path.basename(command[0])
    place = os.path.join(os.environ.get(SHARED, ""), name)
    if SHARED in os.environ and serves_command(command) and os.path.exists(place):
        path = str(Path(__file__).with_name("stub.py"))
        return [sys.executable, "-IS", path, place, _PROGRAMS[name][0], code, *command]
    return [sys.executable, "-c", code, *command[1:]] if code else list(command)


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
            # The nursery may have waited for it already, and not yet told its status.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """A process with everything of a program imported, and its children of this process."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        shared = os.path.join(os.environ.get(SHARED, ""), program)
        if SHARED in os.environ and os.path.exists(shared):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.connect(shared)
            atexit.register(self.close)
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                _command(program, str(number)), pass_fds=(number,), process_group=0
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it, or leave the shared one, and end its children of this process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket.close()

    def start(
        self,
        command: Sequence[str],
        *,
        namespace: Namespace | None,
        streams: tuple[int, int, int],
        env: Mapping[str, str] | None = None,
        rights: bool = True,
        module: str = "",
        workers: bool = False,
        activator: Activator | None = None,
    ) -> Forked:
        """Start a child in a process group of its own.

        :param command: the program's path and its arguments.
        :param namespace: None: that of this process, with the files that this one sees.
        :param module: the one whose ``main`` is called; empty: the program's first.
        :param env: added to this process' environment.
        :param streams: descriptors of its standard input, output and error.
        :param rights: False: without any capability, as setpriv(1) would start it.
        :param workers: whether it starts workers; see :mod:`tests.harness.worker_forks`.
        :param activator: passes its listeners.
        """
        message = {
            "arguments": list(command),
            "env": {**os.environ, **(env or {})},
            "resolv_conf": str((namespace and namespace.resolv_conf) or ""),
            "namespace": namespace.name if namespace else "",
            "rights": rights,
            "workers": workers,
            "module": module or _PROGRAMS[self._program][0],
            "listeners": activator.names if activator else [],
        }
        listeners = activator.fds if activator else ()
        place = f"/run/netns/{namespace.name}" if namespace else "/proc/self/ns/net"
        with open(place, "rb") as net:
            pid, ended = forking.order(self._socket, message, [net.fileno(), *streams, *listeners])
        return Forked(self._program, pid, ended)


@functools.cache
def nursery(program: str) -> Nursery:
    """The one of this process for a program."""
    return Nursery(program)


def run(
    command: Sequence[str],
    *,
    namespace: Namespace | None = None,
    stdin: str | None = None,
    timeout: float = 30,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of dfmeta to its end, as :meth:`tests.harness.netns.Namespace.run` does.

    As it is installed where *env* is given: an interpreter reads its own at its start. In the
    namespace of the tests if *namespace* is None.

    :raises CommandError, TimeoutExpired: as that does.
    """
    if env is not None or not serves_command(command):
        run_plainly = namespace.run if namespace else netns.run
        return run_plainly(command, stdin=stdin, timeout=timeout, check=check, env=env)
    program = os.path.basename(command[0])
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


def script(
    name: str,
    *arguments: str,
    namespace: Namespace,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes] | Forked:
    """Start one of :data:`SCRIPTS`.

    :param name: of its module in this package.
    :param stdin: its stream, as the others; None: nothing.
    """
    path = str(Path(__file__).with_name(f"{name}.py"))
    with open(os.devnull, "r+b") as nothing:
        streams = [nothing if one is None else one for one in (stdin, stdout, stderr)]
        if not serves():
            command = [sys.executable, "-IS", path, *arguments]
            taken, said, errors = streams
            return namespace.spawn(command, stdin=taken, stdout=said, stderr=errors)
        return nursery(SCRIPTS).start(
            [path, *arguments],
            namespace=namespace,
            streams=(streams[0].fileno(), streams[1].fileno(), streams[2].fileno()),
            module=f"{__package__}.{name}",
        )


def _command(program: str, place: str) -> list[str]:
    """The command of a nursery's process; the last argument is room for a child's command line."""
    return [*_PYTHON.get(program, (sys.executable,)), "-m", _NAME, program, place, "-" * _LINE]


# The nursery's own process


def main() -> None:
    """Import, fork for each order, and report each end; until the harness is gone.

    The second argument is the descriptor of the harness' connection, or the path at which the
    process listens for those of several harnesses.
    """
    program, place, *room = sys.argv[1:]
    if not room:
        command = _command(program, place)
        os.execv(command[0], command)
    module, later = _PROGRAMS[program]
    kernel.end_with_parent()
    # The hub's versions of sockets and of fork would start a hub, which no child may inherit.
    server = forking.Server(_become)
    if place.isdecimal():
        server.add(socket.socket(fileno=int(place)))
    else:
        server.listen(forking.listener(place))
    if program in _NEUTRON:
        os.environ["OSKEN_HUB_TYPE"] = "native"
    if program in _PATCHED:
        os.environ["OSKEN_HUB_TYPE"] = "eventlet"
        importlib.import_module("dfmeta.cmd.patching").patch()
    for name in (module, *later):
        importlib.import_module(name)
    if program == NEUTRON_SERVER:
        sys.modules[module].prepare()
    if program in CLOUD_INITS:
        sys.modules[module].prepare(program)
    if threading.active_count() > 1:
        sys.exit(f"modules of {program} have started threads: {threading.enumerate()}")
    # A collection in a child would copy every page of what it has inherited.
    gc.collect()
    gc.freeze()
    kernel.use_huge_pages()
    server.serve()


def _become(order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Be the program, to its end."""
    net, *streams = descriptors[:_USUAL]
    more = descriptors[_USUAL:]
    kernel.end_with_parent()
    os.setpgid(0, 0)
    if "directory" in order:
        kernel.call("setns", more[0], kernel.CLONE_NEWNS)
        os.chdir(order["directory"])
    _join(net, order["namespace"], order["resolv_conf"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    passed = [fcntl.fcntl(one, fcntl.F_DUPFD, _ASIDE) for one in more]
    for descriptor in descriptors:
        os.close(descriptor)
    if names := order.get("listeners"):
        order["env"] |= _pass_listeners(names, passed)
    for descriptor in passed:
        os.close(descriptor)
    open_streams()
    if not order["rights"]:
        _drop_rights()
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv[:] = order["arguments"]
    _rename([sys.executable, *sys.argv], os.path.basename(sys.argv[0]))
    if order["workers"]:
        worker_forks.prepare(_fork, kernel.end_with_parent, _become_module)
    _run(order["module"], order.get("code", ""))


def _become_module(command: Sequence[str]) -> NoReturn:
    """Be the module that ``python -m MODULE ARGUMENTS`` runs."""
    python, _option, module, *arguments = command
    sys.argv[:] = [module, *arguments]
    _rename(command, os.path.basename(python))
    _run(module)


def _run(module: str, code: str = "") -> NoReturn:
    try:
        if code:
            exec(code, {"__name__": "__main__"})
            sys.exit()
        sys.exit(importlib.import_module(module).main())
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            end(error.code or 0)
        raise


def _pass_listeners(names: Sequence[str], listeners: Sequence[int]) -> dict[str, str]:
    """Give them the numbers of sd_listen_fds(3); return the variables that say so."""
    # To open a file has begun a hub, which has one of the numbers.
    forking.end_hub()
    for number, listener in enumerate(listeners, _FIRST):
        if os.path.exists(f"/proc/self/fd/{number}"):
            sys.exit(f"descriptor {number} is not free")
        os.dup2(listener, number)
    count, listed = str(len(names)), ":".join(names)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": listed}


def open_streams() -> None:
    """Make Python's streams of the descriptors 0 to 2, which are others than at the start."""
    line = 1
    # They stay open to the end of the process. eventlet has os.fdopen make pipes of its own.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", line if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", line, errors="backslashreplace", closefd=False)  # noqa: SIM115


def end(status: int) -> NoReturn:
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
    """Do as ``ip netns exec`` does (ip-netns(8)), if the namespace has a name."""
    kernel.call("setns", net, kernel.CLONE_NEWNET)
    if not name:
        return
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
        kernel.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number))
    kernel.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))
    kernel.call("capset", (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def _rename(command: Sequence[str], name: str) -> None:
    """Have /proc show the name and the line of a command (proc(5))."""
    kernel.prctl(_PR_SET_NAME, ctypes.c_char_p(os.fsencode(name)[:15]))
    line = b"".join(os.fsencode(part) + b"\0" for part in command)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
