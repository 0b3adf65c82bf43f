"""``dfmeta-store`` as it is installed, without any privileges, and clients with addresses."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Self

from dfmeta.store.db.record import KEEP, Keep, Kind
from dfmeta.store.db.repository import Repository
from tests.harness import nursery
from tests.harness.agent import ADMIN_PORT, Answer, Daemon, Options, program, samples
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for
from tests.harness.records import push

GUEST_PORT = 8080
_NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")


class Central(Daemon):
    """The service in a namespace of its own."""

    name = "dfmeta-store"

    def __init__(self, options: Options | None = None, *, namespace: Namespace) -> None:
        """Write the configuration; :meth:`start` starts the service.

        :param options: added to, or replacing, the options that make it serve the namespace.
        """
        super().__init__(namespace, "central")
        self.prefix = list(_NO_RIGHTS)
        self.command = program("dfmeta-store")
        self._options = {
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

    # Life

    def start(self, *, wait: bool = True) -> Self:
        """Start the service, and wait until it reports that it is ready."""
        if self.running:
            raise RuntimeError("dfmeta-store is running already")
        command = [*self.command, "--config-file", str(self.config_file)]
        usual = self.prefix == list(_NO_RIGHTS) and self.command == program("dfmeta-store")
        self._spawn(command, forked=usual and nursery.serves((), self.pass_fds), rights=False)
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

    # Logs, metrics and answers

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
            push(
                repository,
                Kind.METADATA,
                record_id,
                content={"hostname": hostname},
                networks=[ip_network(text) for text in networks],
                http_tokens=http_tokens,
            )


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
