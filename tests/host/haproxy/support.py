"""haproxy itself on loopback. Where its daemon would get a request, there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green_socket

from dfmeta.identity.registry import Registry
from dfmeta.proxy.engines.haproxy.counts import Counts
from dfmeta.proxy.engines.haproxy.plan import HaproxyPlan, NovaServer, Program
from dfmeta.proxy.engines.haproxy.process import Process
from tests.core.unit.haproxy.support import GET, value
from tests.core.unit.support import until
from tests.core.unit.upstream import Upstream
from tests.harness.agent import HAPROXY

PROGRAM = Program(binary=str(HAPROXY), user="")
HERE = "127.0.0.1"
"""Source address of a guest on loopback."""
HOSTS = ("169.254.169.254", "a")
"""Values of the Host header that the tests' plans take for plain."""
NOTHING = 0
"""Descriptor of a file that haproxy cannot connect to, instead of the daemon's."""
OK = b"HTTP/1.1 200"


def server(upstream: Upstream) -> NovaServer:
    """The same server, for a plan."""
    host = upstream.host
    return NovaServer(
        host=host.host, authority=host.authority, address=ip_address(host.host), port=host.port
    )


class Lines(Counts):
    """Keeps lines about requests instead of counting them."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


class Loopback:
    """A haproxy with a listener on loopback, whose guests are in the map by hand."""

    def __init__(self, plan: HaproxyPlan, *, handover: int = NOTHING) -> None:
        kept = Lines()
        self.lines = kept.lines
        self._listener = eventlet.listen((HERE, 0))
        self.process = Process(plan, listeners=[self._listener], handover=handover, counts=kept)
        self.runtime, self.map = self.process.runtime, self.process.map.name
        self._present: dict[str, str] = {}

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

    def connect(self, source: str = HERE) -> Any:
        """A guest's connection."""
        return green_socket.create_connection(
            self._listener.getsockname(), source_address=(source, 0)
        )

    def counts(self) -> tuple[int, int]:
        """Return the numbers of open and of refused connections of guests."""
        rows = [row for row in self.runtime.statistics() if row.get("pxname") == "guests"]
        return sum(int(row["scur"]) for row in rows), sum(int(row["dcon"] or 0) for row in rows)

    def ask(self, request: bytes = GET, guest: Any = None) -> bytes:
        """Return the first bytes of an answer; empty: the connection ended without one."""
        guest = guest or self.connect()
        guest.sendall(request)
        try:
            return bytes(guest.recv(65536))
        except ConnectionResetError:
            return b""

    def line(self) -> str:
        """The first line about a request."""
        until(lambda: self.lines, "the line about it")
        return self.lines[0]

    def end(self) -> None:
        """Kill it if it runs, and take everything away."""
        self.process.kill()
        self.process.close()
        self._listener.close()


@pytest.fixture
def loopback() -> Iterator[Callable[..., Loopback]]:
    """Starts haproxies that end with the test."""
    made: list[Loopback] = []

    def start(*servers: NovaServer, handover: int = NOTHING, **of_plan: Any) -> Loopback:
        plan = HaproxyPlan(servers=servers, **{"program": PROGRAM, "hosts": HOSTS} | of_plan)
        made.append(Loopback(plan, handover=handover))
        made[-1].process.wait_ready()
        return made[-1]

    yield start
    for haproxy in made:
        haproxy.end()


@pytest.fixture
def with_guest(loopback: Callable[..., Loopback], upstream: Upstream) -> Callable[..., Loopback]:
    """Starts a haproxy that knows the guest, with a host of Nova that answers."""

    def start(**of_plan: Any) -> Loopback:
        haproxy = loopback(server(upstream), **of_plan)
        haproxy.put(value())
        return haproxy

    return start


def wait_ended(process: Process) -> int | None:
    """Return the exit status of a process, when it has ended."""
    until(lambda: not process.running, "the end of haproxy")
    return process.status
