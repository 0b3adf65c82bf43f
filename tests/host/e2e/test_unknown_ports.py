"""Ports that are nobody's are not answered; those whose instance comes late are, at once."""

from __future__ import annotations

import time

import pytest

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    PROMPT,
    Attempt,
    Capture,
    asks_own,
    put,
    uuid_in,
)

pytestmark = pytest.mark.early

HOLD_TIMEOUT = 4


host = shared.host
agent = shared.agent_with({"df_metadata": {"hold_timeout": HOLD_TIMEOUT}})


@pytest.fixture
def nameless(make_guest: MakeGuest) -> Guest:
    """A VIF whose instance is not known yet. It asks no ARP, so that its first SYN is a SYN."""
    return make_guest("nameless", route="gateway", ids=Ids(iface_id=uuid_of("nameless port")))


def settled(host: OpenvSwitch, guest: Guest) -> None:
    """The guest's port has its classification flow."""
    wait_for(lambda: served(host, guest.ofport), f"the flows of {guest.port}")


def served(host: OpenvSwitch, ofport: int) -> list[str]:
    return [flow for flow in host.flows() if f"in_port={ofport}," in flow]


def asks_twice_in_vain(host: OpenvSwitch, guest: Guest, *, device: str = "") -> None:
    """A SYN and its retransmission, a second later, stay without an answer."""
    with Capture(host.namespace, device or guest.port) as capture:
        attempt = Attempt(guest)
        wait_for(lambda: len(capture.syns()) >= 2, "the SYN to be sent again")
        assert attempt.connected_after(0.1) is None
        assert not [one for one in capture.segments() if one.source == METADATA_IP]
        attempt.close()


def check_released(capture: Capture, port: int, told: float) -> None:
    """The held SYN of that port was answered soon after the daemon was told, not a later one.

    By the kernel's times: until then a SYN that is sent again is held as well.
    """
    mine = capture.segments_of(port)
    answered = min(one.time for one in mine if one.is_syn_ack)
    assert told < answered < told + PROMPT
    assert not [one for one in mine if one.is_syn and told < one.time < answered]


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
        check_released(capture, sample.port, told)
        syns = len(capture.syns())
    assert agent.metric("dfmeta_held_syns") == 0
    assert 1 <= agent.metric("dfmeta_packet_ins_total", outcome="held") - held <= syns


def test_a_held_syn_is_given_up_after_hold_timeout_and_never_answered(
    host: OpenvSwitch, agent: Agent, nameless: Guest
) -> None:
    settled(host, nameless)
    with Capture(host.namespace, nameless.port) as capture:
        attempt = Attempt(nameless)
        wait_for(lambda: agent.metric("dfmeta_held_syns") == 1, "the SYN to be held")
        attempt.close()
        wait_for(lambda: agent.metric("dfmeta_held_syns") == 0, "the SYN to be given up")
        nameless.set_external_ids(vm_uuid=uuid_of("too late"))
        wait_for(lambda: instances(agent) & {uuid_of("too late")}, "the daemon to know")
        assert not [one for one in capture.segments() if one.source == METADATA_IP]
    assert "Dropped 1 held SYNs: hold_timeout passed before the instance" in agent.log()


def instances(agent: Agent) -> set[str]:
    return {row["instance"] for row in agent.admin("/ports").json()}


def test_four_held_syns_of_a_port_are_all_released(
    host: OpenvSwitch, agent: Agent, nameless: Guest
) -> None:
    settled(host, nameless)
    for number in range(6, 9):
        nameless.add_address(f"10.0.0.{number}/24")
    with Capture(host.namespace, nameless.port) as capture:
        attempts = [Attempt(nameless, f"10.0.0.{number}") for number in range(5, 9)]
        wait_for(lambda: agent.metric("dfmeta_held_syns") == 4, "four SYNs to be held")
        told = time.time()
        nameless.set_external_ids(vm_uuid=uuid_of("four"))
        for attempt in attempts:
            assert attempt.connected_after(5) is not None
            check_released(capture, attempt.port, told)
            attempt.close()


def test_a_port_without_any_ids_is_not_answered(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    before = agent.metric("dfmeta_packet_ins_total")
    guest = make_guest("nobody", route="gateway", ids=Ids(attached_mac=False))
    asks_twice_in_vain(host, guest)
    assert served(host, guest.ofport) == []
    assert agent.metric("dfmeta_packet_ins_total") == before


def test_a_port_with_an_iface_id_alone_is_not_answered(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    ids = Ids(iface_id=uuid_of("half"), attached_mac=False)
    guest = make_guest("half", route="gateway", ids=ids)
    asks_twice_in_vain(host, guest)
    assert served(host, guest.ofport) == []


def test_a_port_that_loses_its_ids_is_not_answered_any_more(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest("former", route="gateway")
    put(agent, guest)
    asks_own(guest)
    guest.set_external_ids(vm_uuid="", iface_id="")
    wait_for(lambda: not served(host, guest.ofport), "the flows to go")
    asks_twice_in_vain(host, guest)


def test_an_agents_internal_port_is_not_answered(host: OpenvSwitch, agent: Agent) -> None:
    with netns.Namespace("dhcp") as namespace:
        mac = "fa:16:3e:dc:dc:dc"
        host.vsctl(
            *("add-port", BRIDGE, "tapdhcp0", "--", "set", "Interface", "tapdhcp0"),
            *("type=internal", f'mac="{mac}"', f"external_ids:iface-id={uuid_of('dhcp')}"),
            f'external_ids:attached-mac="{mac}"',
        )
        number = host.ofport("tapdhcp0")
        host.namespace.ip(f"link set tapdhcp0 netns {namespace.name}")
        namespace.ip(
            "link set tapdhcp0 up",
            "addr add 10.0.0.2/24 dev tapdhcp0",
            f"route add {METADATA_IP}/32 dev tapdhcp0",
            f"neigh add {METADATA_IP} lladdr fa:16:3e:ff:00:01 dev tapdhcp0",
        )
        with Capture(namespace, "tapdhcp0") as capture:
            connection = namespace.open_socket()
            connection.setblocking(False)
            connection.connect_ex((METADATA_IP, 80))
            wait_for(lambda: len(capture.syns()) >= 2, "the SYN to be sent again")
            assert not [one for one in capture.segments() if one.source == METADATA_IP]
            connection.close()
        assert served(host, number) == []
        host.vsctl("del-port", "tapdhcp0")


def test_a_guest_behind_a_patch_port_is_not_answered(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
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
    assert far.ping(near.ip, timeout=5)
    asks_twice_in_vain(host, far)
    assert served(host, host.ofport("to-ext")) == []
    assert agent.metric("dfmeta_packet_ins_total") == before
    asks_own(near)
    host.vsctl("del-port", "to-ext")
    host.vsctl("del-br", "br-ext")


def test_tunnels_and_the_bridges_own_port_have_no_flows(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    ids = (f"external_ids:iface-id={uuid_of('t')}", f"external_ids:vm-uuid={uuid_of('tunnel')}")
    host.vsctl(
        *("add-port", BRIDGE, "vx0", "--", "set", "Interface", "vx0", "type=vxlan"),
        *("options:remote_ip=10.1.1.1", "options:key=7", *ids),
    )
    guest = make_guest()
    settled(host, guest)
    assert served(host, host.ofport("vx0")) == []
    assert [flow for flow in host.flows() if "in_port=LOCAL" in flow] == []
    host.vsctl("del-port", "vx0")


def test_a_dead_port_is_not_answered_until_it_lives_again(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest("dead", route="gateway")
    put(agent, guest)
    asks_own(guest)
    host.vsctl("set", "Port", guest.port, "tag=4095")
    wait_for(lambda: not served(host, guest.ofport), "the flows of the dead port to go")
    asks_twice_in_vain(host, guest)
    host.vsctl("remove", "Port", guest.port, "tag", "4095")
    settled(host, guest)
    asks_own(guest)


def test_the_port_that_os_vif_isolates_is_answered(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
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
