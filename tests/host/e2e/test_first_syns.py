"""The SYN that comes when daemon or switch have just come up is not lost.

A lost SYN is sent again after a second, so that each case is told by a capture of the guest's
port: how many SYNs it took, and when the first answer came.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dfmeta.flows.pipeline import Purpose, cookie_of
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import Attempt, Capture, asks_own, log_time, put

GUESTS = 6
UNDER_WAY = 12
"""First SYNs that may wait for their answers at a time.

The switch confirms the flows of one address after the other, on a busy host some 40 ms each: with a
SYN each 7 ms alone the queue would become longer than a second, and the guests' kernels would send
SYNs again of which none was lost.
"""
SETTLED = 0.005
"""Seconds from the log line of a connection until the switch sends its packet-ins there."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closed_at_the_end:
        yield closed_at_the_end


def until(moment: float) -> None:
    """Wait for a moment of time.monotonic(), to the tenth of a millisecond."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 0.0001))


def make_guests(make_guest: MakeGuest, count: int = GUESTS) -> list[Guest]:
    """They ask no ARP, so that the first thing that they send is the SYN."""
    return [make_guest(f"g{number}", route="gateway") for number in range(count)]


def have_hooks(host: OpenvSwitch, guests: list[Guest]) -> Callable[[], bool]:
    """Whether what takes a SYN is there for each: the flows come in several bundles."""
    syns = f"table=0,ip,cookie={cookie_of(Purpose.GUEST_SYN):#x}/-1"
    return lambda: len(host.flows(match=syns)) == len(guests)


@pytest.mark.parametrize("again", [False, True], ids=["start", "reconnect"])
def test_syns_in_the_first_half_second_of_a_connection_are_answered_at_once(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    stack: ExitStack,
    *,
    again: bool,
) -> None:
    """Each 7 ms the SYN of an address not seen before."""
    guests = make_guests(make_guest, 12)
    agent = make_agent(start=again)

    def come_up() -> None:
        if again:
            host.restart("ovs-vswitchd")
        else:
            agent.start(wait=False)

    check_stream(host, agent, guests, come_up, stack)


def waiting(attempts: list[tuple[Guest, Attempt]]) -> int:
    """Return the number of attempts without an answer."""
    return sum(attempt.under_way for _guest, attempt in attempts)


def check_stream(
    host: OpenvSwitch,
    agent: Agent,
    guests: list[Guest],
    come_up: Callable[[], object],
    stack: ExitStack,
    *,
    fresh: bool = True,
) -> None:
    """SYNs of new addresses all the time; those after "Connected to" have to be answered at once.

    :param fresh: the switch has no flows of ours before; then the mark is their being there:
        until then a SYN takes the way of all other traffic.
    """
    for guest in guests:
        for number in range(6):
            guest.add_address(f"10.0.0.{100 + number}/24")
    captures = {g: stack.enter_context(Capture(host.namespace, g.port)) for g in guests}
    marks = agent.log().count("Connected to")
    come_up()
    wait_for(lambda: agent.log().count("Connected to") > marks, "a connection", interval=0.001)
    if fresh:
        wait_for(have_hooks(host, guests), "the classification flows", interval=0.001)
    seen = time.time()
    attempts: list[tuple[Guest, Attempt]] = []
    start = time.monotonic()
    for number in range(6):
        for place, guest in enumerate(guests):
            # The first of each close together: their packet-ins meet the reading of the flows.
            until(start + (number * len(guests) * 0.007) + place * (0.007 if number else 0.001))
            wait_for(lambda: waiting(attempts) < UNDER_WAY, "answers", interval=0.001)
            attempt = stack.enter_context(Attempt(guest, f"10.0.0.{100 + number}"))
            attempts.append((guest, attempt))
    mark = seen if fresh else log_time(agent, "Connected to") + SETTLED
    late = []
    for guest, attempt in attempts:
        connected = attempt.connected_after()
        syns = [s for s in captures[guest].syns() if s.source_port == attempt.port]
        if attempt.started >= mark and (connected is None or syns[0].is_repeated):
            sent = [syn.time - mark for syn in syns]
            late.append((guest.name, attempt.source, attempt.started - mark, sent, connected))
    assert late == []
    put(agent, guests[0])
    asks_own(guests[0])
