"""Unknown and odd ports are not answered; those whose instance comes late are, at once."""

import time

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    PROMPT,
    Capture,
    packets,
    uuid_in,
)

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


def test_a_syn_is_held_and_released_when_the_instance_comes(
    host: OpenvSwitch, agent: Agent, nameless: Guest
) -> None:
    instance = uuid_of("instance that comes late")
    agent.put(instance, "late")
    settled(host, nameless)
    held = agent.metric("dfmeta_packet_ins_total", outcome="held")
    with Capture(host.namespace, nameless.port) as capture:
        batch = nameless.start_many(1)
        wait_for(lambda: agent.metric("dfmeta_held_syns") == 1, "the SYN to be held")
        assert not [one for one in capture.segments() if one.source == METADATA_IP]
        told = time.time()
        nameless.set_external_ids(vm_uuid=instance)
        (sample,) = batch.samples()
        assert (sample.status, sample.error) == (200, "")
        assert uuid_in(sample.body) == instance
        segments = capture.segments_of(sample.port)
        # The held SYN is answered, not a later one: until then those are held as well.
        (syn,) = [one for one in segments if one.is_syn]
        answered = min(one.time for one in segments if one.is_syn_ack)
        assert told < answered < told + PROMPT
        assert not [when for when in syn.times if told < when < answered]
        syns = packets(capture.syns())
    assert agent.metric("dfmeta_held_syns") == 0
    assert 1 <= agent.metric("dfmeta_packet_ins_total", outcome="held") - held <= syns
