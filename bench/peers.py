"""The stand-in for Nova, and the peers of dfmeta's proxy."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.programs import HAPROXY, METADATA_IP, NEUTRON, NGINX, Program, configured
from tests.harness import netns
from tests.harness.guest import uuid_of
from tests.harness.netns import Namespace
from tests.harness.poll import wait_for

NOVA_PORT = 8775
BODY_SIZE = 2048
SECRET = "the secret of the bench"
_LAUNCHER = Path(__file__).with_name("neutron_metadata.py")
_LOG_READER = Path(__file__).with_name("log_reader.py")
_LOG = "    log         /dev/log "
"""Beginning of the line of metadata_path's configuration that names the host's log."""


def document() -> str:
    """Return 2 kB of JSON in the format of meta_data.json."""
    keys: dict[str, object] = {
        "uuid": uuid_of("bench"),
        "name": "bench",
        "hostname": "bench.novalocal",
        "availability_zone": "nova",
        "launch_index": 0,
        "public_keys": {"key": ""},
    }
    room = BODY_SIZE - len(json.dumps(keys))
    return json.dumps({**keys, "public_keys": {"key": "k" * room}})


class Nova(Program):
    """nginx, which answers every request with the same 2 kB and verifies no signature."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, "nova")
        config = configured(self, "nginx.conf", self._lines())
        self.run(str(NGINX), "-e", f"{self.folder}/errors", "-p", str(self.folder), "-c", config)
        self.wait_listening(NOVA_PORT, "127.0.0.1")

    def _lines(self) -> list[str]:
        temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        return [
            "daemon off; user root; worker_processes 2; worker_rlimit_nofile 20000;",
            f"pid {self.folder}/pid;",
            "events { worker_connections 8192; }",
            "http {",
            *(f"{name}_temp_path {self.folder}/{name};" for name in temporary),
            "access_log off; keepalive_requests 1000000000; keepalive_timeout 600;",
            f"server {{ listen {NOVA_PORT} backlog=4096; default_type application/json;",
            f"location / {{ return 200 '{document()}'; }} }}",
            "}",
        ]


class Haproxy(Program):
    """haproxy alone: it sets the headers that Nova needs, with the same values for every guest."""

    def __init__(self, namespace: Namespace, port: int, *, reuse: str = "safe") -> None:
        """:param reuse: ``safe``, haproxy's default, opens a connection to Nova for each connection
        of a guest; ``always`` keeps the connections to Nova, as dfmeta does.
        """
        super().__init__(namespace, "haproxy")
        instance = uuid_of("instance")
        config = configured(
            self,
            "haproxy.conf",
            [
                "global",
                "    maxconn 4096",
                "    nbthread 1",
                "defaults",
                "    mode http",
                "    timeout connect 30s",
                "    timeout client 32s",
                "    timeout server 32s",
                "listen proxy",
                f"    bind {METADATA_IP}:{port}",
                "    option forwardfor",
                f"    http-request set-header X-Instance-ID {instance}",
                f"    http-request set-header X-Tenant-ID {uuid_of('project')}",
                f"    http-request set-header X-Instance-ID-Signature {'0' * 64}",
                f"    http-reuse {reuse}",
                f"    server nova 127.0.0.1:{NOVA_PORT}",
            ],
        )
        self.run(str(HAPROXY), "-db", "-f", config)
        self.wait_listening(port)


class MetadataPath(Program):
    """haproxy with the configuration that Neutron's extension metadata_path writes.

    It writes a line for each request to the host's log. Here another process reads these lines, as
    the log of a host does, and forgets them; its CPU time does not count as haproxy's.
    """

    def __init__(
        self,
        namespace: Namespace,
        port: int,
        instances: Sequence[str],
        *,
        threads: int = 0,
        logs: bool = True,
    ) -> None:
        """Start it.

        :param instances: addresses, in the order of the configuration.
        :param threads: number of threads; 0 leaves the configuration as it is, in which there is no
            ``nbthread``: then haproxy has one for each core.
        :param logs: whether its lines are written, as its configuration says.
        """
        super().__init__(namespace, "path")
        log = self.folder / "host-log"
        done = netns.run(
            [str(NEUTRON), "-I", str(_LAUNCHER), "path", str(port), f"127.0.0.1:{NOVA_PORT}"],
            stdin="\n".join(instances),
            timeout=60,
        )
        lines = done.stdout.splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith(_LOG))
        lines[place] = f"    log {log} {lines[place].removeprefix(_LOG)}" if logs else ""
        if threads:
            lines.insert(lines.index("global") + 1, f"    nbthread {threads}")
        config = configured(self, "haproxy.conf", lines)
        self._reader = namespace.spawn([sys.executable, "-I", "-S", str(_LOG_READER), str(log)])
        wait_for(log.is_socket, "the reader of the log", interval=0.05)
        self.run(str(HAPROXY), "-db", "-f", config)
        self.wait_listening(port)

    def close(self) -> None:
        """End it and the reader of its lines. Idempotent."""
        netns.end(self._reader)
        super().close()


class NeutronMetadata(Program):
    """A metadata agent of Neutron behind the haproxy that it starts for a network."""

    def __init__(self, namespace: Namespace, port: int, *, kind: str = "agent") -> None:
        """:param kind: ``agent``, or ``ovn`` for OVN's metadata agent."""
        super().__init__(namespace, "agent")
        self._kind = kind
        self._socket = self.folder / "proxy"
        launch = [str(NEUTRON), "-I", str(_LAUNCHER)]
        self.run(*launch, kind, str(self._socket), SECRET, str(NOVA_PORT))
        # Without it, the haproxy of the network answers 503.
        wait_for(self._socket.is_socket, "the agent's socket", interval=0.05)
        self._first = port
        self.add_network(port)

    def add_network(self, port: int) -> None:
        """Start the haproxy of one more network."""
        words = [str(port), str(self._socket), self._kind]
        launch = [str(NEUTRON), "-I", str(_LAUNCHER), "network", *words]
        done = netns.run(launch, timeout=60)
        config = configured(self, f"network-{port}.conf", done.stdout.splitlines())
        self.run(str(HAPROXY), "-db", "-f", config)
        self.wait_listening(port)
