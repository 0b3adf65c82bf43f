"""A guest that takes all it can get takes it from itself."""

from __future__ import annotations

import contextlib
from typing import Literal

import pytest

from dfmeta.flows.key import SLOTS, SLOTS6
from dfmeta.proxy.limits import Limits
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, open_connection, put, resident, served, uuid_in

BEYOND = 20
ALLOWED = Limits().connections_per_port + Limits().waiting_per_port
RATE = 20_000
"""SYNs a second of a flood."""


def test_connections_without_end_are_cut_for_the_guest_that_opens_them(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    greedy, other = (make_guest(name) for name in ("greedy", "other"))
    for guest in (greedy, other):
        put(agent, guest)
        asks_own(guest)

    def cut() -> float:
        return agent.metric("dfmeta_closed_connections_total", reason="too_many")

    with contextlib.ExitStack() as opened:
        for _ in range(ALLOWED + BEYOND):
            # The kernel may tell of the cut before it tells of the connection.
            with contextlib.suppress(ConnectionResetError):
                opened.enter_context(open_connection(greedy))
        wait_for(lambda: cut() == BEYOND, "what is too much to be cut")
        asks_own(other)
        assert greedy.curl("/latest/meta-data/instance-id").status == 0
        assert cut() == BEYOND + 1

    def served() -> bool:
        return greedy.curl("/latest/meta-data/instance-id").status == 200

    wait_for(served, "the guest to be served again")


def ours(host: OpenvSwitch) -> int:
    """How many flows of dfmeta there are."""
    return sum("cookie=0x64666d65" in flow for flow in host.flows())


def counted(host: OpenvSwitch, agent: Agent, *, reason: str) -> float:
    """What has been dropped for that reason, with the counters of this moment."""
    before = agent.metric("dfmeta_reconciles_total", result="changed")
    host.ofctl("del-flows", BRIDGE, "cookie=0x64666d6501020006/-1")
    wait_for(
        lambda: agent.metric("dfmeta_reconciles_total", result="changed") > before,
        "the flows to be compared",
    )
    return agent.metric("dfmeta_dropped_packets_total", reason=reason)


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        ("own", ["syn_rate"]),
        ("forged", ["syn_rate", "first_syn_rate"]),
        ("forged6", ["syn_rate", "first_syn_rate"]),
    ],
    ids=["one address", "forged addresses", "forged IPv6 addresses"],
)
def test_a_flood_of_syns_is_nobody_elses(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    kind: Literal["own", "forged", "forged6"],
    reasons: list[str],
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
        assert flood.end() >= RATE
    assert [sample.error for sample in samples if sample.status != 200] == []
    assert {uuid_in(one.body) for one in samples[:200]} == {other.instance_id}
    assert {uuid_in(one.body) for one in samples[200:]} == {late.instance_id}
    taken = len(SLOTS6 if kind == "forged6" else SLOTS)
    assert ours(host) <= before + 3 * taken + 3, "an address each, and all slots of the flood"
    assert resident(agent) < memory + 16 * 1024
    wait_for(lambda: served(flooding), "the flooding guest to be served again")
    assert all(counted(host, agent, reason=reason) > 0 for reason in reasons)
