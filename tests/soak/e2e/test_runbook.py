"""doc/source/runbook.rst: on a host broken so, its first command should print what stands there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.core.docs.runbook_page import ABOVE, STAYS, UP, Move, blocks, missing
from tests.core.docs.typed import untyped
from tests.harness.agent import Agent
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import NOVA_OPTIONS
from tests.soak.e2e.breakages import OF_NOVA, OF_STORE, OPTIONS, Stage

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
def stages() -> Iterator[Callable[[bool], Stage]]:
    """A host whose guests the store answers, and one whose guests Nova answers."""
    with ExitStack() as stack:

        @cache
        def stage(with_nova: bool) -> Stage:
            host = stack.enter_context(OpenvSwitch())
            nova = stack.enter_context(RecordingNova(host.namespace)) if with_nova else None
            options = NOVA_OPTIONS if with_nova else OPTIONS
            agent = stack.enter_context(Agent(host, options)).start()
            return Stage(host, agent, stack, nova)

        yield stage


def figures(stage: Stage, moves: tuple[Move, ...]) -> list[float]:
    """What the figures of the page are at the moment."""
    if not moves:
        return []
    return [stage.agent.metric(move.metric, **dict(move.labels)) for move in moves]


def test_every_command_of_the_page_is_typed() -> None:
    typed = [PAGE[name].command for name in (*OF_STORE, *OF_NOVA)]
    assert untyped("runbook", typed) == []


@pytest.mark.parametrize("name", [*OF_STORE, *OF_NOVA])
def test_a_broken_host_prints_the_pages_lines(stages: Callable[[bool], Stage], name: str) -> None:
    stage = stages(name in OF_NOVA)
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
