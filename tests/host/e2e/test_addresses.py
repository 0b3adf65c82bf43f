"""A guest with any addresses and routes is served, and its answers find it."""

from typing import Any

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, Route
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import Capture, asks_own, packets, project_ids, put_nova

LOCAL_IPV4 = "/latest/meta-data/local-ipv4"
"""The recording Nova answers it with X-Forwarded-For."""


host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()
guest = shared.nova_guest


def packet_ins(agent: Agent, **labels: str) -> float:
    return agent.metric("dfmeta_packet_ins_total", **labels)


def check_asked(agent: Agent, before: float, capture: Capture, *, connections: int = 1) -> None:
    """The guest's SYNs led to a packet-in; another one may have led to one more, at first.

    A guest sends a SYN again after a second without an answer: on a machine that stalls, it does.
    Until the datapath has revalidated, the SYN of the next connection may go where the first went.
    """
    syns = capture.syns()
    assert len({syn.source_port for syn in syns}) == connections
    assert 1 <= packet_ins(agent) - before <= packets(syns)


def await_no_more(agent: Agent, guest: Guest) -> None:
    """Wait for a connection that leads to no packet-in, as each one does soon."""

    def is_known() -> bool:
        before = packet_ins(agent)
        asks_own(guest)
        return packet_ins(agent) == before

    wait_for(is_known, "a connection without a packet-in")


def slots(agent: Agent, guest: Guest) -> dict[int, str]:
    """Slot → address, in the order of the slots."""
    rows: list[dict[str, Any]] = agent.admin("/ports").json()
    (row,) = [row for row in rows if row["port"] == guest.port]
    return {address["slot"]: address["ip"] for address in row["addresses"]}


def asks_from(guest: Guest, source: str) -> None:
    reply = guest.curl(LOCAL_IPV4, source=source)
    assert (reply.status, reply.text) == (200, source), reply


def test_addresses_of_a_port_have_slots_in_turn_and_at_once(agent: Agent, guest: Guest) -> None:
    other = "10.0.0.77"
    guest.add_address(f"{other}/24")
    before = packet_ins(agent, outcome="learned")
    for source in (guest.ip, other, guest.ip, other):
        asks_from(guest, source)
    await_no_more(agent, guest)
    assert list(slots(agent, guest).values()) == [guest.ip, other]
    batches = {s: guest.start_many(40, 20, path=LOCAL_IPV4, source=s) for s in (guest.ip, other)}
    for source, batch in batches.items():
        samples = batch.samples()
        assert [sample.error for sample in samples if sample.error] == []
        assert {(sample.status, sample.body.decode()) for sample in samples} == {(200, source)}
    assert packet_ins(agent, outcome="learned") - before == 2
    for source in (guest.ip, other):
        reply = guest.curl(LOCAL_IPV4, "--local-port", "40000", source=source)
        assert (reply.status, reply.text, reply.port) == (200, source, 40000)


def test_changed_address_is_served_at_once(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    asks_from(guest, guest.ip)
    before = packet_ins(agent)
    guest.set_address("10.9.9.9/24")
    with Capture(host.namespace, guest.port) as capture:
        asks_from(guest, "10.9.9.9")
        check_asked(agent, before, capture)
    assert sorted(slots(agent, guest).values()) == ["10.0.0.5", "10.9.9.9"]
    former, before = guest.mac, packet_ins(agent)
    guest.set_mac("fa:16:3e:99:99:99")
    with Capture(host.namespace, guest.port) as capture:
        asks_from(guest, "10.9.9.9")
        assert {syn.source_mac for syn in capture.syns()} == {guest.mac}
        check_asked(agent, before, capture)
    guest.set_mac(former)
    before = packet_ins(agent)
    asks_from(guest, "10.9.9.9")
    assert packet_ins(agent) == before


ROUTES: dict[Route, str] = {
    "on-link": "10.0.0.5/24",
    "on-link-host": "10.0.0.5/24",
    "gateway": "10.0.0.5/24",
    "host-route": "10.0.0.5/24",
    "link-local": "169.254.7.7/16",
}


def test_a_guest_is_served_with_any_route(
    host: OpenvSwitch, agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    for route, address in ROUTES.items():
        guest = make_guest(route, address=address, route=route, ids=project_ids(route))
        put_nova(nova, guest)
        before = packet_ins(agent)
        with Capture(host.namespace, guest.port) as capture:
            for _ in range(3):
                asks_own(guest)
            check_asked(agent, before, capture, connections=3)
        await_no_more(agent, guest)
