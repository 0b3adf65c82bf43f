"""Beside Neutron's own agent: its DHCP and DNS, its meters, another firewall, its first start."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest
from tests.harness.neutron_agent import OUTSIDE, NeutronAgent
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import test_neutron_agent as beside
from tests.host.e2e.support import asks_own, put
from tests.host.e2e.test_neutron_agent import (
    OURS,
    TABLES,
    World,
    added,
    asking,
    make_twins,
    meters,
    own_flows,
    requests,
    tables,
    tell_of_twins,
    used_meters,
)

host, world, neutron, agent = beside.host, beside.world, beside.neutron, beside.agent
pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]
SPOOFING = {24, 25}
"""Tables of the spoofing protection without it; in 25 nothing stands with it."""


PACKETS = 3
"""Thousands a second, of a guest that Neutron limits."""


@pytest.fixture
def name_server(world: World) -> Iterator[None]:
    """Answers all that Neutron forwards, each query with its bytes in reverse.

    Neutron forwards DHCP requests as well, and waits long for an answer to each.
    """

    neutron = world.neutron

    def serve() -> None:
        query = b"the first"
        while query:
            query, client = server.recvfrom(1500)
            server.sendto(query[::-1], client)

    with neutron.host.namespace.open_socket(kind=socket.SOCK_DGRAM) as server:
        server.bind(neutron.upstream)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.sendto(b"", neutron.upstream)
            thread.join()


def dhcp_discover(guest: Guest, transaction: int) -> bytes:
    """RFC 2131: a message that looks for a server, with the fields that matter."""
    head = struct.pack("!4B2I", 1, 1, 6, 0, transaction, 0)
    hardware = bytes.fromhex(guest.mac.replace(":", ""))
    return head + bytes(16) + hardware.ljust(16, b"\0") + bytes(192) + DHCP_DISCOVER


DHCP_DISCOVER = bytes.fromhex("63825363 350101 ff")
"""The magic cookie, DHCPDISCOVER, the end."""


def answer_to(client: socket.socket, question: bytes, server: tuple[str, int]) -> bytes:
    """Asked again each second, as a user of UDP does."""
    client.settimeout(1)
    for _ in range(10):
        client.sendto(question, server)
        with contextlib.suppress(TimeoutError):
            return client.recv(1500)
    raise TimeoutError(f"no answer of {server}")


@pytest.mark.usefixtures("name_server")
def test_neutrons_dhcp_answers(world: World) -> None:
    """Its packet-ins reach it, and us they do not."""
    before = world.agent.metric("dfmeta_packet_ins_total")
    for number, guest in enumerate(world.guests, 0x4000):
        with guest.namespace.open_socket(kind=socket.SOCK_DGRAM) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, guest.device.encode())
            client.bind(("", 68))
            offer = answer_to(client, dhcp_discover(guest, number), ("255.255.255.255", 67))
        assert struct.unpack("!I", offer[4:8]) == (number,)
        assert socket.inet_ntoa(offer[16:20]) == guest.ip
    assert world.agent.metric("dfmeta_packet_ins_total") == before


@pytest.mark.usefixtures("name_server")
def test_neutrons_dns_on_our_address_answers(world: World) -> None:
    for guest in world.guests:
        # Neutron takes the padding of a short frame for a part of the query.
        query = f"the question of the {guest.name} guest".encode()
        with guest.namespace.open_socket(kind=socket.SOCK_DGRAM) as client:
            assert answer_to(client, query, (METADATA_IP, 53)) == query[::-1]


def neutron_takes_our_meter(world: World, guest: Guest) -> None:
    """It draws its numbers blindly, changes a meter that it finds there, and uses it."""
    flows = [flow for flow in world.host.flows(match=f"in_port={guest.ofport}") if OURS in flow]
    number = min(number for flow in flows for number in used_meters(flow))
    # Where Neutron keeps the number of a port's meter.
    key = f"other_config:pps_{guest.ids.iface_id}_egress"
    world.host.vsctl("set", "Port", guest.port, f"{key}={number}")
    world.neutron.change(guest, packet_rate=PACKETS)
    wait_for(lambda: limited(world.host), "Neutron to take the meter")
    assert meters(world.host)[number] == PACKETS * 1000


def limited(host: OpenvSwitch) -> list[str]:
    """Flows by which Neutron limits what guests send."""
    return [flow for flow in host.flows(match="table=58") if used_meters(flow)]


def test_neutron_takes_our_meter_for_its_own_and_deletes_it(world: World) -> None:
    guest = world.friends[1]
    asks_own(guest)
    everything = own_flows(world.host)
    neutron_takes_our_meter(world, guest)
    asks_own(guest)
    world.neutron.change(guest, packet_rate=0)
    wait_for(lambda: not limited(world.host), "Neutron to delete it")
    wait_for(lambda: own_flows(world.host) == everything, "our flows to be back")
    guest.add_address("10.0.0.77/24")
    guest.forget_neighbours()
    for source in ("", "10.0.0.77"):
        asks_own(guest, source=source)


def test_without_its_firewall_too(world: World) -> None:
    """ARP and MAC spoofing protection stand in tables of their own then."""
    world.neutron.configure({"SECURITYGROUP": {"firewall_driver": "noop"}})
    world.neutron.restart()
    world.neutron.clean_up()
    assert tables(world.host) >= SPOOFING
    for guest in world.guests:
        asks_own(guest)
        asks_own(guest, host=OPENSTACK6)
    world.twins[1].add_address("169.254.8.16/16")
    asks_own(world.twins[1], source="169.254.8.16")


def test_all_flows_go_at_its_first_start_and_when_vswitchd_is_restarted() -> None:
    """drop_flows_on_start, and before that the bridge gets its first controller."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        twins = make_twins(host, stack)
        agent = stack.enter_context(Agent(host)).start()
        for guest in twins:
            put(agent, guest, hostname=guest.name)
            asks_own(guest)
        everything = own_flows(host)
        neutron = stack.enter_context(NeutronAgent(host, {"AGENT": {"drop_flows_on_start": True}}))
        tell_of_twins(neutron, twins)
        before = added(agent)
        with asking(requests(agent), twins):
            neutron.start()
            neutron.clean_up()
            wait_for(lambda: own_flows(host) == everything, "our flows to be back")
        assert added(agent) - before >= everything
        before = added(agent)
        with asking(requests(agent), twins):
            with neutron.rewiring():
                host.kill("ovs-vswitchd")
                host.start("ovs-vswitchd")
            wait_for(lambda: own_flows(host) == everything, "our flows to be back")
        assert added(agent) - before >= everything
        # Not as it was: Neutron forgets to translate VLANs then, without us as well.
        assert tables(host) >= TABLES
        for guest in twins:
            asks_own(guest)
        agent.stop()
