"""Network namespaces, veth pairs, and the processes in them.

Names are ``dfm-<pid>-…`` and temporary folders ``/tmp/dfm-<pid>-…``, or the same in /dev/shm:
each process may remove one whose process is gone, which :func:`remove_stale` does.
"""

import atexit
import contextlib
import functools
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tests.harness import kernel
from tests.harness.closing import Closing
from tests.harness.poll import DEADLINE, wait_for

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

KERNEL_DATAPATH = os.environ.get("DFMETA_TEST_DATAPATH", "netdev") == "system"
"""Whether bridges use the kernel's datapath, which few machines have: ``tools/real``."""
PREFIX = "dfm-"
TMP = Path("/tmp")
_RUN = Path("/run/netns")
_PLACES = (_RUN, TMP, Path("/dev/shm"))
_OWNED = re.compile(rf"{PREFIX}(\d+)-")
_counter = itertools.count()


class CommandError(RuntimeError):
    """A command ended with a status other than 0; the message has its output."""

    def __init__(self, command: Iterable[str], returncode: int, stdout: str, stderr: str) -> None:
        self.command = list(command)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        text = (stderr.strip() + "\n" + stdout.strip()).strip()
        super().__init__(f"{' '.join(self.command)}: exit {returncode}: {text}")


def run(
    command: Iterable[str],
    *,
    stdin: str | None = None,
    timeout: float = DEADLINE,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; text in, text out.

    :raises CommandError: it failed, unless ``check`` is false.
    :raises subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
    """
    command = list(command)
    raw = subprocess.run(
        command,
        input=(stdin or "").encode(errors="surrogateescape"),
        capture_output=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )
    # Not as text of subprocess: that would change the ends of lines.
    out, errors = (part.decode(errors="surrogateescape") for part in (raw.stdout, raw.stderr))
    if check and raw.returncode:
        raise CommandError(command, raw.returncode, out, errors)
    return subprocess.CompletedProcess(command, raw.returncode, out, errors)


def spawn(
    command: Iterable[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = subprocess.DEVNULL,
    stderr: int | IO[Any] | None = subprocess.DEVNULL,
    cwd: Path | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that is killed when this one (its starting thread, to be exact) ends.

    In a process group of its own, so that a terminal's ^C reaches only us.
    """
    command = list(command)
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        env={**os.environ, **(env or {})},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        pass_fds=pass_fds,
        process_group=0,
    )


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then SIGKILL if it is still there at the deadline; return the exit status."""
    process.terminate()
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait(DEADLINE)


def temporary_folder(name: str, *, place: Path = TMP) -> Path:
    """A new folder that :func:`remove_stale` knows; its path is short enough for unix sockets.

    :param place: /tmp, or /dev/shm for what is to be in memory.
    """
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{name}-", dir=place))


@functools.cache
def _given() -> dict[str, str]:
    """Variables that decide a program's output: the same on each machine, with an empty home."""
    home = temporary_folder("home")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return {"HOME": str(home), "LANG": "C.UTF-8", "LC_ALL": "", "TZ": "UTC"}


class Namespace(Closing):
    """A network namespace with loopback up; a context manager that removes it."""

    def __init__(self, name: str) -> None:
        """:param name: a hint; the real name has the pid and a number as well."""
        remove_stale()
        self.name = f"{PREFIX}{os.getpid()}-{next(_counter)}-{name}"
        self.resolv_conf: Path | None = None
        """A file that programs which are started from now on have as /etc/resolv.conf."""
        if f" {_RUN} " not in Path("/proc/self/mountinfo").read_text(encoding="utf-8"):
            # It makes the directory a shared mount for its first (ip-netns(8)).
            run(["ip", "netns", "add", self.name])
            run(["ip", "netns", "delete", self.name])
        try:
            kernel.add_net(_RUN / self.name)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    def close(self) -> None:
        """Kill what runs in it, then remove it. Idempotent."""
        _remove(self.name)

    def command(self, command: Iterable[str]) -> list[str]:
        """The command that runs ``command`` in this namespace."""
        bind: list[str] = []
        if self.resolv_conf is not None:
            # ``ip netns exec`` gives the program mounts of its own (ip-netns(8)).
            mount = 'mount --bind "$0" /etc/resolv.conf; exec "$@"'
            bind = ["sh", "-euc", mount, str(self.resolv_conf)]
        return ["ip", "netns", "exec", self.name, *bind, *command]

    def run(
        self, command: Iterable[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """As :func:`run`, inside."""
        return run(self.command(command), env={**_given(), **(env or {})}, **options)

    def spawn(
        self, command: Iterable[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """As :func:`spawn`, inside; the process' pid is that of the command itself."""
        return spawn(self.command(command), env={**_given(), **(env or {})}, **options)

    def ip(self, *lines: str, check: bool = True, six: bool = False) -> str:
        """Run ``ip`` with each line, in one process; return what it prints.

        :param check: false goes on after a line that fails.
        :param six: run ``ip -6``.
        """
        force = [] if check else ["-force"]
        force += ["-6"] if six else []
        batch = "\n".join(lines) + "\n"
        return run(
            ["ip", "-netns", self.name, *force, "-batch", "-"], stdin=batch, check=check
        ).stdout

    def sysctl(self, **values: int | str) -> None:
        """Set ``net.*`` values: ``sysctl(**{"net.ipv4.ip_forward": 1})``."""
        self.run(["sysctl", "-q", "-w", *(f"{name}={value}" for name, value in values.items())])

    def processes(self) -> list[int]:
        """Pids of everything that runs inside."""
        return kernel.processes_in(_RUN / self.name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Have this thread open its sockets in there, netlink's too."""
        with kernel.another_net(_RUN / self.name):
            yield

    def open_socket(
        self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM
    ) -> socket.socket:
        """A socket (TCP, unless told otherwise) of this namespace for a program outside of it."""
        with self.inside():
            return socket.socket(family, kind)

    def setting(self, name: str, value: str = "") -> str:
        """Return a setting below /proc/sys of this namespace; set it first if *value* is given."""
        path = Path("/proc/sys", name)
        with self.inside():
            if value:
                path.write_text(value, encoding="ascii")
            return path.read_text(encoding="ascii").strip()

    def connect(
        self, host: str, port: int, *, source: str = "", timeout: float = DEADLINE
    ) -> socket.socket:
        """A TCP connection that starts in this namespace.

        :param source: the address that it comes from; empty: the kernel chooses one.
        """
        connection = self.open_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            connection.settimeout(timeout)
            if source:
                connection.bind((source, 0))
            connection.connect((host, port))
        except BaseException:
            connection.close()
            raise
        return connection


def veth(
    first: Namespace,
    first_name: str,
    second: Namespace,
    second_name: str,
    *,
    mac: str = "",
    then: Iterable[str] = (),
) -> None:
    """A veth pair, both ends up; the first one gets no IPv6 address.

    For the userspace datapath, checksums are always complete: it does not complete them.

    :param mac: of the second end.
    :param then: more lines for ``ip`` in *second*.
    """
    address = f" address {mac}" if mac else ""
    first.ip(
        f"link add {first_name} type veth peer name {second_name}{address} netns {second.name}",
        # As the taps of guests: the host itself has no address on them.
        f"link set {first_name} addrgenmode none",
        f"link set {first_name} up",
    )
    if not KERNEL_DATAPATH:
        tx_off(first, first_name)
        tx_off(second, second_name)
    second.ip(f"link set {second_name} up", *then)


def tx_off(namespace: Namespace, device: str) -> None:
    """``ethtool -K <device> tx off``."""
    with namespace.inside():
        kernel.tx_off(device)


def remove_stale() -> None:
    """Remove the namespaces and folders of processes that are gone."""
    runs: dict[str, bool] = {}
    for path in _found(PREFIX):
        if owner := _OWNED.match(path.name):
            pid = owner[1]
            if pid not in runs:
                runs[pid] = os.path.exists(f"/proc/{pid}")
            if not runs[pid]:
                _discard(path)


def remove_own() -> None:
    """Remove the namespaces and folders of this process: the last line of defence at its exit."""
    for path in _found(f"{PREFIX}{os.getpid()}-"):
        _discard(path)


def _found(prefix: str) -> list[Path]:
    """Paths of all places whose names begin so; each new namespace looks for them."""
    result = []
    for place in _PLACES:
        with contextlib.suppress(FileNotFoundError):
            result += [place / name for name in os.listdir(place) if name.startswith(prefix)]
    return result


def _discard(path: Path) -> None:
    if path.parent == _RUN:
        _remove(path.name)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _remove(name: str) -> None:
    if not (_RUN / name).exists():
        return

    def emptied() -> bool:
        pids = kernel.processes_in(_RUN / name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    with contextlib.suppress(TimeoutError):
        wait_for(emptied, f"the processes in {name} to end")
    kernel.delete_net(_RUN / name)


if __name__ == "__main__":
    remove_stale()
    sys.exit(0)
