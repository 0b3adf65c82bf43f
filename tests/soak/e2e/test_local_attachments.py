"""Two VMs get trunks of dfmeta beside their traffic; the driver ``local`` connects containers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

import pytest

from dfmeta.attach.model import Attachment, Network, Parent
from dfmeta.ports.attachments import LocalDriver
from tests.harness.agent import Agent
from tests.harness.container import Container
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import SILENCE, asks_own, put
from tests.host.ovs import vms as in_ovsdb

RED, UNKNOWN, LOCAL_VLAN = 100, 300, 11
"""VLAN ids: of an attachment, of none, and of none but of a VLAN of the integration bridge."""
NETWORKS = {
    "red": Network(name="red", subnet=IPv4Network("10.9.0.0/24"), local_vlan=LOCAL_VLAN),
}
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
FULL = 1500 - 20 - 8
"""Bytes of UDP in a packet of 1,500 bytes."""

host, agent = shared.host, shared.agent_with()


@dataclass
class Vm:
    """A VM with its containers, by their VLAN ids."""

    guest: Guest
    containers: dict[int, Container]

    @property
    def parent(self) -> Parent:
        """Return the parent of its trunk."""
        iface_id = self.guest.ids.iface_id
        return in_ovsdb.parent(f"tpi-{iface_id}"[:15], iface_id, self.guest.instance_id)

    def attachment(self) -> Attachment:
        """Return the attachment of its container in the network."""
        red = self.containers[RED]
        made = in_ovsdb.attachment(self.parent, RED, network="red", instance=red.instance_id)
        return replace(made, mac=red.mac, port_id=red.ids.iface_id)


@pytest.fixture
def vms(host: OpenvSwitch, agent: Agent) -> Iterator[list[Vm]]:
    """Two VMs without trunks."""
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            address = f"10.0.0.{number}/24"
            guest = stack.enter_context(Guest(host, f"vm{number}", address=address))
            vm = Vm(guest, {})
            for place, vid in enumerate((RED, UNKNOWN, LOCAL_VLAN), 1):
                address, mac = f"10.9.0.{number}{place}/24", f"fa:16:3f:00:0{number}:0{place}"
                one = Container(guest, vid, address=address, mac=mac)
                vm.containers[vid] = stack.enter_context(one)
            for owner in (guest, *vm.containers.values()):
                put(agent, owner)
            asks_own(guest)
            made.append(vm)
        yield made


def assert_full_packets_pass(one: Guest, other: Guest) -> None:
    """Packets of 1,500 bytes arrive in one piece."""
    with (
        other.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
        one.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
    ):
        far.bind((other.ip, 7001))
        near.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        near.sendto(bytes(FULL), (other.ip, 7001))
        assert len(far.recv(65536)) == FULL


def test_vms_keep_their_connections_while_trunks_come_and_go(
    host: OpenvSwitch, agent: Agent, vms: list[Vm]
) -> None:
    before = in_ovsdb.rows(host)
    first, second = (vm.guest for vm in vms)
    driver = LocalDriver(host.ovsdb_connection, BRIDGE, NETWORKS)

    def all_are_served(count: int) -> bool:
        states = [row["state"] for row in agent.admin("/ports").json()]
        return states == ["served"] * count

    with second.namespace.open_socket(socket.AF_INET) as listener:
        listener.bind((second.ip, 7000))
        listener.listen()
        with first.namespace.connect(second.ip, 7000) as near, listener.accept()[0] as far:
            for vm in vms:
                agent.ctl("trunk", "enable", vm.guest.port)
                driver.make(vm.parent, [vm.attachment()])
            wait_for(lambda: all_are_served(4), "VMs and containers to be served")
            near.send(b"with trunks")
            assert far.recv(100) == b"with trunks"
            assert_full_packets_pass(first, second)
            for vm in vms:
                for one in (vm.guest, vm.containers[RED]):
                    asks_own(one)
                    asks_own(one, host=OPENSTACK6)
            reds = [vm.containers[RED] for vm in vms]
            assert reds[0].ping(reds[1].ip)
            assert_full_packets_pass(*reds)
            for vid in (UNKNOWN, LOCAL_VLAN):
                stray, other = (vm.containers[vid] for vm in vms)
                for one in (*reds, other):
                    assert not stray.ping(one.ip, timeout=SILENCE)
            driver.remove([vm.attachment() for vm in vms])
            for vm in vms:
                agent.ctl("trunk", "disable", vm.parent.port_name)
            assert in_ovsdb.rows(host) == before
            wait_for(lambda: all_are_served(2), "the VMs on br-int")
            far.send(b"as before")
            assert near.recv(100) == b"as before"
    for vm in vms:
        asks_own(vm.guest)
