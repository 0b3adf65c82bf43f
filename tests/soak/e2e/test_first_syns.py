"""First SYNs in the first half second of a restart."""

from contextlib import ExitStack

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.scheme import SIDE
from tests.host.e2e import test_first_syns
from tests.host.e2e.support import PROMPT, Capture, asks_own, put
from tests.host.e2e.test_first_syns import check_stream, make_guests

stack = test_first_syns.stack


def test_syns_in_the_first_half_second_of_a_restart_are_answered_at_once(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, stack: ExitStack
) -> None:
    """The flows of the run before are there, and lead new addresses to a controller that starts.

    Those that it lets go before it has read its own flows have to be answered too.
    """
    guests = make_guests(make_guest, 12)
    agent = make_agent()
    put(agent, guests[0])
    asks_own(guests[0])
    agent.stop()
    ways = {guest.port: Capture(host.namespace, guest.port) for guest in guests}
    for way in ways.values():
        stack.enter_context(way)
    with Capture(host.namespace, SIDE.tap) as tap:
        check_stream(host, agent, guests, lambda: agent.start(wait=False), stack, fresh=False)
        let_go = tap.syns()
    assert let_go
    ports = {
        address["key"]: row["port"]
        for row in agent.admin("/ports").json()
        for address in row["addresses"]
    }
    slow = []
    for syn in let_go:
        answers = [
            segment.time - syn.time
            for segment in ways[ports[syn.source]].segments()
            if segment.is_syn_ack and segment.destination_port == syn.source_port
        ]
        if not answers or min(answers) > PROMPT:
            slow.append((syn.source, syn.source_port, answers))
    assert slow == []
    # The address that was known keeps its slot, whatever came before its flows were read.
    assert "Kept 1 addresses" in agent.log()
