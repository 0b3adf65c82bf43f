"""What keeps readiness DOWN and how far something is should be told in a line, and seldom."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dfmeta.cli.common import Work
from dfmeta.cmd.faults import EXTENSION, StartupProgress, make_reasons
from dfmeta.cmd.service import ReadinessLog, watchdog_seconds
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.hub import Health
from dfmeta.runtime.throttle import LONGEST_PAUSE, PROGRESS
from tests.harness.activator import Manager

GROUP = SimpleNamespace(integration_bridge="br-lan", ovsdb_connection="unix:/db.sock")


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.gone: set[str] = set()
        health = Health()
        for name in ("flow-restore-wait", "ovsdb", "bridge", "flows", "proxy", "store", "other"):
            health.watch(name, lambda name=name: name not in self.gone)  # type: ignore[misc]
        why = make_reasons(GROUP, lambda: "tap-metadata: no number" if "tap" in self.gone else "")
        self.facts = "3 ports"
        self.log = ReadinessLog(health, why, lambda: self.facts, clock=lambda: self.now)

    def passes(self, seconds: float, *gone: str) -> None:
        self.gone = set(gone)
        for _ in range(int(seconds)):
            self.log.check()
            self.now += 1


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level("INFO")
    return World()


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (["flow-restore-wait"], "remove Open_vSwitch . other_config flow-restore-wait"),
        (["ovsdb"], "ovsdb: unix:/db.sock does not answer"),
        (["bridge"], "ovs-vsctl add-br br-lan"),
        (["flows", "tap"], "flows: tap-metadata: no number"),
        (["proxy", "tap"], "tap-metadata: no number; run `dfmeta doctor`"),
        (["other"], "other: run `dfmeta doctor`"),
    ],
)
def test_its_beginning_and_its_end_are_a_line_each(
    world: World, caplog: pytest.LogCaptureFixture, gone: list[str], words: str
) -> None:
    world.passes(3)
    assert caplog.messages == []
    world.passes(30, *gone)
    world.passes(5)
    begin, end = caplog.messages
    assert begin.startswith(f"Readiness has been DOWN for {LONGEST_PAUSE:.0f} s, {gone[0]}: ")
    assert words in begin
    assert end == f"Readiness: {gone[0]} is UP again after 30 s"


def test_a_blip_is_no_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        world.passes(LONGEST_PAUSE, "flows")
        world.passes(1)
    assert caplog.messages == []


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
        yield manager


def test_systemd_gets_a_status_when_the_facts_change(world: World, systemd: Manager) -> None:
    world.passes(3)
    world.passes(2, "flows", "store")
    world.facts = "4 ports\nREADY=1"
    world.passes(1)
    assert systemd.heard("STATUS=UP; 4 ports READY=1")
    assert systemd.messages[:-1] == ["STATUS=UP; 3 ports", "STATUS=DOWN (flows, store); 3 ports"]


def test_watchdog_is_that_of_this_process() -> None:
    for pid, usec, seconds in (
        (os.getpid(), "20000000", 20),
        (1, "20000000", 0),
        (os.getpid(), "0", 0),
        (os.getpid(), "-1", 0),
    ):
        assert watchdog_seconds({"WATCHDOG_USEC": usec, "WATCHDOG_PID": str(pid)}) == seconds
    assert watchdog_seconds({"WATCHDOG_USEC": "500000"}) == 0.5
    assert watchdog_seconds({}) == 0


def test_line_has_the_parts_as_far_as_they_are_known() -> None:
    for work, line in (
        (Work("writing a"), "writing a"),
        (Work("reading", unit="records", done=5000), "reading: 5,000 records"),
        (Work("importing r", "bytes", 4000, done=1000), "importing r: 1,000 of 4,000 bytes"),
    ):
        assert work.line() == line


def test_systemd_waits_as_the_daemon_does(systemd: Manager) -> None:
    now = [0.0]
    waiting = StartupProgress(600.0, clock=lambda: now[0])
    for now[0] in (CHECK_INTERVAL, CHECK_INTERVAL + PROGRESS, 599.0):
        waiting.say(lambda: "OVSDB has not answered")
    message = f"EXTEND_TIMEOUT_USEC={int(EXTENSION)}000000\nSTATUS=Waiting: OVSDB has not answered"
    assert systemd.heard(message)
    assert systemd.messages == 3 * [message]
    assert EXTENSION > 2 * PROGRESS
