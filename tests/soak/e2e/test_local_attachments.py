"""Two VMs get trunks of dfmeta, and the driver ``local`` connects their containers."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from typing import Any

import pytest

from dfmeta.attach.model import Attachment, Network, Parent
from dfmeta.ports.attachments import LocalDriver
from dfmeta.store.db.repository import Repository
from tests.harness.agent import Agent
from tests.harness.container import Container
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own
from tests.host.ovs import vms as in_ovsdb

RED, BLUE = 100, 200
"""VLAN ids of the containers of two networks, the same in both VMs."""
UNKNOWN = 300
"""A VLAN id without an attachment."""
LOCAL_VLAN = 11
"""VLAN of the red network on the integration bridge."""
SUBNET = IPv4Network("10.9.0.0/24")
NETWORKS = {
    "red": Network(name="red", subnet=SUBNET, local_vlan=LOCAL_VLAN),
    "blue": Network(name="blue", subnet=SUBNET, local_vlan=12),
}
NETWORK_OF = {RED: "red", BLUE: "blue"}
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
FULL = 1500 - 20 - 8
"""Bytes of UDP in a packet of 1,500 bytes."""
SOON = 0.3
"""Seconds in which an answer would have come."""

host, agent = shared.host, shared.agent_with()


@dataclass
class Vm:
    """A VM with its containers, as its host sees them."""

    guest: Guest
    containers: dict[int, Container] = field(default_factory=dict)

    @property
    def parent(self) -> Parent:
        """The parent of its trunk."""
        return in_ovsdb.parent(
            f"tpi-{self.guest.ids.iface_id}"[:15], self.guest.ids.iface_id, self.guest.instance_id
        )

    def attachments(self) -> list[Attachment]:
        """The attachments of its containers that have a network."""
        return [
            replace(
                in_ovsdb.attachment(
                    self.parent, vid, network=network, instance=self.containers[vid].instance_id
                ),
                mac=self.containers[vid].mac,
                port_id=self.containers[vid].ids.iface_id,
            )
            for vid, network in NETWORK_OF.items()
        ]


@dataclass
class Site:
    """Both VMs, without and with trunks."""

    host: OpenvSwitch
    agent: Agent
    vms: list[Vm]
    before: dict[str, dict[str, Any]]
    """The rows of OVSDB before the VMs got their trunks."""
    connection: tuple[socket.socket, socket.socket]
    """Between the VMs, from before."""

    @property
    def driver(self) -> LocalDriver:
        """The driver, as the daemon makes it."""
        return LocalDriver(self.host.ovsdb_connection, BRIDGE, NETWORKS)

    def trunk(self, verb: str, port: str) -> str:
        """Run ``dfmeta trunk``; return its line."""
        return self.agent.ctl("trunk", verb, port).stdout

    def states(self) -> dict[str, str]:
        """The state of each port that the daemon knows."""
        return {row["port"]: row["state"] for row in self.agent.admin("/ports").json()}


def vm_of(host: OpenvSwitch, agent: Agent, stack: ExitStack, number: int) -> Vm:
    guest = stack.enter_context(Guest(host, f"vm{number}", address=f"10.0.0.{number}/24"))
    made = Vm(guest)
    for place, vid in enumerate((RED, BLUE, UNKNOWN, LOCAL_VLAN), 1):
        container = Container(
            guest,
            vid,
            address=f"10.9.0.{number}{place}/24",
            mac=f"fa:16:3f:00:0{number}:0{place}",
        )
        made.containers[vid] = stack.enter_context(container)
    with Repository(f"sqlite:///{agent.state_path}/store.db") as records:
        for one in (guest, *made.containers.values()):
            records.put(one.instance_id, document={"hostname": one.name})
    return made


@pytest.fixture(scope="module")
def site(host: OpenvSwitch, agent: Agent) -> Iterator[Site]:
    """Two VMs with trunks and attachments, which get both beside the serving daemon."""
    with ExitStack() as stack:
        vms = [vm_of(host, agent, stack, number) for number in (1, 2)]
        for vm in vms:
            asks_own(vm.guest)
        connection = connect(vms[0].guest, vms[1].guest)
        for end in connection:
            stack.enter_context(contextlib.closing(end))
        made = Site(host, agent, vms, in_ovsdb.rows(host), connection)
        for vm in vms:
            said = made.trunk("enable", vm.guest.port)
            assert said.startswith(f"{vm.guest.port}: is on tbr-")
            assert said.endswith(f", connected by {vm.parent.port_name}\n")
            made.driver.make(vm.parent, vm.attachments())
        wait_for(lambda: set(made.states().values()) == {"served"}, "all to be served")
        yield made


def connect(one: Guest, other: Guest) -> tuple[socket.socket, socket.socket]:
    with other.namespace.open_socket(socket.AF_INET) as listener:
        listener.bind((other.ip, 7000))
        listener.listen()
        near = one.namespace.connect(other.ip, 7000)
        far, _address = listener.accept()
    return near, far


def passes_full_packets(one: Guest, other: Guest) -> bool:
    """Return whether a packet of 1,500 bytes arrives in one piece."""
    with (
        other.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
        one.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
    ):
        far.bind((other.ip, 7001))
        near.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        near.sendto(bytes(FULL), (other.ip, 7001))
        return len(far.recv(65536)) == FULL


def test_vms_keep_their_connections_and_metadata(site: Site) -> None:
    """A connection between them lives on, and each still gets its own metadata."""
    near, far = site.connection
    near.send(b"still there")
    assert far.recv(100) == b"still there"
    first, second = (vm.guest for vm in site.vms)
    assert first.ping(second.ip)
    assert passes_full_packets(first, second)
    for vm in site.vms:
        asks_own(vm.guest)
        asks_own(vm.guest, host=OPENSTACK6)


def test_containers_reach_those_of_their_network_across_vms(site: Site) -> None:
    for vid, other in ((RED, BLUE), (BLUE, RED)):
        first, second = (vm.containers[vid] for vm in site.vms)
        assert first.ping(second.ip)
        assert passes_full_packets(first, second)
        for vm in site.vms:
            assert not first.ping(vm.containers[other].ip, timeout=SOON)


def test_a_vlan_without_an_attachment_reaches_nothing(site: Site) -> None:
    """Also not the one that is a VLAN of the integration bridge: tpt- carries no tags."""
    for vid in (UNKNOWN, LOCAL_VLAN):
        stray = site.vms[0].containers[vid]
        others = [site.vms[1].containers[one] for one in (RED, BLUE, vid)]
        for one in (*others, site.vms[0].containers[RED]):
            assert not stray.ping(one.ip, timeout=SOON)
        assert stray.curl("/latest/meta-data/", timeout=SOON).status == 0


def test_z_all_is_put_back_as_it_was(site: Site) -> None:
    """The last test of the module."""
    site.driver.remove([one for vm in site.vms for one in vm.attachments()])
    for vm in site.vms:
        said = site.trunk("disable", vm.parent.port_name)
        assert said.startswith(f"{vm.guest.port}: is on br-int; tbr-")
        assert site.trunk("disable", vm.guest.port) == f"{vm.guest.port}: has no trunk\n"
    assert in_ovsdb.rows(site.host) == site.before
    ports = {vm.guest.port: "served" for vm in site.vms}
    wait_for(lambda: site.states() == ports, "the VMs on br-int")
    near, far = site.connection
    far.send(b"as before")
    assert near.recv(100) == b"as before"
    for vm in site.vms:
        asks_own(vm.guest)
        done = site.agent.ctl("doctor", "--format", "json", check=False)
        trunks = [one for one in json.loads(done.stdout) if one["check"] == "trunks"]
        assert [one for one in trunks if one["status"] == "wrong"] == []
