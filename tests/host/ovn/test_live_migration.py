"""A guest moves to another chassis: at each moment its host answers, and no other."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.ovn import Central, Chassis
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.support import is_unanswered
from tests.host.e2e.test_faults import MANY, PATH
from tests.host.ovn.cloud import GATEWAY, Network, lease

CABLE = "cable"
MAC = "fa:16:3e:00:00:77"
ADDRESS, NEIGHBOUR = "10.0.0.7", "10.0.0.8"
IDS = Ids(iface_id=uuid_of("port"), vm_uuid=uuid_of("instance"))
NEIGHBOURS = Ids(iface_id=uuid_of("its port"), vm_uuid=uuid_of("its instance"))


@dataclass
class Compute:
    """A compute node. Its store says where the answer came from."""

    name: str
    host: OpenvSwitch
    chassis: Chassis
    agent: Agent
    make_guest: MakeGuest

    def plug(self, ids: Ids, address: str, *, mac: str = MAC) -> Guest:
        """Make the guest of a port here."""
        guest = self.make_guest(
            self.name, address=f"{address}/24", mac=mac, route="none", ids=ids, plug=False
        )
        guest.plug()
        self.agent.put(ids.vm_uuid, f"{ids.vm_uuid} at {self.name}")
        return guest


@pytest.fixture(scope="module")
def computes(central: Central) -> Iterator[list[Compute]]:
    """Provide two compute nodes with a tunnel between them."""
    with ExitStack() as stack:
        result = []
        for number, name in enumerate(("source", "target"), 1):
            # The userspace datapath sends tunnels through a bridge with the address.
            host = stack.enter_context(OpenvSwitch(bridges=("br-int", "br-phy")))
            address = f"192.0.2.{number}"
            host.namespace.ip(f"addr add {address}/24 dev br-phy", "link set br-phy up")
            chassis = stack.enter_context(Chassis(host, central, name=name, address=address))
            agent = stack.enter_context(Agent(host)).start()
            result.append(Compute(name, host, chassis, agent, MakeGuest(host, stack)))
        source, target = result
        netns.veth(source.host.namespace, CABLE, target.host.namespace, CABLE)
        for compute in result:
            compute.host.vsctl("add-port", "br-phy", CABLE)
        yield result
        for compute in result:
            compute.agent.stop()


def hostname(guest: Guest) -> str:
    """Return the answer to a guest."""
    return guest.curl(PATH).text


def announce(guest: Guest) -> None:
    """Send the RARP request with which QEMU announces a guest that has arrived."""
    mac = bytes.fromhex(MAC.replace(":", ""))
    arp = bytes.fromhex("0001080006040003") + (mac + bytes(4)) * 2
    guest.send_frames(b"\xff" * 6 + mac + b"\x80\x35" + arp.ljust(46, b"\0"))


def test_source_answers_until_the_target_runs(central: Central, computes: list[Compute]) -> None:
    source, target = computes
    network = Network(central, "green")
    network.add(IDS.iface_id, MAC, ADDRESS)
    at_source = source.plug(IDS, ADDRESS)
    network.add(NEIGHBOURS.iface_id, "fa:16:3e:00:00:78", NEIGHBOUR)
    source.plug(NEIGHBOURS, NEIGHBOUR, mac="fa:16:3e:00:00:78")
    central.nbctl("wait-until", "Logical_Switch_Port", IDS.iface_id, "up=true")
    lease(at_source)
    assert hostname(at_source) == f"{IDS.vm_uuid} at source"

    asking = at_source.start_many(
        MANY, path=PATH, host=METADATA_IP, timeout=DEADLINE, interval=0.04
    )
    # Neutron's driver at the begin of a live migration; then libvirt makes the port at the target.
    options = "requested-chassis=source,target", "activation-strategy=rarp"
    central.nbctl("lsp-set-options", IDS.iface_id, *options, wait=True)
    at_target = target.plug(IDS, ADDRESS)
    at_target.add_route(f"default via {GATEWAY} dev eth0")
    blocked = f"priority=1000,in_port={at_target.ofport} actions=drop"
    wait_for(lambda: any(blocked in flow for flow in target.host.flows()), "OVN's block")
    central.nbctl("sync", wait=True)
    assert is_unanswered(at_target)
    assert hostname(at_source) == f"{IDS.vm_uuid} at source"
    assert target.agent.metric("dfmeta_packet_ins_total") == 0
    ran = target.agent.ctl("doctor", check=False)
    assert "waits for activation (live migration): " in ran.stdout
    assert ran.returncode == 0, ran.stdout

    samples = asking.finish()
    assert {sample.body.decode() for sample in samples} == {f"{IDS.vm_uuid} at source"}
    announce(at_target)
    wait_for(lambda: not any(blocked in flow for flow in target.host.flows()), "the activation")
    at_source.del_port()
    central.nbctl("lsp-set-options", IDS.iface_id, "requested-chassis=target", wait=True)
    # A guest that has moved has its neighbours; this one has asked for the gateway in vain.
    at_target.forget_neighbours()
    assert hostname(at_target) == f"{IDS.vm_uuid} at target"
    assert is_unanswered(at_source)
    assert target.agent.ctl("doctor").returncode == 0
    assert at_target.ping(GATEWAY)
    assert at_target.ping(NEIGHBOUR), "through the tunnel"
