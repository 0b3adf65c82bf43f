"""Nova's own metadata API, under uWSGI as devstack starts it, in a namespace.

tools/setup.sh installs it in an environment of its own; ``instances.py`` runs there as well, and
makes its databases. There is no Keystone: Nova asks neutron-server as an administrator.
"""

import base64
import http.client
import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.harness import netns
from tests.harness.agent import ask, ini
from tests.harness.closing import Closing
from tests.harness.netns import ROOT, Namespace
from tests.harness.nova import SECRET
from tests.harness.poll import wait_for
from tests.host.neutron.api import NeutronServer

HOME = ROOT / ".cache/nova"
PORT = 8775
_UWSGI = {
    "module": "nova.wsgi.metadata:application",
    "master": "true",
    "processes": "1",
    "enable-threads": "true",
    "lazy-apps": "true",
    "thunder-lock": "true",
    "buffer-size": "65535",
    "add-header": "Connection: close",
    "die-on-term": "true",
}
_REQUEST = re.compile(r"(?:GET|POST|HEAD) (\S+) => generated \d+ bytes .*\(HTTP/1.1 (\d+)\)")


class NovaServer(Closing):
    """The metadata API, for the instances that :meth:`put` makes; a context manager.

    :param neutron: the server with their ports.
    """

    def __init__(
        self,
        namespace: Namespace,
        neutron: NeutronServer,
        *,
        host: str = "127.0.0.1",
        secret: str = SECRET,
    ) -> None:
        if not (HOME / "bin/uwsgi").exists():
            raise FileNotFoundError(f"no uwsgi in {HOME}: run tools/setup.sh --neutron")
        self._namespace, self._place = namespace, (host, PORT)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.folder = netns.temporary_folder("nova", place=Path("/dev/shm"))
        options = {
            "DEFAULT": {
                "transport_url": "fake:///",
                "concurrency_backend": "threading",
                "state_path": self.folder,
            },
            "api_database": {"connection": f"sqlite:///{self.folder}/api.db"},
            "database": {"connection": f"sqlite:///{self.folder}/cell1.db"},
            # Until a document is read again, a second password is accepted.
            "api": {"metadata_cache_expiration": 1},
            "neutron": {
                "service_metadata_proxy": "true",
                "metadata_proxy_shared_secret": secret,
                "auth_type": "none",
                "endpoint_override": neutron.url,
            },
            "oslo_concurrency": {"lock_path": self.folder},
        }
        (self.folder / "nova.conf").write_text(ini(options))
        (self.folder / "uwsgi.ini").write_text(ini({"uwsgi": {"http": f"{host}:{PORT}", **_UWSGI}}))
        (self.folder / "api-paste.ini").symlink_to(HOME / "etc/nova/api-paste.ini")
        try:
            program = str(Path(__file__).with_name("instances.py"))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._instances = self._spawn("python", "-IW", "ignore", program, **pipes)
            self._await_line()
            self._spawn("uwsgi", "--ini", "uwsgi.ini")
            wait_for(self._answers, "Nova's metadata API", interval=0.1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it, and delete its databases. Idempotent."""
        for process in self._processes:
            with process:
                netns.end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(
        self,
        instance: str,
        project: str,
        hostname: str,
        *,
        key: str | None = None,
        user_data: bytes | None = None,
        cached: bool = True,
    ) -> None:
        """Make an instance with the ports that Neutron has of it.

        :param cached: false: its network cache stays empty.
        """
        facts = {"id": instance, "project": project, "hostname": hostname, "key": key}
        encoded = None if user_data is None else base64.b64encode(user_data).decode()
        line = json.dumps({**facts, "user_data": encoded, "cached": cached})
        assert self._instances.stdin is not None
        self._instances.stdin.write(f"{line}\n".encode())
        self._instances.stdin.flush()
        self._await_line()

    def requests(self) -> list[tuple[str, int]]:
        """Return path and status of each request with an answer, in their order."""
        return [(path, int(status)) for path, status in _REQUEST.findall(self.log())]

    def log(self) -> str:
        """Return what all have logged."""
        return (self.folder / "log").read_text(errors="replace")

    def _spawn(self, program: str, *arguments: str, **pipes: int) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = self._namespace.spawn(
                [str(HOME / "bin" / program), *arguments],
                env={"OS_NOVA_CONFIG_DIR": str(self.folder)},
                cwd=self.folder,
                **{"stdout": log, "stderr": log, **pipes},
            )
        self._processes.append(process)
        return process

    def _await_line(self) -> None:
        assert self._instances.stdout is not None
        if not self._instances.stdout.readline():
            raise RuntimeError(f"Nova's instances were not made:\n{self.log()[-3000:]}")

    def _answers(self) -> bool:
        if self._processes[-1].poll() is not None:
            raise RuntimeError(f"Nova has ended:\n{self.log()[-3000:]}")
        try:
            return ask(self._namespace, self._place, "/").status == 200
        except (OSError, http.client.HTTPException):
            return False
