"""``dfmeta-store`` as it is installed, without any privileges, and clients with addresses."""

from ipaddress import ip_network
from typing import Self

from dfmeta.store.db.record import KEEP, Keep, Kind
from dfmeta.store.db.repository import Repository
from tests.harness.agent import ADMIN_PORT, Daemon, Options, program
from tests.harness.netns import Namespace
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
        self._spawn(command)
        if wait:
            self.wait_ready()
        return self

    def ctl(self, *arguments: str) -> str:
        """Run ``dfmeta arguments --config-file …`` on the same host, and return its output."""
        command = [*program("dfmeta"), *arguments, "--config-file", str(self.config_file)]
        return self.namespace.run(command).stdout

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
