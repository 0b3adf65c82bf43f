"""Floods of SYNs cost no other guest its answer."""

from typing import Literal

import pytest

from dfmeta.identity.key import SLOTS, SLOTS6
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, put, resident, served, uuid_in

RATE = 20_000
"""SYNs a second of a flood."""


def ours(host: OpenvSwitch) -> int:
    """How many flows of dfmeta there are."""
    return sum("cookie=0x64666d65" in flow for flow in host.flows())


def dropped(agent: Agent) -> float:
    """Return the number of SYNs that have been dropped.

    Those that are dropped before the first reading of a flood are not counted.
    """
    reasons = ("syn_rate", "first_syn_rate")
    return sum(agent.metric("dfmeta_dropped_packets_total", reason=reason) for reason in reasons)


@pytest.mark.parametrize(
    "kind",
    ["own", "forged", "forged6"],
    ids=["one address", "forged addresses", "forged IPv6 addresses"],
)
def test_a_flood_of_syns_keeps_no_other_guest_from_its_answer(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    kind: Literal["own", "forged", "forged6"],
) -> None:
    agent = make_agent()
    flooding, other, late = (
        make_guest(name, address=f"10.0.0.{number}/24")
        for number, name in enumerate(("flooding", "other", "late"), 5)
    )
    for guest in (flooding, other, late):
        put(agent, guest)
    for guest in (flooding, other):
        asks_own(guest)
    before, memory = ours(host), resident(agent)
    with flooding.flood(kind, rate=RATE, seconds=60) as flood:
        samples = other.http_many(200, 2)
        # One whose address is not known yet needs the controller meanwhile.
        samples += late.http_many(20)
        wait_for(lambda: dropped(agent) > 0, "counted drops")
        assert flood.end() >= RATE
    assert [sample.error for sample in samples if sample.status != 200] == []
    assert {uuid_in(sample.body) for sample in samples[:200]} == {other.instance_id}
    assert {uuid_in(sample.body) for sample in samples[200:]} == {late.instance_id}
    taken = len(SLOTS6 if kind == "forged6" else SLOTS)
    assert ours(host) <= before + 3 * taken + 3, "an address each, and all slots of the flood"
    assert resident(agent) < memory + 16 * 1024
    wait_for(lambda: served(flooding), "the flooding guest to be served again")
