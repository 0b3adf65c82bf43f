"""A PostgreSQL server in a directory of its own, from the binaries that tools/setup.sh unpacks.

It runs as an unprivileged user, in an IPC and a mount namespace of its own: a killed server leaves
a System V segment behind, which is removed with the namespace, and that user may have no access to
the directory of the checkout. A PostgreSQL that is installed on the machine is never used.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.ovs import UNPACKED
from tests.harness.poll import wait_for

if TYPE_CHECKING:
    import psycopg

ROLE = "dfmeta"
"""Role that owns the tests' databases; it may log in and has no other right."""
PORT = 5432

_SUPERUSER = "postgres"
_TEMPLATE_FILES = {
    # Only the harness uses the superuser: root on this machine, through the socket.
    "pg_hba.conf": (
        f"local all {_SUPERUSER} peer map=harness\n"
        f"host all {_SUPERUSER} all reject\n"
        "local all all scram-sha-256\n"
        "host all all all scram-sha-256\n"
    ),
    "pg_ident.conf": f"harness {pwd.getpwuid(0).pw_name} {_SUPERUSER}\n",
}
_SETTINGS = {
    # Its workers would use a database that is being copied or dropped.
    "autovacuum": "off",
    # The other kinds leave files in /dev/shm after a SIGKILL.
    "dynamic_shared_memory_type": "mmap",
    # LLVM is not installed.
    "jit": "off",
    "log_line_prefix": "%m [%p] %d ",
    # Each thread of a test has a connection.
    "max_connections": "300",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    # Operators choose a server's time zone; code that assumes UTC must fail here.
    "timezone": "Asia/Kathmandu",
    "log_timezone": "UTC",
    "wal_level": "minimal",
}


class Postgres(Closing):
    """A server; a context manager that leaves nothing behind.

    It listens on a Unix socket in ``folder``. It is killed when the thread that started it ends
    (see :func:`tests.harness.netns.spawn`).
    """

    def __init__(self, *, connect_timeout: int = 0, durable: bool = False) -> None:
        """Start the server.

        :param connect_timeout: seconds that the URLs of its databases allow for a connection; 0:
            the client's own default.
        :param durable: commits reach the disk, as in production; else the kernel has them, so that
            they survive a SIGKILL.
        :raises FileNotFoundError: tools/setup.sh has not run.
        """
        self.password = secrets.token_hex(16)
        """Password of :data:`ROLE`, for tests that search for it in logs."""
        self._connect_timeout = connect_timeout
        self._process: subprocess.Popen[bytes] | None = None
        safe = "on" if durable else "off"
        self._settings = _SETTINGS | {"fsync": safe, "full_page_writes": safe}
        self._paused = False
        self._names = (f"test_{number}" for number in itertools.count(1))
        template = _initialised()
        self.folder = _folder("pg")
        try:
            netns.run(["cp", "-a", "--reflink=auto", f"{template}/data", f"{self.folder}/data"])
            self.start()
            self.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{self.password}'")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server and remove its directory. Idempotent."""
        if self._process is not None and self._process.poll() is None:
            try:
                self.stop(signal.SIGQUIT)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # The server

    def processes(self) -> list[int]:
        """Return the pids of the server's processes, the postmaster's first."""
        parent = self._running().pid
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [parent, *(pid for pid in pids if _stat(pid)[1:2] == [str(parent)])]

    def start(self) -> None:
        """Start the server on its directory, and wait until it accepts connections.

        :raises RuntimeError: it has ended at once; the message has its log.
        """
        settings = self._settings | {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self.folder),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = _as_nobody(self.folder, "postgres", "-D", f"{self.folder}/data", *options)
        with (self.folder / "log").open("ab") as log:
            self._process = netns.spawn(command, stdout=log, stderr=log)
        wait_for(self._ready, "PostgreSQL to take connections", interval=0.005)

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Stop the server despite open connections, paused or not, and return its exit status.

        :param how: SIGINT writes a checkpoint; after SIGQUIT, the next start runs a recovery.
        """
        process = self._running()
        self.resume()
        process.send_signal(how)
        return process.wait(60)

    def kill(self) -> None:
        """Send SIGKILL to all processes at once, as if the machine had lost its power."""
        process = self._running()
        self.pause()
        self._paused = False
        pids = self.processes()
        _signal(pids, signal.SIGKILL)
        process.wait(60)
        ended = {"", "Z", "X"}
        wait_for(lambda: all(_state(pid) in ended for pid in pids), "PostgreSQL to end")

    def pause(self) -> None:
        """Send SIGSTOP to all processes, so that the server seems to hang.

        The kernel still accepts connections, but there is no answer on them.
        """
        process = self._running()
        # First the postmaster, which starts the others.
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: _state(process.pid) == "T", "the postmaster to stop", interval=0.001)
        self._paused = True
        _signal(self.processes(), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after :meth:`pause`; otherwise do nothing."""
        if self._paused:
            self._paused = False
            _signal(self.processes(), signal.SIGCONT)

    def log(self) -> str:
        """Return the server's log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    # Databases

    def url(self, database: str) -> str:
        """Return SQLAlchemy's URL of a database for :data:`ROLE`, with its password."""
        options = [f"host={self.folder}", f"port={PORT}"]
        if self._connect_timeout:
            options.append(f"connect_timeout={self._connect_timeout}")
        role = f"{ROLE}:{self.password}"
        return f"postgresql+psycopg://{role}@/{database}?{'&'.join(options)}"

    def create_database(self) -> str:
        """Create a database that :data:`ROLE` owns, and return its URL. This takes some 40 ms."""
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} OWNER {ROLE}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database of this server by its URL, and end its connections."""
        self.execute(f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")

    @contextlib.contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """Yield a superuser's connection; each statement is a transaction of its own."""
        # Imported here, so that tests without PostgreSQL do not wait for it.
        import psycopg

        with psycopg.connect(
            host=str(self.folder),
            port=PORT,
            user=_SUPERUSER,
            dbname=database,
            autocommit=True,
            connect_timeout=60,
        ) as connection:
            yield connection

    def execute(self, statement: str) -> None:
        """Run a statement as the superuser."""
        with self.admin() as connection:
            connection.execute(statement.encode())

    def _ready(self) -> bool:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with status {process.returncode}: {self.log()}")
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "data/postmaster.pid").read_text().splitlines()
            # A killed server leaves this file with another pid.
            return lines[:1] == [str(process.pid)] and lines[7:] == ["ready   "]
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("PostgreSQL is not running")
        return self._process


@functools.cache
def _initialised() -> Path:
    """Return a directory with the initial ``data`` of all servers, made once by each process."""
    folder = _folder("pg-template")
    arguments = ["-D", f"{folder}/data", "-U", _SUPERUSER, "--no-sync", "--no-instructions"]
    arguments += ["--encoding=UTF8", "--locale=C.UTF-8", "--wal-segsize=1"]
    netns.run(_as_nobody(folder, "initdb", *arguments))
    for name, text in _TEMPLATE_FILES.items():
        (folder / "data" / name).write_text(text)
    return folder


def _folder(name: str) -> Path:
    """Make a temporary directory of the server's user; others may read it, to use the socket."""
    folder = netns.temporary_folder(name)
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    return folder


def _as_nobody(folder: Path, program: str, *arguments: str) -> list[str]:
    """Return the command that runs one of PostgreSQL's programs, in namespaces, as another user.

    The programs find their files relative to their own path, which is below ``folder`` there.
    """
    programs = sorted(UNPACKED.glob(f"usr/lib/postgresql/*/bin/{program}"))
    if not programs:
        raise FileNotFoundError(f"no PostgreSQL under {UNPACKED}: run tools/setup.sh")
    user = pwd.getpwnam("nobody")
    mounted = folder / "usr"
    mounted.mkdir(exist_ok=True)
    return [
        *("unshare", "--ipc", "--mount", "--", "sh", "-c"),
        'mount -o bind,ro "$0" "$1" && shift && cd / && exec "$@"',
        *(str(UNPACKED / "usr"), str(mounted)),
        # A change of the user clears the signal at the parent's end, so it is set again.
        *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"),
        *("--pdeathsig=KILL", "--", "env", "-i", "LC_ALL=C.UTF-8", "TZ=UTC"),
        str(folder / programs[-1].relative_to(UNPACKED)),
        *arguments,
    ]


def _state(pid: int) -> str:
    """Return a process's state, proc(5): T stopped, Z zombie; empty if it does not exist."""
    return "".join(_stat(pid)[:1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
