"""doc/source/runbook.rst: on a host broken so, its first command should print what stands there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.core.docs.runbook_page import ABOVE, STAYS, UP, Move, blocks, missing
from tests.core.docs.typed import untyped
from tests.harness.agent import Agent
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.breakages import OF_NOVA, OF_STORE, OPTIONS, Stage
from tests.host.e2e.support import NOVA_OPTIONS

pytestmark = pytest.mark.early

PAGE = {block.name: block for block in blocks()}
# The guest itself is at fault, or another program that no check of the host can see: it has no
# route, asks too much or for what there is not; a client pushes wrongly; a start is refused.
GUESTS_OWN = {
    "not-a-guests-port",
    "many-connections",
    "dead-port",
    "no-such-part",
    "forwarded",
    "no-token",
    "malformed",
    "too-often",
    "closed",
    "slow-backend",
    "another-instance",
    "no-user-data",
    "no-key",
    "password-set",
    "runs-already",
    "push-401",
    "push-403",
    "push-400",
    "push-413",
}
HOLDS = {
    UP: lambda before, after: after > before,
    STAYS: lambda before, after: after == before,
    ABOVE: lambda _before, after: after > 0,
}


@pytest.fixture(scope="module")
def with_store() -> Iterator[Stage]:
    """A host whose guests the store answers."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, OPTIONS)).start()
        yield Stage(host, agent, stack)
        agent.stop()


@pytest.fixture(scope="module")
def with_nova() -> Iterator[Stage]:
    """A host whose guests Nova answers."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        nova = stack.enter_context(RecordingNova(host.namespace))
        agent = stack.enter_context(Agent(host, NOVA_OPTIONS)).start()
        yield Stage(host, agent, stack, nova)
        agent.stop()


def figures(stage: Stage, moves: tuple[Move, ...]) -> list[float]:
    """What the figures of the page are at the moment."""
    if not moves:
        return []
    return [stage.agent.metric(one.metric, **dict(one.labels)) for one in moves]


@pytest.mark.parametrize("name", OF_STORE)
def test_a_host_with_a_store_shows_what_the_page_says(with_store: Stage, name: str) -> None:
    look(with_store, name)


@pytest.mark.parametrize("name", OF_NOVA)
def test_a_host_with_nova_shows_what_the_page_says(with_nova: Stage, name: str) -> None:
    look(with_nova, name)


def test_every_command_of_the_page_is_typed() -> None:
    typed = [PAGE[name].command for name in (*OF_STORE, *OF_NOVA)]
    assert untyped("runbook", typed) == []


def look(stage: Stage, name: str) -> None:
    """Break the host, run the page's own command, and compare."""
    block = PAGE[name]
    before = figures(stage, block.moves)
    breakage = {**OF_STORE, **OF_NOVA}[name]
    with breakage(stage):
        printed = stage.run(block.command)
        assert missing(block, printed, stage.names) == [], printed
        after = figures(stage, block.moves)
        if name not in GUESTS_OWN:
            folder = str(stage.agent.folder)
            doctor = stage.agent.ctl("doctor", "--root", folder, check=False)
            assert doctor.returncode in (1, 2), doctor.stdout
    for move, then, now in zip(block.moves, before, after, strict=True):
        assert HOLDS[move.how](then, now), f"{move}: {then} before, {now} now"
