"""Plans, and a haproxy that a test drives: its runtime interface and its process."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import eventlet
from eventlet.event import Event

from dfmeta.errors import HaproxyError
from dfmeta.http.limits import Limits
from dfmeta.proxy.engines.haproxy.counts import Counts
from dfmeta.proxy.engines.haproxy.entries import GuestMap
from dfmeta.proxy.engines.haproxy.plan import Descriptors, HaproxyPlan, NovaServer
from dfmeta.proxy.engines.haproxy.process import Process
from dfmeta.proxy.engines.haproxy.runtime import Changes, Rows
from dfmeta.runtime import clock

GET = b"GET /latest/meta-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"
FOUR = NovaServer(
    host="nova.example", authority="nova.example:8775", address=ip_address("192.0.2.1"), port=8775
)
SIX = replace(FOUR, address=ip_address("2001:db8::1"))
OTHER = replace(FOUR, host="other.example", authority="other.example:1", port=1)
NUMERIC = replace(SIX, host="2001:db8::1", authority="[2001:db8::1]:8775")
PLANS = {
    "plain": HaproxyPlan(servers=(FOUR,)),
    "no server": HaproxyPlan(servers=()),
    "both families": HaproxyPlan(servers=(FOUR, SIX)),
    "several hosts": HaproxyPlan(servers=(FOUR, SIX, OTHER), several=True),
    "several hosts, an address": HaproxyPlan(servers=(FOUR, NUMERIC), several=True),
    "tls": HaproxyPlan(servers=(FOUR, SIX), tls=True),
    "tls, several hosts": HaproxyPlan(servers=(FOUR, OTHER), several=True, tls=True),
    "tls, insecure": HaproxyPlan(servers=(FOUR,), tls=True, insecure=True),
    "forwarded": HaproxyPlan(servers=(FOUR,), refuse_forwarded=True),
    "debug": HaproxyPlan(servers=(FOUR,), debug=True),
    "subports": HaproxyPlan(servers=(FOUR,), network_data_subports=True),
    "503": HaproxyPlan(servers=(FOUR,), timeout_answer="503"),
    "close": HaproxyPlan(servers=(FOUR,), timeout_answer="close"),
    "no keepalive": HaproxyPlan(servers=(FOUR,), limits=Limits(keepalive_timeout=0)),
    "large": HaproxyPlan(servers=(FOUR,), threads=2, maxconn=65536, hold_timeout=0),
}
GIVEN = Descriptors(listeners=(3,), handover=8, cli=4, log=5, map=6, away=7)


def counted(ofport: int = 13, *, vm: str = "0000000d", incarnation: int = 1) -> str:
    """The value of a guest whose requests are all the daemon's."""
    return f"{ofport}.0.{incarnation}|{vm}"


def value(
    *,
    ofport: int = 13,
    vm: str = "0000000d",
    instance: str = "instance",
    incarnation: int = 1,
    epoch: int = 1,
) -> str:
    claim = f"{ofport}.0.{incarnation}.0.{epoch}"
    here = counted(ofport, vm=vm, incarnation=incarnation)
    return f"{here}|{claim}|10.0.0.5|project|{instance}|signature"


class FakeRuntime:
    """A runtime interface without a haproxy: a dictionary is its map."""

    def __init__(self) -> None:
        self.map: dict[str, str] = {}
        self.done: list[tuple[str, dict[str, str | None]]] = []
        """Changes and replacements in their order."""
        self.fails = False
        self.refuses: set[str] = set()
        """Methods that fail."""
        self.hangs: float | None = None
        """Seconds beyond its limit after which a command ends without an answer."""
        self.gate: Any = None
        """An event that answers wait for."""
        self.tables: dict[str, Rows] = {}
        self.rows: list[dict[str, str]] = []
        self.asked: list[str] = []

    def ask(self, command: str, *, timeout: float = 2.0) -> str:
        self.asked.append(command)
        if self.hangs is not None:
            eventlet.sleep(timeout + self.hangs)
        self._answer("ask", waits=False)
        return "2.6.12\n"

    def change(self, _name: str, before: Mapping[str, str], changes: Changes) -> None:
        assert before.keys() == self.map.keys(), "the mirror should be the map"
        self._answer("change")
        self.done.append(("change", dict(changes)))
        for key, entry in changes.items():
            if entry is None:
                self.map.pop(key, None)
            else:
                self.map[key] = entry

    def set_at_once(self, _name: str, keys: list[str], entry: str) -> None:
        self._answer("set_at_once", waits=False)
        self.done.append(("at once", dict.fromkeys(keys, entry)))
        self.map.update((key, entry) for key in keys if key in self.map)

    def replace(self, _name: str, entries: Mapping[str, str]) -> None:
        self._answer("replace")
        self.done.append(("replace", dict(entries)))
        self.map = dict(entries)

    def entries(self, _name: str) -> dict[str, str]:
        self._answer("entries")
        return dict(self.map)

    def statistics(self) -> list[dict[str, str]]:
        self._answer("statistics")
        return self.rows

    def table(self, name: str, condition: str = "") -> Rows:
        self._answer("table")
        self.asked.append(f"{name} {condition}".strip())
        return self.tables.get(name, {})

    def rows_at_once(self, name: str, keys: list[str]) -> Rows:
        self._answer("rows_at_once")
        self.asked += keys
        return {key: row for key, row in self.tables.get(name, {}).items() if key in keys}

    def shut_down(self, frontend: str) -> None:
        self._answer("shut_down")

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self, kind: str, *, waits: bool = True) -> None:
        if self.gate is not None and waits:
            self.gate.wait()
        if self.fails or kind in self.refuses or self.hangs is not None:
            raise HaproxyError(cause="it is away")


_PIDS = itertools.count(1000)


class FakeProcess(Process):
    """A process that a test drives."""

    def __init__(
        self,
        plan: HaproxyPlan,
        *,
        listeners: Sequence[Any],
        handover: int,
        counts: Counts,
        fault: str = "",
    ) -> None:
        self.plan, self.counts = plan, counts
        self.fake = FakeRuntime()
        self.runtime: Any = self.fake
        self.map, self.began = GuestMap(self.runtime, "m"), clock.now()
        self.leaving = self.lost = False
        self._pid, self._status = next(_PIDS), Event()
        self._fault = fault
        assert listeners
        assert handover
        self.connections(0)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return not self._status.ready()

    @property
    def status(self) -> int | None:
        return None if self.running else int(self._status.wait())

    def wait_ready(self) -> None:
        if self._fault:
            self.end(1)
            raise HaproxyError(cause=self._fault)

    def wait(self) -> None:
        self._status.wait()

    def kill(self) -> None:
        self.end(-9)

    def close(self) -> None:
        self.map.end()
        self.kill()
        self.runtime.close()
        self.counts.ended()

    def end(self, status: int) -> None:
        if self.running:
            self._status.send(status)

    def connections(self, count: int, requests: int | None = None) -> None:
        """Have connections, each with a request unless *requests* are fewer."""
        running = count if requests is None else requests
        self.fake.rows = [
            {"pxname": "guests", "svname": "FRONTEND", "scur": str(count)},
            {"pxname": "nova", "svname": "BACKEND", "scur": str(running)},
        ]

    def instances(self) -> list[str]:
        return [entry.split("|")[5] for entry in self.fake.map.values()]
