"""A PostgreSQL server in a directory of its own, from the binaries that tools/setup.sh unpacks.

It runs as an unprivileged user, in an IPC and a mount namespace of its own: a killed server leaves
a System V segment behind, which is removed with the namespace, and that user may have no access to
the directory of the checkout. A PostgreSQL that is installed on the machine is never used.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.netns import Namespace
from tests.harness.ovs import UNPACKED
from tests.harness.poll import wait_for

if TYPE_CHECKING:
    import psycopg

Mode = Literal["fast", "immediate"]
"""``fast`` ends the sessions and writes a checkpoint. After ``immediate``, the next start runs a
recovery."""

ROLE = "dfmeta"
"""Role that owns the tests' databases; it may log in and has no other right."""

_SUPERUSER = "postgres"
_SIGNALS: dict[Mode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
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
# Committed data still survive a SIGKILL, because the kernel has them.
_FORGETFUL = {"fsync": "off", "full_page_writes": "off"}
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30
"""Bytes of memory that must be free to keep data in memory; a database has eight million."""
_template: Path | None = None


class Postgres(Closing):
    """A server; a context manager that leaves nothing behind.

    It listens on a Unix socket in ``folder``, and on TCP if an address is given. It is killed
    when the thread that started it ends (see :func:`tests.harness.netns.spawn`).
    """

    def __init__(
        self,
        *,
        address: str = "",
        namespace: Namespace | None = None,
        durable: bool = False,
        connect_timeout: int = 0,
    ) -> None:
        """Start the server, on a port that the kernel chooses and that it keeps to the end.

        :param address: IPv4 or IPv6 address to listen on as well; of ``namespace`` if given.
        :param durable: each commit reaches the disk, as it does in production; otherwise the data
            may be in memory, and outlive the server's processes but not the machine.
        :param connect_timeout: seconds that the URLs of its databases allow for a connection; 0:
            the client's own default.
        :raises FileNotFoundError: tools/setup.sh has not run.
        """
        self.address = address
        self.port = 5432
        self.password = secrets.token_hex(16)
        """Password of :data:`ROLE`, for tests that search for it in logs."""
        self._namespace = namespace
        self._durable = durable
        self._connect_timeout = connect_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._settings = _SETTINGS | ({} if durable else _FORGETFUL)
        self._stack = contextlib.ExitStack()
        try:
            self._prepare()
            self.start()
            self.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{_verifier(self.password)}'")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server and remove its directory. Idempotent."""
        self._stack.close()

    # The server

    @property
    def running(self) -> bool:
        """Return whether the postmaster runs, paused or not."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[int]:
        """Return the pids of the server's processes, the postmaster's first."""
        process = self._running()
        return [process.pid, *_children(process.pid)]

    def start(self) -> None:
        """Start the server on its directory and port, and wait until it accepts connections.

        :raises RuntimeError: it runs already, or has ended at once; the message has its log.
        """
        if self.running:
            raise RuntimeError("PostgreSQL is running already")
        with self._log.open("ab") as log:
            command = _as_nobody(self.folder, "postgres", *self._options())
            if self._namespace is not None:
                command = self._namespace.command(command)
            self._process = netns.spawn(command, stdout=log, stderr=log)
        wait_for(self._ready, "PostgreSQL to take connections", interval=0.005)

    def stop(self, mode: Mode = "fast") -> int:
        """Stop the server despite open connections, and return its exit status.

        The server may be paused.
        """
        process = self._running()
        self.resume()
        process.send_signal(_SIGNALS[mode])
        return process.wait(60)

    def kill(self) -> None:
        """Send SIGKILL to all processes at once, as if the machine had lost its power."""
        self._kill()

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
            return self._log.read_text(errors="replace")
        return ""

    # Databases

    def url(self, database: str) -> str:
        """Return SQLAlchemy's URL of a database for :data:`ROLE`, with its password.

        The URL uses TCP if the server listens there, otherwise the Unix socket.
        """
        user = f"postgresql+psycopg://{ROLE}:{self.password}"
        limit = f"connect_timeout={self._connect_timeout}" if self._connect_timeout else ""
        if not self.address:
            url = f"{user}@/{database}?host={self.folder}&port={self.port}"
            return f"{url}&{limit}" if limit else url
        host = f"[{self.address}]" if ":" in self.address else self.address
        url = f"{user}@{host}:{self.port}/{database}"
        return f"{url}?{limit}" if limit else url

    def create_database(self, template: str = "template1") -> str:
        """Create a database that :data:`ROLE` owns, and return its URL. This takes some 40 ms.

        :param template: the name of a database to copy, without open connections.
        """
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database of this server by its URL, and end its connections."""
        name = urlsplit(url).path[1:]
        with self.admin() as connection:
            # FORCE checks again only after 0.1 s if a session is still ending.
            wait_for(
                lambda: not connection.execute(_CUT, [name]).fetchall(),
                f"the sessions in {name} to end",
                interval=0.001,
            )
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    @contextlib.contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """Yield a superuser's connection; each statement is a transaction of its own."""
        # Imported here, so that tests without PostgreSQL do not wait for it.
        import psycopg

        with psycopg.connect(
            host=str(self.folder),
            port=self.port,
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

    # Inside

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        template = _initialised()
        self.folder = _folder("pg", on_disk=self._durable)
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(self._end)
        netns.run(["cp", "-a", "--reflink=auto", str(template / "data"), str(self._data)])
        if self.address:
            held = self._stack.enter_context(self._reserve())
            self.port = held.getsockname()[1]

    def _reserve(self) -> socket.socket:
        """Return a socket that holds a port while the server is stopped.

        It does not listen, and both set SO_REUSEADDR. So the server may bind to the port as well,
        and the kernel gives the port to no other program.
        """
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        if self._namespace is None:
            held = socket.socket(family, socket.SOCK_STREAM)
        else:
            held = self._namespace.open_socket(family)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((self.address, 0))
        except BaseException:
            held.close()
            raise
        return held

    def _options(self) -> list[str]:
        settings = {
            **self._settings,
            "listen_addresses": self.address,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return ["-D", str(self._data), *options]

    def _ready(self) -> bool:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with status {process.returncode}: {self.log()}")
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            # A killed server leaves this file with another pid.
            return lines[:1] == [str(process.pid)] and lines[7:] == ["ready   "]
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("PostgreSQL is not running")
        return self._process

    def _end(self) -> None:
        """End the server with a signal that ends the children too; SIGKILL would leave them."""
        if self.running:
            try:
                self.stop("immediate")
            except subprocess.TimeoutExpired:
                self._kill()

    def _kill(self) -> None:
        process = self._running()
        self.pause()
        self._paused = False
        pids = self.processes()
        _signal(pids, signal.SIGKILL)
        process.wait(60)
        wait_for(
            lambda: all(_state(pid) in {"", "Z", "X"} for pid in pids),
            "the processes of PostgreSQL to end",
            interval=0.002,
        )


def _verifier(password: str) -> str:
    """What a server keeps of a password, with one round instead of 4,096 (RFC 5803).

    A client does all the rounds for each connection; they are a third of its time.
    """
    salt, rounds = secrets.token_bytes(16), 1
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, server64 = (base64.b64encode(one).decode() for one in (salt, stored, server))
    return f"SCRAM-SHA-256${rounds}:{salt64}${stored64}:{server64}"


def _initialised() -> Path:
    """Return a directory with the initial ``data`` of all servers, made once by each process."""
    global _template
    if _template is None or not _template.exists():
        folder = _folder("pg-template")
        arguments = ["-D", f"{folder}/data", "-U", _SUPERUSER, "--no-sync", "--no-instructions"]
        arguments += ["--encoding=UTF8", "--locale=C.UTF-8", "--wal-segsize=1"]
        netns.run(_as_nobody(folder, "initdb", *arguments))
        for name, text in _TEMPLATE_FILES.items():
            (folder / "data" / name).write_text(text)
        _template = folder
    return _template


def _folder(name: str, *, on_disk: bool = False) -> Path:
    """Make a temporary directory of the server's user; others may read it, to use the socket.

    It is in memory if possible: ext4 is slow to create files where many files were deleted just
    before (its ``recently_deleted``), and a server creates and deletes a thousand files.
    """
    in_memory = not on_disk and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM
    folder = netns.temporary_folder(name, place=_MEMORY if in_memory else netns.TMP)
    user = _nobody()
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    return folder


def _as_nobody(folder: Path, program: str, *arguments: str) -> list[str]:
    """Return the command that runs one of PostgreSQL's programs, in namespaces, as another user.

    The programs find their files relative to their own path, which is below ``folder`` there.
    """
    found = sorted(UNPACKED.glob(f"usr/lib/postgresql/*/bin/{program}"))
    if not found:
        raise FileNotFoundError(f"no PostgreSQL under {UNPACKED}: run tools/setup.sh")
    user = _nobody()
    mounted = folder / "usr"
    mounted.mkdir(exist_ok=True)
    return [
        *("unshare", "--ipc", "--mount", "--", "sh", "-c"),
        'mount -o bind,ro "$0" "$1" && shift && cd / && exec "$@"',
        *(str(UNPACKED / "usr"), str(mounted)),
        # A change of the user clears the signal at the parent's end, so it is set again.
        *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"),
        *("--pdeathsig=KILL", "--", "env", "-i", "LC_ALL=C.UTF-8", "TZ=UTC"),
        str(folder / found[-1].relative_to(UNPACKED)),
        *arguments,
    ]


def _nobody() -> pwd.struct_passwd:
    """Return an unprivileged user: PostgreSQL refuses root, and initdb a user without a name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("nobody")
    return next(user for user in pwd.getpwall() if user.pw_uid)


def _children(parent: int) -> list[int]:
    """Return the pids of a process's children; PostgreSQL's are children of the postmaster."""
    return [pid for pid in _pids() if _stat(pid)[1:2] == [str(parent)]]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _state(pid: int) -> str:
    """Return a process's state, proc(5): T stopped, Z zombie; empty if it does not exist."""
    return "".join(_stat(pid)[:1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
