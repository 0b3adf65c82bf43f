"""The daemon as it is installed, on the compute node of :mod:`tests.harness.ovs`."""

import abc
import atexit
import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from tests.harness import netns, stand_in
from tests.harness.activator import Activator
from tests.harness.closing import Closing
from tests.harness.guest import Reply
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.harness.stand_in import ENGINE, StandIn

ADMIN_PORT = 9697
WORKERS = int(os.environ.get("DFMETA_TEST_WORKERS", "0"))
"""Workers of a daemon whose test does not set them; tools/soak runs some tests with others."""
SCHEME = os.environ.get("DFMETA_TEST_SCHEME", "in_port")
"""Identity scheme of a daemon whose test does not set it; tools/soak runs some tests with both."""
_SAMPLE = re.compile(r"^(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Options = Mapping[str, Mapping[str, object]]
"""Option groups: ``{"df_metadata": {"backend": "nova"}}``."""


def startable(program: Path) -> Path:
    """Return a program that each user can start: a copy, if the checkout is in a private folder."""
    if not program.exists() or all(folder.stat().st_mode & 0o001 for folder in program.parents):
        return program
    folder = netns.temporary_folder(program.name)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    return Path(shutil.copy(program, folder))


HAPROXY = startable(UNPACKED / "usr/sbin/haproxy")


def ini(options: Options) -> str:
    """Return the text of a file with these options."""
    lines = []
    for group, values in options.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items()), ""]
    return "\n".join(lines)


class Daemon(Closing):
    """A daemon with a configuration of its own; a context manager that ends it.

    One object may be started again after :meth:`stop` or :meth:`kill`: its files stay.
    """

    name: ClassVar[str]
    """The daemon's name in messages, and that of its program."""
    admin_timeout: float = DEADLINE
    """Seconds until an answer of the admin listener is given up."""

    def __init__(self, namespace: netns.Namespace, folder: str) -> None:
        """Make the folder; a subclass fills ``_options``, and calls :meth:`configure`."""
        self.namespace = namespace
        self.folder = netns.temporary_folder(folder)
        self.config_file = self.folder / "dfmeta.conf"
        self.stderr = self.folder / "stderr"
        self.prefix: list[str] = []
        """Words before the daemon's command, as a service manager would start it."""
        self.activator: Activator | None = None
        """Passes its listeners to each process."""
        self._process: subprocess.Popen[bytes] | None = None
        self._options: dict[str, dict[str, object]] = {}

    def close(self) -> None:
        """Kill the daemon if it runs, and remove its directory. Idempotent."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Return the process id of the daemon."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def configure(self, options: Options) -> None:
        """Change options (None removes one) and write the file; a start or SIGHUP reads it."""
        for group, values in options.items():
            for name, value in values.items():
                if value is None:
                    self._options.get(group, {}).pop(name, None)
                else:
                    self._options.setdefault(group, {})[name] = value
        self.config_file.write_text(ini(self._options))
        self.config_file.chmod(0o600)

    @abc.abstractmethod
    def start(self) -> Self:
        """Start the daemon, and wait until it is ready."""

    def _spawn(self, command: list[str], *, env: Mapping[str, str] | None = None) -> None:
        """Start *command* as it is installed.

        :param env: added to this process' environment.
        """
        passing = self.activator.prefix if self.activator else []
        with self.stderr.open("ab") as stderr:
            self._process = self.namespace.spawn(
                [*passing, *self.prefix, *command],
                env=env,
                stdout=stderr,
                stderr=stderr,
                pass_fds=self.activator.fds if self.activator else (),
            )

    def wait_ready(self) -> None:
        """Wait for ``/healthz/readiness``.

        :raises RuntimeError: the daemon has ended, or is not ready in time; with its log.
        """
        try:
            wait_for(self.ready, f"{self.name} to be ready")
        except TimeoutError as error:
            missing = ""
            with contextlib.suppress(OSError, http.client.HTTPException):
                missing = self.admin("/healthz/readiness").text
            raise RuntimeError(f"{error}: {missing}\n{self.tail()}") from None

    def readiness(self) -> int:
        """Return the status of ``/healthz/readiness``; 0 while the listener is not up."""
        if not self.running:
            raise RuntimeError(f"{self.name} ended with {self.exit_status()}:\n{self.tail()}")
        try:
            return self.admin("/healthz/readiness").status
        except (OSError, http.client.HTTPException):
            return 0

    def ready(self) -> bool:
        """Return whether the daemon reports readiness."""
        return self.readiness() == 200

    @property
    def admin_place(self) -> tuple[str, int]:
        """Return the address and the port of the admin listener."""
        host, _, port = str(self._options["df_metadata"]["admin_listen"]).rpartition(":")
        return host, int(port)

    def admin(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request to the admin listener, from the same host."""
        return ask(
            self.namespace,
            self.admin_place,
            path,
            method=method,
            body=body,
            headers=headers,
            timeout=self.admin_timeout,
        )

    def metrics(self) -> dict[str, float]:
        """Return every sample of ``/metrics``: ``name{labels}`` to its value."""
        return samples(self.admin("/metrics").text)

    def exit_status(self) -> int | None:
        """Return the exit status of the last process; None if it runs or was never started."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to the daemon."""
        self._running().send_signal(number)

    def wait(self, timeout: float = DEADLINE) -> int:
        """Wait until the daemon ends, and return its exit status."""
        return self._running().wait(timeout)

    def stop(self, timeout: float = DEADLINE) -> None:
        """Send SIGTERM; the daemon must end with status 0 within ``timeout`` seconds."""
        self.signal(signal.SIGTERM)
        try:
            status = self.wait(timeout)
        except subprocess.TimeoutExpired:
            waits = kernel_stacks(self._running().pid)
            raise AssertionError(
                f"{self.name} still runs {timeout:g} s after SIGTERM:\n{waits}\n{self.tail()}"
            ) from None
        if status:
            raise AssertionError(f"{self.name} ended with {status}:\n{self.tail()}")

    def kill(self) -> None:
        """Send SIGKILL, if the daemon runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE)

    def restart(self) -> None:
        """Stop and start the daemon."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return the output of all starts so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.stderr.read_text(errors="replace")
        return ""

    def tail(self, lines: int = 40) -> str:
        """Return the end of :meth:`log`."""
        return "\n".join(self.log().splitlines()[-lines:])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._process


class Agent(Daemon):
    """``dfmeta-agent`` on a host."""

    name = "dfmeta-agent"

    def __init__(self, host: OpenvSwitch, options: Options | None = None) -> None:
        """Write the configuration; :meth:`start` starts the daemon.

        :param options: added to, or replacing, the options for this host and backend=store.
        """
        super().__init__(host.namespace, "agent")
        self.host = host
        self.state_path = self.folder / "state"
        self.state_path.mkdir(mode=0o700)
        domains = self.folder / "domains"
        domains.mkdir()
        self.admin_port = ADMIN_PORT
        self._options = {
            "df_metadata": {
                "ovsdb_connection": host.ovsdb_connection,
                "integration_bridge": BRIDGE,
                "backend": "store",
                "state_path": self.state_path,
                "admin_listen": f"127.0.0.1:{ADMIN_PORT}",
                "proxy_workers": WORKERS,
                "identity_scheme": SCHEME,
                # Else the domains of this machine would decide.
                "libvirt_xml_path": domains,
            }
        }
        self._stand_in: StandIn | None = None
        set_by_test = (options or {}).get("df_metadata", {})
        if ENGINE == "haproxy" and not {"engine", "proxy_workers"} & set_by_test.keys():
            self._use_haproxy(str(set_by_test.get("backend", "")), options or {})
        self.configure(options or {})
        host.on_close(self.close)

    def _use_haproxy(self, backend: str, options: Options) -> None:
        if not backend and "store" not in options:
            self._stand_in = stand_in.of(self.host)
            self.configure(stand_in.OPTIONS)
            backend = "nova"
        if backend == "nova":
            engine = {"engine": ENGINE, "proxy_workers": 0}
            self.configure({"df_metadata": engine, "haproxy": {"binary": HAPROXY}})

    @property
    def admin_place(self) -> tuple[str, int]:
        """Return where the daemon listens, whatever the options say by now."""
        return "127.0.0.1", self.admin_port

    # Life

    def start(self, *, wait: bool = True) -> Self:
        """Start the daemon, and wait until it reports that it is ready."""
        if self.running:
            raise RuntimeError("dfmeta-agent is running already")
        command = [*program("dfmeta-agent"), "--config-file", str(self.config_file)]
        self._spawn(command)
        if wait:
            self.wait_ready()
        return self

    # Metrics

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric with these labels; 0 without samples."""
        total = 0.0
        for sample, value in self.metrics().items():
            base, _, rest = sample.partition("{")
            if base == name and labels.items() <= dict(_LABEL.findall(rest)).items():
                total += value
        return total

    # Other programs with the same configuration

    def run(self, *arguments: str, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Run ``dfmeta-agent --config-file … arguments`` to its end, with any exit status."""
        command = [*program("dfmeta-agent"), "--config-file", str(self.config_file), *arguments]
        return self.host.namespace.run(command, timeout=timeout, check=False)

    def clean_up(self) -> str:
        """Run ``dfmeta-agent --cleanup``, which must succeed, and return its log."""
        done = self.run("--cleanup")
        assert done.returncode == 0, done.stderr
        return done.stderr

    def ctl(
        self,
        *arguments: str,
        check: bool = True,
        stdin: str | None = None,
        timeout: float = DEADLINE,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``dfmeta arguments --config-file …`` on the host."""
        if self._stand_in is not None and arguments[:2] == ("store", "put"):
            self._stand_in.put(arguments[2:])
            return subprocess.CompletedProcess(arguments, 0, "", "")
        command = [*program("dfmeta"), *arguments, "--config-file", str(self.config_file)]
        return self.host.namespace.run(command, check=check, stdin=stdin, timeout=timeout)

    def put(self, instance_id: str, hostname: str) -> None:
        """Put a record into the store, as ``dfmeta store put --hostname`` does.

        A start of the command would take five times the CPU time, most of it for what it imports
        and compiles again.
        """
        if self._stand_in is not None or "connection" in self._options.get("store", {}):
            self.ctl("store", "put", instance_id, "--hostname", hostname)
            return
        # Only a test that puts a record needs a database.
        from dfmeta.store.db.repository import Repository

        path = self._options["df_metadata"]["state_path"]
        with Repository(f"sqlite:///{path}/store.db") as store:
            store.put(instance_id, document={"hostname": hostname})


def ask(
    namespace: netns.Namespace,
    place: tuple[str, int],
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    source: str = "",
    timeout: float = DEADLINE,
) -> Reply:
    """Send a request on a connection of its own, and return the answer.

    :raises http.client.HTTPException: the connection was closed without an answer.
    """
    connection = http.client.HTTPConnection(*place)
    with contextlib.closing(connection):
        connection.sock = namespace.connect(*place, source=source, timeout=timeout)
        connection.request(method, path, body, {"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        return Reply(status=answer.status, body=answer.read(), headers=tuple(answer.getheaders()))


def samples(text: str) -> dict[str, float]:
    """Return every sample in the text of ``/metrics``: ``name{labels}`` to its value."""
    result = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            result[line[: match.start("value")].strip()] = float(match["value"])
    return result


def kernel_stacks(pid: int) -> str:
    """Return the functions of the kernel in which the threads of a process wait (proc(5))."""
    result = []
    for stack in Path(f"/proc/{pid}/task").glob("*/stack"):
        with contextlib.suppress(OSError):  # the thread has ended
            result.append(f"{stack.parent.name}: {' '.join(stack.read_text().split()[1::2])}")
    return "\n".join(result)


def program(name: str) -> list[str]:
    """Return the command of a program as it is installed in this environment."""
    return [str(Path(sys.executable).with_name(name))]
