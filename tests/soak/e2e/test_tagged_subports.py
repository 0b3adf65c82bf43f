"""Entries of subports should change while other containers ask."""

from tests.harness.agent import Agent
from tests.harness.container import declare
from tests.harness.guest import Guest, Sample, uuid_of
from tests.harness.poll import wait_for
from tests.host.e2e import shared, test_tagged_subports
from tests.host.e2e.support import (
    META_DATA,
    SILENCE,
    asks_own,
    is_unanswered,
    open_connection,
    read_all,
    uuid_in,
)
from tests.host.e2e.test_tagged_subports import Site

host, agent = shared.host, shared.agent_with()
site, _all_are_served = test_tagged_subports.site, test_tagged_subports._all_are_served


def answers(samples: list[Sample], guest: Guest) -> list[Sample]:
    """The requests that were answered, each of them with the guest's own document."""
    found = [one for one in samples if one.status]
    assert {(one.status, uuid_in(one.body)) for one in found} == {(200, guest.instance_id)}
    return found


def test_entries_come_go_and_change_while_others_ask(agent: Agent, site: Site) -> None:
    vm, steady, changing = site.vms[0], site[0, 1], site[0, 300]
    asks_own(steady)
    asks_own(changing)
    batches = {one: one.start_many(100_000, 1) for one in (steady, site[1, 300], vm)}
    rest = [one.entry() for one in site.of(vm) if one is not changing]
    with open_connection(changing) as connection:
        declare(vm, *rest)
        # The connection of a removed subport ends.
        assert read_all(connection) == b""
    assert is_unanswered(changing)
    other = uuid_of("another container")
    agent.put(other, "another")
    declare(vm, *rest, changing.entry(instance_id=other))
    wait_for(lambda: not is_unanswered(changing), "the other container")
    assert uuid_in(changing.curl(META_DATA).body) == other
    site.declare(vm)
    # Its connection may end while it changes.
    own = changing.instance_id
    wait_for(lambda: own in changing.curl(META_DATA, timeout=SILENCE).text, "its own again")
    for one, batch in batches.items():
        samples = batch.finish()
        assert len(answers(samples, one)) == len(samples) > 10
