"""What keeps readiness DOWN should be one line when it begins, and one when it ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dfmeta.cmd.readiness import BLIP, ReadinessLog, reasons
from dfmeta.health import Health

GROUP = SimpleNamespace(integration_bridge="br-lan", ovsdb_connection="unix:/db.sock")


class World:
    """Parts that can be missing, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gone: set[str] = set()
        health = Health()
        for name in ("ovsdb", "bridge", "flows", "proxy", "store", "other"):
            health.watch(name, lambda name=name: name not in self.gone)  # type: ignore[misc]
        why = reasons(GROUP, lambda: "tap-metadata: no number" if "tap" in self.gone else "")
        self.log = ReadinessLog(health, why, clock=lambda: self.now)

    def passes(self, seconds: float, *gone: str) -> None:
        """Look each second."""
        self.gone = set(gone)
        for _ in range(int(seconds)):
            self.log.look()
            self.now += 1


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level("INFO")
    return World()


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (["ovsdb"], "ovsdb: unix:/db.sock does not answer"),
        (["bridge"], "ovs-vsctl add-br br-lan"),
        (["flows"], "the flows of br-lan"),
        (["flows", "tap"], "flows: tap-metadata: no number"),
        (["proxy"], "guests' connections are not accepted"),
        (["proxy", "tap"], "tap-metadata: no number; run `dfmeta doctor`"),
        (["store"], "[store] connection does not answer"),
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
    assert begin.startswith(f"Readiness has been DOWN for {BLIP:.0f} s, {gone[0]}: ")
    assert words in begin
    assert end == f"Readiness: {gone[0]} is UP again after 30 s"


def test_a_blip_is_no_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        world.passes(BLIP, "flows")
        world.passes(1)
    assert caplog.messages == []
