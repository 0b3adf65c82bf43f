"""Neutron's own API server, with the trunk plugin, on the loopback of a namespace.

tools/setup.sh installs it in an environment of its own; ``api_program.py`` runs it there.
There is no Keystone (``auth_strategy = noauth``): each request is an administrator's.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.harness import netns
from tests.harness.closing import Closing
from tests.harness.ovs import UNPACKED
from tests.harness.poll import wait_for
from tests.host.neutron.agent import PYTHON

PROJECT = "5f0c0a52b6f44d12a8a1e1a5e5f0c0a5"
HOST = "compute-1"
ANSWER = 60.0
"""Seconds for an answer: the first ones take Neutron some seconds."""

_DESCRIBED = """\
SELECT p.id FROM ports p JOIN standardattributes s ON p.standard_attr_id = s.id
WHERE substr(s.description, 1, length(?)) = ?"""
_ACTIVATE = """\
CREATE TRIGGER active AFTER INSERT ON subports BEGIN
UPDATE ports SET status = 'ACTIVE' WHERE id = NEW.port_id; END"""
_TRUNK = "SELECT id FROM trunks WHERE port_id = ?"
_SUBPORTS = "SELECT port_id, segmentation_id FROM subports WHERE trunk_id = ?"


@dataclass(frozen=True)
class Reply:
    """An answer of Neutron."""

    status: int
    document: Any


class NeutronServer(Closing):
    """The server; a context manager that ends it and deletes its database.

    :param namespace: where it listens; None: the namespace of the tests.
    :param ovn: connection method of OVN's databases, which then bind the ports, and the URL of a
        database for it; empty: an agent has to wire them.
    """

    def __init__(
        self, namespace: netns.Namespace | None = None, *, ovn: tuple[str, str] | tuple[()] = ()
    ) -> None:
        if not PYTHON.exists():
            raise FileNotFoundError(f"no {PYTHON}: run tools/setup.sh --neutron")
        self._namespace, self._ovn = namespace, ovn
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        # In memory: each request is several transactions.
        self.folder = netns.temporary_folder("neutron", place=Path("/dev/shm"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        program = str(Path(__file__).with_name("api_program.py"))
        command = [program, str(self.folder), str(self._port), *self._ovn]
        spawn = self._namespace.spawn if self._namespace else netns.spawn
        with (self.folder / "log").open("ab") as log:
            self._process = spawn(
                [str(PYTHON), "-I", *command],
                env={
                    "OSKEN_HUB_TYPE": "native",
                    # OVN's driver starts ovsdb-client, and its database compares times.
                    "PATH": f"{UNPACKED}/usr/bin:{os.environ['PATH']}",
                    "PGTZ": "UTC",
                },
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers, "neutron-server", interval=0.1)
        return self

    def stop(self) -> None:
        """End it as a crash does; its database stays."""
        if self._process is not None:
            # OVN's driver would end at SIGTERM only after its threads.
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and delete its database."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return what it has logged."""
        return (self.folder / "log").read_text(errors="replace")

    # Requests

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """Send a request; return the answer, whatever it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER)
        with contextlib.closing(connection):
            if self._namespace is not None:
                connection.sock = self._namespace.connect("127.0.0.1", self._port, timeout=ANSWER)
                # As http.client does itself.
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            connection.request(method, f"/v2.0/{path}", data, headers)
            answer = connection.getresponse()
            raw = answer.read()
            return Reply(answer.status, json.loads(raw) if raw else None)

    def create(self, kind: str, **values: Any) -> dict[str, Any]:
        """Create a resource, for example a ``security_group``; return it."""
        path = f"{kind.replace('_', '-')}s"
        reply = self.ask("POST", path, {kind: {"project_id": PROJECT, **values}})
        assert reply.status == 201, reply
        return dict(reply.document[kind])

    def network(self, name: str, cidr: str, **subnet: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Create a network with a subnet."""
        mtu = {"mtu": subnet.pop("mtu")} if "mtu" in subnet else {}
        network = self.create("network", name=name, **mtu)
        made = self.create(
            "subnet",
            **{"network_id": network["id"], "cidr": cidr, "ip_version": 4, "name": name, **subnet},
        )
        return network, made

    def parent(self, network: str, *, host: str = HOST, **values: Any) -> tuple[str, str]:
        """Create the port of a VM with a trunk, bound to *host*; return the ids of both.

        A bound port cannot get a trunk any more.
        """
        port = self.create("port", network_id=network, **values)["id"]
        trunk = self.create("trunk", port_id=port)["id"]
        self.bind(port, host)
        return port, trunk

    def bind(self, port: str, host: str) -> None:
        """Bind the port of a VM to a host, as Nova does; empty: to none."""
        owner = "compute:nova" if host else ""
        body = {"binding:host_id": host, "device_owner": owner, "device_id": host and port}
        reply = self.ask("PUT", f"ports/{port}", {"port": body})
        assert reply.status == 200, reply

    def ports(self, **filters: str) -> list[dict[str, Any]]:
        """Return ports that match."""
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        return list(self.ask("GET", f"ports?{query}").document["ports"])

    def described(self, beginning: str) -> list[str]:
        """Return the ids of the ports whose description begins so: of the database, see there."""
        with contextlib.closing(self.database()) as base:
            return [port_id for (port_id,) in base.execute(_DESCRIBED, (beginning, beginning))]

    def trunk_of(self, port: str) -> str:
        """Return the id of the trunk of a parent, of the database."""
        with contextlib.closing(self.database()) as base:
            ((result,),) = base.execute(_TRUNK, (port,))
            return str(result)

    def trunk(self, trunk_id: str) -> dict[str, Any]:
        """Return a trunk."""
        return dict(self.ask("GET", f"trunks/{trunk_id}").document["trunk"])

    def subports(self, trunk_id: str) -> dict[str, int]:
        """Return the subports of a trunk, of the database: port → VLAN id."""
        with contextlib.closing(self.database()) as base:
            return dict(base.execute(_SUBPORTS, (trunk_id,)).fetchall())

    def set_status(self, table: str, row: str, status: str) -> None:
        """Give a port or a trunk a status, as the back end does that has wired it.

        :param table: ``ports`` or ``trunks``.
        """
        with contextlib.closing(self.database()) as base, base:
            base.execute(f"UPDATE {table} SET status = ? WHERE id = ?", (status, row))

    def activate_subports(self) -> None:
        """Give the ports of subports the status ACTIVE with their addition, until :meth:`reset`."""
        with contextlib.closing(self.database()) as base, base:
            base.execute(_ACTIVATE)

    def database(self) -> sqlite3.Connection:
        """Open its database, which is read without its own work: a request takes it 20 to 60 ms.

        A change is there before its answer.
        """
        return sqlite3.connect(self.folder / "neutron.db", timeout=ANSWER)

    def keep(self) -> None:
        """Keep a copy of the database, see :meth:`reset`."""
        with contextlib.closing(self.database()) as base, contextlib.closing(self._kept()) as kept:
            base.backup(kept)

    def reset(self) -> None:
        """Bring the database back to its copy: no request takes so little time."""
        with contextlib.closing(self.database()) as base, contextlib.closing(self._kept()) as kept:
            kept.backup(base)

    def _kept(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "kept.db")

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"neutron-server has ended:\n{self.log()[-3000:]}")
        with contextlib.suppress(OSError):
            return self.ask("GET", "trunks?fields=id").status == 200
        return False
