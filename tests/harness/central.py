"""``dfmeta-store`` as it is installed, without any privileges, and clients with addresses."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Self

from dfmeta.store.db.record import KEEP, Keep, Kind
from dfmeta.store.db.repository import Repository
from tests.harness import netns, nursery
from tests.harness.agent import ADMIN_PORT, Answer, Options, ini, program, samples
from tests.harness.closing import Closing
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for

GUEST_PORT = 8080
_NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")


class Central(Closing):
    """The service in a namespace of its own; a context manager that ends it.

    One object may be started again after :meth:`stop` or :meth:`kill`: its ``state_path`` stays.
    """

    def __init__(self, options: Options | None = None, *, namespace: Namespace) -> None:
        """Write the configuration; :meth:`start` starts the service.

        :param options: added to, or replacing, the options that make it serve the namespace.
        """
        self.namespace = namespace
        self.folder = netns.temporary_folder("central")
        self.config_file = self.folder / "dfmeta.conf"
        self.stderr = self.folder / "stderr"
        self.prefix: list[str] = list(_NO_RIGHTS)
        """Words before the service's command, as a service manager would start it."""
        self.command = program("dfmeta-store")
        self.pass_fds: tuple[int, ...] = ()
        """File descriptors that the process inherits."""
        self._process: subprocess.Popen[bytes] | nursery.Forked | None = None
        self._options: dict[str, dict[str, object]] = {
            "df_metadata": {
                "state_path": self.folder / "state",
                "admin_listen": f"127.0.0.1:{ADMIN_PORT}",
            },
            "store": {
                "connection": f"sqlite:///{self.folder}/state/store.db",
                "guest_listen": f"[::]:{GUEST_PORT}",
            },
        }
        self.configure(options or {})

    def close(self) -> None:
        """Kill the service, and remove its directory."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Life

    @property
    def pid(self) -> int:
        """Return the process id of the service."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def configure(self, options: Options) -> None:
        """Change options and write the file; a start or SIGHUP reads it."""
        for group, values in options.items():
            self._options.setdefault(group, {}).update(values)
        self.config_file.write_text(ini(self._options))
        self.config_file.chmod(0o600)

    def start(self, *, wait: bool = True) -> Self:
        """Start the service, and wait until it reports that it is ready."""
        if self.running:
            raise RuntimeError("dfmeta-store is running already")
        command = [*self.command, "--config-file", str(self.config_file)]
        usual = self.prefix == list(_NO_RIGHTS) and self.command == program("dfmeta-store")
        with self.stderr.open("ab") as stderr, open(os.devnull, "rb") as nothing:
            if usual and nursery.serves((), self.pass_fds):
                self._process = nursery.nursery("dfmeta-store").start(
                    command,
                    namespace=self.namespace,
                    streams=(nothing.fileno(), stderr.fileno(), stderr.fileno()),
                    rights=False,
                )
            else:
                self._process = self.namespace.spawn(
                    [*self.prefix, *command], stdout=stderr, stderr=stderr, pass_fds=self.pass_fds
                )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = 30) -> None:
        """Wait for ``/healthz/readiness``.

        :raises RuntimeError: the service has ended, or is not ready in time; with its log.
        """
        try:
            wait_for(lambda: self.readiness() == 200, timeout, "dfmeta-store to be ready")
        except TimeoutError as error:
            raise RuntimeError(f"{error}:\n{self.log()}") from None

    def readiness(self) -> int:
        """Return the status of ``/healthz/readiness``; 0 while the listener is not up."""
        if not self.running:
            raise RuntimeError(f"dfmeta-store ended:\n{self.log()}")
        try:
            return self.admin("/healthz/readiness").status
        except (OSError, http.client.HTTPException):
            return 0

    def signal(self, number: int) -> None:
        """Send a signal to the service."""
        self._started().send_signal(number)

    def wait(self, timeout: float = 5) -> int:
        """Wait until the service ends, and return its exit status."""
        return self._started().wait(timeout)

    def stop(self) -> None:
        """Send SIGTERM; the service must end with status 0 within 5 seconds."""
        self.signal(signal.SIGTERM)
        status = self.wait()
        if status:
            raise AssertionError(f"dfmeta-store ended with {status}:\n{self.log()}")

    def kill(self) -> None:
        """Send SIGKILL, if the service runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    # Logs, metrics and answers

    def log(self) -> str:
        """Return the output of all starts so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.stderr.read_text(errors="replace")
        return ""

    def admin(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to the admin listener, from the same host."""
        host, _, port = str(self._options["df_metadata"]["admin_listen"]).rpartition(":")
        return ask(
            self.namespace,
            (host, int(port)),
            path,
            method=method,
            body=body,
            headers=headers,
        )

    def metrics(self) -> dict[str, float]:
        """Return every sample of ``/metrics``: ``name{labels}`` to its value."""
        return samples(self.admin("/metrics").text)

    def ctl(self, *arguments: str) -> str:
        """Run ``dfmeta arguments --config-file …`` on the same host, and return its output."""
        command = [*program("dfmeta"), *arguments, "--config-file", str(self.config_file)]
        return nursery.run(command, namespace=self.namespace).stdout

    # The database

    @property
    def url(self) -> str:
        """Return the URL of the service's database."""
        return str(self._options["store"]["connection"])

    def push(
        self, record_id: str, hostname: str, *networks: str, http_tokens: str | Keep = KEEP
    ) -> None:
        """Write a record into the database, as another process that shares it would."""
        with Repository(self.url) as repository:
            repository.push(
                Kind.METADATA,
                record_id,
                content={"hostname": hostname},
                networks=[ip_network(text) for text in networks],
                http_tokens=http_tokens,
            )

    def _started(self) -> subprocess.Popen[bytes] | nursery.Forked:
        if self._process is None:
            raise RuntimeError("dfmeta-store has not been started")
        return self._process


def connect(
    namespace: Namespace, place: tuple[str, int], *, source: str = "", timeout: float = 10
) -> socket.socket:
    """Open a TCP connection from a namespace, over IPv4 or IPv6."""
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    sock = namespace.open_socket(family)
    try:
        sock.settimeout(timeout)
        if source:
            sock.bind((source, 0))
        sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def ask(
    namespace: Namespace,
    place: tuple[str, int],
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    source: str = "",
    timeout: float = 10,
) -> Answer:
    """Send a request on a connection of its own, and return the answer.

    :raises http.client.HTTPException: the connection was closed without an answer.
    """
    connection = http.client.HTTPConnection(*place)
    with contextlib.closing(connection):
        connection.sock = connect(namespace, place, source=source, timeout=timeout)
        connection.request(method, path, body, {"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        return Answer(status=answer.status, body=answer.read(), headers=tuple(answer.getheaders()))
