"""Fixtures: haproxy itself on loopback, and a runtime interface without a haproxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green_socket

from dfmeta.exceptions import HaproxyError
from dfmeta.proxy.haproxy.plan import NovaServer, Plan
from dfmeta.proxy.haproxy.process import Process, Secrets
from dfmeta.proxy.haproxy.program import Program
from dfmeta.proxy.haproxy.runtime import Changes, Rows
from tests.core.unit.support import until
from tests.core.unit.upstream import Upstream
from tests.harness.agent import HAPROXY

NO_SECRETS = Secrets()
PROGRAM = Program(binary=str(HAPROXY), user="nobody")
HERE = "127.0.0.1"
"""Source address of a guest on loopback."""
HOSTS = ("169.254.169.254", "a")
"""Values of the Host header that the tests' plans take for plain."""
GET = b"GET /latest/meta-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"


def value(*, instance: str = "instance", incarnation: int = 1, epoch: int = 1) -> str:
    """A value of the map, for a guest at port 13."""
    claim = f"13.0.{incarnation}.0.{epoch}"
    return f"13.0.{incarnation}|{claim}|10.0.0.5|project|{instance}|signature"


def server(upstream: Upstream) -> NovaServer:
    """The same server, for a plan."""
    host = upstream.host
    return NovaServer(
        host=host.host, authority=host.authority, address=ip_address(host.host), port=host.port
    )


class Loopback:
    """A haproxy with a listener on loopback, whose guests are in the map by hand."""

    def __init__(
        self, plan: Plan, secrets: Secrets = NO_SECRETS, *, program: Program = PROGRAM
    ) -> None:
        self.lines: list[str] = []
        self._listener = eventlet.listen((HERE, 0))
        self.process = Process(
            program, plan, secrets, listeners=[self._listener], told=self.lines.append
        )
        self.runtime, self.map = self.process.runtime, self.process.map
        self._present: dict[str, str] = {}

    def ready(self) -> Loopback:
        """Wait until it answers."""
        self.process.wait_ready()
        return self

    def checked(self) -> Loopback:
        """Wait until it has found all hosts of Nova to be up."""

        def states() -> list[str]:
            rows = [row for row in self.runtime.statistics() if row.get("check_status")]
            return [row["status"] for row in rows]

        until(lambda: states() and set(states()) == {"UP"}, "the checks")
        return self

    def put(self, entry: str | None, key: str = HERE) -> None:
        """Change the entry of an address."""
        self.runtime.change(self.map, self._present, {key: entry})
        if entry is None:
            del self._present[key]
        else:
            self._present[key] = entry

    def connect(self) -> Any:
        """A guest's connection."""
        guest = green_socket.create_connection(self._listener.getsockname())
        guest.settimeout(30)
        return guest

    def ask(self, request: bytes = GET, guest: Any = None) -> bytes:
        """Return the first bytes of an answer; empty: the connection ended without one."""
        guest = guest or self.connect()
        guest.sendall(request)
        try:
            return bytes(guest.recv(65536))
        except ConnectionResetError:
            return b""

    def end(self) -> None:
        """Kill it if it runs, and take everything away."""
        self.process.kill()
        self.process.close()
        self._listener.close()


@pytest.fixture
def loopback() -> Iterator[Callable[..., Loopback]]:
    """Starts haproxies that end with the test."""
    made: list[Loopback] = []

    def start(*servers: NovaServer, program: Program = PROGRAM, **of_plan: Any) -> Loopback:
        plan = Plan(servers=servers, **{"handover": "dfmeta-none", "hosts": HOSTS} | of_plan)
        made.append(Loopback(plan, program=program))
        return made[-1].ready()

    yield start
    for one in made:
        one.end()


@pytest.fixture
def one(loopback: Callable[..., Loopback]) -> Loopback:
    """A haproxy without any host of Nova."""
    return loopback()


class Asked:
    """A runtime interface without a haproxy: a dictionary is its map."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.done: list[tuple[str, dict[str, str | None]]] = []
        """Changes and replacements in their order."""
        self.fails = False
        self.gate: Any = None
        """An event that changes wait for."""
        self.tables: dict[str, Rows] = {}
        self.rows: list[dict[str, str]] = []
        self.asked: list[str] = []

    def change(self, _name: str, before: Mapping[str, str], changes: Changes) -> None:
        assert before == self.there, "the mirror should be what is there"
        self.put(_name, before, changes)

    def put(self, _name: str, _before: Mapping[str, str], changes: Changes) -> None:
        """Change it, whatever it was taken for."""
        self._wait()
        self.done.append(("change", dict(changes)))
        for key, entry in changes.items():
            if entry is None:
                self.there.pop(key, None)
            else:
                self.there[key] = entry

    def set_at_once(self, _name: str, keys: list[str], entry: str, *, timeout: float) -> None:
        assert timeout < 1, "the daemon waits for it"
        if self.fails:
            raise HaproxyError(cause="it is away")
        self.done.append(("at once", dict.fromkeys(keys, entry)))
        self.there.update((key, entry) for key in keys if key in self.there)

    def replace(self, _name: str, entries: Mapping[str, str]) -> None:
        self._wait()
        self.done.append(("replace", dict(entries)))
        self.there = dict(entries)

    def entries(self, _name: str) -> dict[str, str]:
        self._wait()
        return dict(self.there)

    def statistics(self) -> list[dict[str, str]]:
        self._wait()
        return self.rows

    def table(self, name: str, condition: str = "") -> Rows:
        self._wait()
        self.asked.append(f"{name} {condition}".strip())
        return self.tables.get(name, {})

    def rows_at_once(self, name: str, keys: list[str], *, timeout: float) -> Rows:
        assert timeout < 1, "the daemon waits for it"
        self._wait()
        self.asked += keys
        return {key: row for key, row in self.tables.get(name, {}).items() if key in keys}

    def _wait(self) -> None:
        if self.gate is not None:
            self.gate.wait()
        if self.fails:
            raise HaproxyError(cause="it is away")


def wait_ended(process: Process) -> int | None:
    """Return the exit status of a process, when it has ended."""
    until(lambda: not process.running, "the end of haproxy")
    return process.status
