"""The daemon as it is installed, on the compute node of :mod:`tests.harness.ovs`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness import netns, nursery
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import PATIENCE, wait_for

ADMIN_PORT = 9697
WORKERS = int(os.environ.get("DFMETA_TEST_WORKERS", "0"))
"""How many workers every daemon has whose test does not say it; tools/soak runs some tests so."""
_SAMPLE = re.compile(r"^(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Options = Mapping[str, Mapping[str, object]]
"""Option groups: ``{"df_metadata": {"backend": "nova"}}``."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of the admin listener."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Agent:
    """``dfmeta-agent`` with a configuration of its own; a context manager that ends it.

    One object may be started again after :meth:`stop` or :meth:`kill`: its ``state_path`` stays.
    """

    def __init__(self, host: OpenvSwitch, options: Options | None = None) -> None:
        """Write the configuration; :meth:`start` starts.

        :param options: on top of, or instead of, what makes it use this host and backend=store.
        """
        self.host = host
        self.folder = netns.temporary_folder("agent")
        self.config_file = self.folder / "dfmeta.conf"
        self.state_path = self.folder / "state"
        self.state_path.mkdir(mode=0o700)
        self.stderr = self.folder / "stderr"
        self.admin_timeout = 5.0 * PATIENCE
        self.admin_port = ADMIN_PORT
        self.prefix: list[str] = []
        """What starts it, as a service manager would: before its own command."""
        self.pass_fds: tuple[int, ...] = ()
        """What that is to inherit."""
        self._process: subprocess.Popen[bytes] | nursery.Forked | None = None
        self._options: dict[str, dict[str, object]] = {
            "df_metadata": {
                "ovsdb_connection": host.ovsdb_connection,
                "integration_bridge": BRIDGE,
                "backend": "store",
                "state_path": self.state_path,
                "admin_listen": f"127.0.0.1:{ADMIN_PORT}",
                "proxy_workers": WORKERS,
            }
        }
        self.configure(options or {})
        host.on_close(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it if it runs and remove its folder. Idempotent."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Life

    @property
    def pid(self) -> int:
        """Of the running daemon."""
        if self._process is None:
            raise RuntimeError("dfmeta-agent has not been started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def configure(self, options: Options) -> None:
        """Change options (None removes one) and write the file; a start or SIGHUP reads it."""
        for group, values in options.items():
            for name, value in values.items():
                if value is None:
                    self._options.get(group, {}).pop(name, None)
                else:
                    self._options.setdefault(group, {})[name] = value
        lines = []
        for group, known in self._options.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in known.items()), ""]
        self.config_file.write_text("\n".join(lines))
        self.config_file.chmod(0o600)

    def start(self, *, wait: bool = True, timeout: float = 30) -> Self:
        """Start it, and wait until it says that it is ready."""
        if self.running:
            raise RuntimeError("dfmeta-agent is running already")
        command = [*program("dfmeta-agent"), "--config-file", str(self.config_file)]
        namespace = self.host.namespace
        with self.stderr.open("ab") as stderr, open(os.devnull, "rb") as nothing:
            if nursery.serves(self.prefix, self.pass_fds):
                self._process = nursery.nursery("dfmeta-agent").start(
                    command,
                    namespace=namespace,
                    streams=(nothing.fileno(), stderr.fileno(), stderr.fileno()),
                )
            else:
                self._process = namespace.spawn(
                    [*self.prefix, *command], stdout=stderr, stderr=stderr, pass_fds=self.pass_fds
                )
        if wait:
            self.wait_ready(timeout)
        return self

    def wait_ready(self, timeout: float = 30) -> None:
        """Wait for ``/healthz/readiness``.

        :raises RuntimeError: the daemon ended meanwhile, or is not ready in time; with its log.
        """
        try:
            wait_for(self.ready, timeout, "dfmeta-agent to be ready")
        except TimeoutError as error:
            missing = ""
            with contextlib.suppress(OSError, http.client.HTTPException):
                missing = self.admin("/healthz/readiness").text
            raise RuntimeError(f"{error}: {missing}\n{self.tail()}") from None

    def ready(self) -> bool:
        """What readiness says; false as well while the listener is not up."""
        if not self.running:
            raise RuntimeError(f"dfmeta-agent ended with {self.exit_status()}:\n{self.tail()}")
        try:
            return self.admin("/healthz/readiness").status == 200
        except (OSError, http.client.HTTPException):
            return False

    def exit_status(self) -> int | None:
        """Of the last process; None while it runs or if there was none."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._running().send_signal(number)

    def wait(self, timeout: float = 5) -> int:
        """Wait for its end; its exit status."""
        return self._running().wait(timeout * PATIENCE)

    def stop(self, timeout: float = 5) -> None:
        """SIGTERM; it has to end with 0 within ``timeout`` seconds."""
        self.signal(signal.SIGTERM)
        try:
            status = self.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"dfmeta-agent still runs {timeout:g} s after SIGTERM:\n{self.tail()}"
            ) from None
        if status:
            raise AssertionError(f"dfmeta-agent ended with {status}:\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    # What it says

    def log(self) -> str:
        """Everything it has written so far, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self.stderr.read_text(errors="replace")
        return ""

    def tail(self, lines: int = 40) -> str:
        """The end of :meth:`log`."""
        return "\n".join(self.log().splitlines()[-lines:])

    def admin(self, path: str, *, method: str = "GET", body: bytes | None = None) -> Answer:
        """A request to the admin listener."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port)
        with contextlib.closing(connection):
            connection.sock = self.host.namespace.connect("127.0.0.1", self.admin_port)
            connection.sock.settimeout(self.admin_timeout)
            connection.request(method, path, body, {"Connection": "close"})
            answer = connection.getresponse()
            return Answer(
                status=answer.status, body=answer.read(), headers=tuple(answer.getheaders())
            )

    def metrics(self) -> dict[str, float]:
        """Every sample of ``/metrics``: ``name{labels}`` to its value."""
        return samples(self.admin("/metrics").text)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 if there are none."""
        total = 0.0
        for sample, value in self.metrics().items():
            base, _, rest = sample.partition("{")
            if base == name and labels.items() <= dict(_LABEL.findall(rest)).items():
                total += value
        return total

    # Other programs with the same configuration

    def run(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """``dfmeta-agent --config-file … arguments`` to its end, whatever that is."""
        command = [*program("dfmeta-agent"), "--config-file", str(self.config_file), *arguments]
        return self.host.namespace.run(command, timeout=timeout, check=False)

    def ctl(
        self, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """``dfmeta arguments --config-file …`` on the host."""
        command = [*program("dfmeta"), *arguments, "--config-file", str(self.config_file)]
        namespace = self.host.namespace
        return nursery.run(command, namespace=namespace, check=check, stdin=stdin, timeout=timeout)

    def _running(self) -> subprocess.Popen[bytes] | nursery.Forked:
        if self._process is None:
            raise RuntimeError("dfmeta-agent has not been started")
        return self._process


def samples(text: str) -> dict[str, float]:
    """Every sample of a ``/metrics``: ``name{labels}`` to its value."""
    found = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            found[line[: match.start("value")].strip()] = float(match["value"])
    return found


def program(name: str) -> list[str]:
    """The installed console script of this interpreter's environment, or its module."""
    script = Path(sys.executable).with_name(name)
    if script.exists():
        return [str(script)]
    modules = {
        "dfmeta-agent": "dfmeta.cmd.agent",
        "dfmeta-store": "dfmeta.cmd.store",
        "dfmeta": "dfmeta.cli.ctl",
    }
    return [sys.executable, "-m", modules[name]]
