"""A defect that the delivery of a port meets should cost that port some seconds, and no other."""

import logging
from collections.abc import Iterator

import eventlet
import pytest

from dfmeta import metrics
from dfmeta.model import Port, PortId, PortKind
from dfmeta.runtime.throttle import LONGEST_PAUSE
from dfmeta.wiring.identity import make_identities
from tests.core.unit.support import INSTANCE, Load, port

BROKEN, SOUND = port(13, name="tap1"), port(14, name="tap2")
CHILDREN = [
    Port(
        f"spi-{vid}", row=f"row-of-spi-{vid}", ofport=20 + vid, kind=PortKind.SUBPORT, parent="tap2"
    )
    for vid in (1, 2)
]


class World:
    """The identity sources of a configuration, before a registry that refuses some ports."""

    def __init__(self, load: Load, **options: str) -> None:
        self.refused: set[str] = set()
        self.taken: dict[str, str] = {}
        conf = load(identity_sources="ovsdb", **options)
        self.identities = make_identities(conf, self.take, self.drop)

    def take(self, port: Port) -> None:
        self.taken[port.name] = port.instance_id
        if port.name in self.refused:
            raise ZeroDivisionError("a defect")

    def drop(self, port_id: PortId) -> None:
        self.taken.pop(port_id.row.removeprefix("row-of-"), None)


@pytest.fixture
def world(load: Load) -> Iterator[World]:
    result = World(load, subport_identity="parent")
    yield result
    # The last retry ends here, and not in another test.
    result.refused.clear()
    eventlet.sleep(LONGEST_PAUSE)


def test_refused_port_is_dropped_and_redone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    count = metrics.PORT_DEFECTS._value.get
    before = count()
    world.refused.add("tap1")
    for row in (BROKEN, SOUND):
        world.identities.update(row)
    assert world.taken == {"tap2": INSTANCE}
    eventlet.sleep(LONGEST_PAUSE)
    assert world.taken == {"tap2": INSTANCE}
    assert caplog.text.count("Port tap1 cannot be served") == 2
    assert count() == before + 2
    world.refused.clear()
    caplog.set_level(logging.CRITICAL)
    eventlet.sleep(LONGEST_PAUSE)
    assert world.taken == {"tap1": INSTANCE, "tap2": INSTANCE}


def test_subports_of_a_parent_are_delivered_apart(world: World) -> None:
    for row in (*CHILDREN, SOUND):
        world.identities.update(row)
    world.refused.add("spi-1")
    world.identities.forget(SOUND.id)
    assert world.taken == {"spi-2": ""}
    world.identities.update(SOUND)
    assert world.taken == {"spi-2": INSTANCE, "tap2": INSTANCE}


def test_port_that_is_gone_is_not_handed_on_again(world: World) -> None:
    world.refused.add("tap1")
    world.identities.update(BROKEN)
    world.refused.clear()
    world.identities.forget(BROKEN.id)
    eventlet.sleep(LONGEST_PAUSE)
    assert world.taken == {}
