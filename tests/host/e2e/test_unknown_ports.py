"""Unknown and odd ports are not answered; those whose instance comes late are, at once."""

import time
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import PROMPT, Attempt, Capture, asks_own, packets, put, uuid_in

pytestmark = pytest.mark.early

host = shared.host
agent = shared.agent_with({"df_metadata": {"hold_timeout": 4}})


@pytest.fixture
def nameless(make_guest: MakeGuest) -> Guest:
    """A VIF whose instance is not known yet. It asks no ARP, so that its first SYN is a SYN."""
    return make_guest("nameless", route="gateway", ids=Ids(iface_id=uuid_of("nameless port")))


def settled(host: OpenvSwitch, guest: Guest) -> None:
    """The guest's port has its classification flow."""
    wait_for(lambda: served(host, guest.ofport), f"the flows of {guest.port}")


def served(host: OpenvSwitch, ofport: int) -> list[str]:
    return [flow for flow in host.flows() if f"in_port={ofport}," in flow]


def row(agent: Agent, port: str) -> dict[str, Any]:
    """The port's row in the listing; empty: there is none."""
    return next((row for row in agent.admin("/ports").json() if row["port"] == port), {})


def asks_twice_in_vain(host: OpenvSwitch, guest: Guest) -> None:
    """A SYN and its repetition, a second later, stay without an answer."""
    with Capture(host.namespace, guest.port) as capture, Attempt(guest):
        assert_unanswered(capture)


def assert_unanswered(capture: Capture) -> None:
    wait_for(lambda: any(syn.is_repeated for syn in capture.syns()), "the SYN to be repeated")
    assert not [segment for segment in capture.segments() if segment.source == METADATA_IP]


def test_syn_is_held_until_the_instance(host: OpenvSwitch, agent: Agent, nameless: Guest) -> None:
    instance = uuid_of("instance that comes late")
    agent.put(instance, "late")
    settled(host, nameless)
    held = agent.metric("dfmeta_packet_ins_total", outcome="held")
    with Capture(host.namespace, nameless.port) as capture:
        batch = nameless.start_many(1)
        wait_for(lambda: agent.metric("dfmeta_held_syns") == 1, "the SYN to be held")
        assert not [segment for segment in capture.segments() if segment.source == METADATA_IP]
        message = time.time()
        nameless.set_external_ids(vm_uuid=instance)
        (sample,) = batch.samples()
        assert (sample.status, sample.error) == (200, "")
        assert uuid_in(sample.body) == instance
        segments = capture.segments_of(sample.port)
        # The held SYN is answered, not a later one: until then those are held as well.
        (syn,) = [segment for segment in segments if segment.is_syn]
        answered = min(segment.time for segment in segments if segment.is_syn_ack)
        assert message < answered < message + PROMPT
        assert not [when for when in syn.times if message < when < answered]
        syns = packets(capture.syns())
    assert agent.metric("dfmeta_held_syns") == 0
    assert 1 <= agent.metric("dfmeta_packet_ins_total", outcome="held") - held <= syns


@pytest.mark.parametrize("iface_id", ["", "half"], ids=["no ids", "iface-id alone"])
def test_a_port_without_ids_is_not_answered(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest, iface_id: str
) -> None:
    before = agent.metric("dfmeta_packet_ins_total")
    ids = Ids(iface_id=iface_id and uuid_of(iface_id), attached_mac=False)
    guest = make_guest("without", route="gateway", ids=ids)
    asks_twice_in_vain(host, guest)
    assert served(host, guest.ofport) == []
    assert agent.metric("dfmeta_packet_ins_total") == before


def test_dead_port_is_not_answered(host: OpenvSwitch, agent: Agent, make_guest: MakeGuest) -> None:
    guest = make_guest("dead", route="gateway")
    put(agent, guest)
    asks_own(guest)
    host.vsctl("set", "Port", guest.port, "tag=4095")
    wait_for(lambda: not served(host, guest.ofport), "the flows of the dead port to go")
    asks_twice_in_vain(host, guest)
    host.vsctl("remove", "Port", guest.port, "tag", "4095")
    settled(host, guest)
    asks_own(guest)
    guest.set_external_ids(vm_uuid="", iface_id="")
    wait_for(lambda: not served(host, guest.ofport), "the flows to go")
    asks_twice_in_vain(host, guest)


def test_patch_port_is_not_answered(host: OpenvSwitch, agent: Agent, make_guest: MakeGuest) -> None:
    before = agent.metric("dfmeta_packet_ins_total")
    host.add_bridge("br-ext")
    for name, bridge, peer in (("to-ext", BRIDGE, "to-int"), ("to-int", "br-ext", "to-ext")):
        host.vsctl(
            *("add-port", bridge, name, "--", "set", "Interface", name, "type=patch"),
            *(f"options:peer={peer}", f"external_ids:iface-id={uuid_of(name)}"),
            *('external_ids:attached-mac="fa:16:3e:01:01:01"',),
            f"external_ids:vm-uuid={uuid_of('behind')}",
        )
    near = make_guest("near", address="10.0.0.6/24")
    put(agent, near)
    far = make_guest("far", address="10.0.0.5/24", route="gateway", bridge="br-ext")
    assert far.ping(near.ip)
    asks_twice_in_vain(host, far)
    assert served(host, host.ofport("to-ext")) == []
    assert agent.metric("dfmeta_packet_ins_total") == before
    asks_own(near)
    host.vsctl("del-port", "to-ext")
    host.vsctl("del-br", "br-ext")


def test_isolated_port_is_answered(host: OpenvSwitch, agent: Agent, make_guest: MakeGuest) -> None:
    guest = make_guest("isolated")
    host.vsctl("set", "Port", guest.port, "tag=4095", "vlan_mode=trunk", "trunks=4095")
    put(agent, guest)
    asks_own(guest)
    # Neutron's agent wires it, in one transaction; nothing of it is ours to notice.
    host.vsctl(
        *("set", "Port", guest.port, "tag=1", "--", "clear", "Port", guest.port, "vlan_mode"),
        *("--", "clear", "Port", guest.port, "trunks"),
    )
    asks_own(guest)


def test_a_port_without_a_number_is_shown_and_costs_no_other_port(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest("fine")
    put(agent, guest)
    # No such device: Open vSwitch gives it -1. And one that has no number at all.
    name = uuid_of("nowhere")
    host.vsctl(
        *("add-port", "br-int", "nowhere", "--", "set", "Interface", "nowhere"),
        f"external_ids:iface-id={name}",
        f"external_ids:vm-uuid={name}",
        wait=False,
    )
    wait_for(lambda: "-1" in host.vsctl("get", "Interface", "nowhere", "ofport"), "its -1")
    asks_own(guest)
    assert row(agent, "nowhere")["state"] == "no ofport"
    assert row(agent, guest.port)["state"] == "served"
    wait_for(lambda: agent.metric("dfmeta_ports", state="no ofport") == 1, "the metric")
    host.vsctl("del-port", "nowhere")


def test_an_instance_that_is_no_uuid_is_shown_and_costs_no_other_port(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    fine, odd = make_guest("fine", address="10.0.0.6/24"), make_guest("odd", route="gateway")
    for guest in (fine, odd):
        put(agent, guest)
        asks_own(guest)
    right = odd.instance_id
    for instance in ("not-a-uuid", "{braces", "a b", "1" * 400):
        odd.set_external_ids(vm_uuid=instance)
        wait_for(lambda: row(agent, odd.port)["state"] == "broken", "the fault")
        assert "is not a UUID" in row(agent, odd.port)["fault"]
        asks_own(fine)
    asks_twice_in_vain(host, odd)
    odd.set_external_ids(vm_uuid=right)
    wait_for(lambda: row(agent, odd.port)["state"] == "served", "the port to be served")
    asks_own(odd)
