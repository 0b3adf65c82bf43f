"""Two faults at once: the daemon is away, and meanwhile the switch or the host loses what it has.

A guest whose request is under way sends no SYN that would teach its address again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import failures
from tests.host.e2e.test_faults import NORMAL, SERVICES, Busy, twins

Fault = Callable[[OpenvSwitch], object]
End = Callable[[Agent], None]

host, agent = shared.host, shared.agent_with()


@pytest.fixture(scope="module")
def busy(host: OpenvSwitch, agent: Agent) -> Iterator[Busy]:
    with ExitStack() as guests:
        yield Busy(agent, twins(MakeGuest(host, guests)))


def delete_flows(host: OpenvSwitch) -> None:
    """An operator's del-flows."""
    for bridge in {"br-int", SIDE.bridge}:
        host.ofctl("del-flows", bridge)
    host.ofctl("add-flow", "br-int", NORMAL)


def delete_as_ovn(host: OpenvSwitch) -> None:
    """The start of ovn-controller: it deletes groups, meters and the flows of all tables."""
    host.ofctl("del-groups", "br-int")
    host.ofctl("del-meters", "br-int")
    delete_flows(host)


def restart_vswitchd(host: OpenvSwitch) -> None:
    """Flows and meters are gone, and so is each internal port's device for a moment."""
    host.restart("ovs-vswitchd")


def restart_ovsdb(host: OpenvSwitch) -> None:
    """Nothing is lost."""
    host.restart("ovsdb-server")


def delete_tap(host: OpenvSwitch) -> None:
    """The listeners' device is gone."""
    host.vsctl("del-port", SIDE.bridge, SIDE.tap)


def swap_numbers(host: OpenvSwitch, busy: Busy) -> None:
    """Each port comes back with the other one's number; the guests have the same addresses."""
    numbers = [guest.ofport for guest in busy.guests]
    host.stop("ovs-vswitchd")
    for guest, number in zip(busy.guests, reversed(numbers), strict=True):
        host.vsctl("set", "Interface", guest.port, f"ofport_request={number}", wait=False)
    host.start("ovs-vswitchd")
    wait_for(lambda: [guest.ofport for guest in busy.guests] == numbers[::-1], "the numbers")


FAULTS = [delete_flows, delete_as_ovn, restart_vswitchd, restart_ovsdb, delete_tap]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
def test_no_request_fails_that_the_ended_process_had_not_taken(
    host: OpenvSwitch, agent: Agent, busy: Busy, end: End, fault: Fault
) -> None:
    def both() -> None:
        end(agent)
        fault(host)
        agent.start()

    wrong = failures(busy.through(both, interval=0))
    assert wrong.total() <= (busy.taken_by_a_killed_daemon if end is Agent.kill else 0), wrong
    assert not any("refused" in kind or "ANOTHER" in kind or "timed" in kind for kind in wrong)


@pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
def test_no_address_is_restored_at_another_guests_number(
    host: OpenvSwitch, agent: Agent, busy: Busy, end: End
) -> None:
    def both() -> None:
        end(agent)
        swap_numbers(host, busy)
        agent.start()

    wrong = failures(busy.through(both, interval=0))
    # The connection of each guest to each service ends with its key. A killed process takes the
    # one before with it.
    ended = len(busy.guests) * len(SERVICES)
    taken = busy.taken_by_a_killed_daemon if end is Agent.kill else 0
    assert wrong.total() <= ended + taken, wrong
    assert not any("ANOTHER" in kind for kind in wrong), wrong
    # The addresses of the guests before are not those of the guests now.
    assert agent.log().rpartition(" starts")[2].count("Restored") == 0
