"""Containers of two VMs: dfmeta-cni, the API, the engine, the driver ``local`` and Open vSwitch."""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dfmeta.flows.pipeline import Layout, Stage
from dfmeta.guest.cni import Code
from dfmeta.model import TAP_MAC
from tests.core.flows import frames
from tests.harness.agent import Agent
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed
from tests.host.e2e import shared
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.support import Capture, put

host = shared.host
agent = shared.agent_with(
    {
        "attachments": {"enabled": True, "rate": 100, "gc_min_age": 0, "rest": 1},
        "attachment_network:red": {"subnet": "10.9.0.0/24", "local_vlan": 11},
        "attachment_network:blue": {"subnet": "10.9.1.0/24", "local_vlan": 12},
    }
)
EVERYWHERE = "10.9.0.0/16 dev eth0"
"""Route by which a container would reach the addresses of both networks."""
INTERVAL = 0.005
"""Seconds between two frames of an attack; a bridge without the checks passed them for 0.03."""
CHECKS = f"table={Layout().number(Stage.SOURCE)}"
HAS_DROPPED = re.compile("n_packets=[1-9].* actions=drop")
NORMAL = "priority=0,actions=NORMAL"
SOON = 0.5
"""Seconds in which a connection would have been made."""

Pods = dict[tuple[int, str], Pod]


@pytest.fixture(scope="module")
def vms(host: OpenvSwitch, agent: Agent) -> Iterator[list[ContainerVm]]:
    """Provide two VMs with trunks."""
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            vm = stack.enter_context(ContainerVm(host, f"vm{number}", f"10.0.0.{number}/24"))
            put(agent, vm.guest)
            agent.ctl("trunk", "enable", vm.guest.port)
            wait_for(vm.ready, "the VM to be ready")
            made.append(vm)
        yield made


@pytest.fixture
def pods(vms: list[ContainerVm]) -> Iterator[Pods]:
    """Provide two containers of each VM, each on a network of its own."""
    with ExitStack() as stack:
        made = {}
        for number, vm in enumerate(vms):
            for network in ("red", "blue"):
                pod = stack.enter_context(Pod(vm, f"{network}{number}", network)).add()
                pod.ip(f"route replace {EVERYWHERE}")
                made[number, network] = pod
        yield made
        for pod in made.values():
            assert pod.call("DEL") == (0, None)
    for vm in vms:
        assert vm.attachments() == []
        assert vm.traces() == ([], [])


def ends(host: OpenvSwitch) -> list[str]:
    """The ports of attachments on the host."""
    names = [row["name"] for row in host.records("Interface", "name")]
    return [name for name in names if name.startswith(("spi-", "spt-"))]


def test_container_reaches_its_network_and_own_metadata_alone(agent: Agent, pods: Pods) -> None:
    for (number, network), pod in pods.items():
        for (other_number, other_network), other in pods.items():
            if other_number != number:
                same = network == other_network
                assert pod.reaches(other, **({} if same else {"timeout": SOON})) is same
        assert "169.254.169.254 dev eth0" in pod.ip("route show")
        own = {"local-hostname": pod.id, "local-ipv4": pod.address}
        assert {name: pod.get(f"/latest/meta-data/{name}") for name in own} == own
    rows = {row["mac"]: row for row in agent.admin("/ports").json()}
    for pod in pods.values():
        row = rows[pod.result["interfaces"][0]["mac"]]
        assert (row["kind"], row["requests"]["2xx"]) == ("subport", 2)


def forged(vm: ContainerVm, pod: Pod, other: Pod, victim: Pod) -> list[bytes]:
    """Frames of the VM's root, in the VLAN of one of its containers, in the name of another's."""
    (vid,) = [
        attachment["vid"] for attachment in vm.attachments() if attachment["container"] == pod.id
    ]
    own, dst = (pod_.result["interfaces"][0]["mac"] for pod_ in (pod, victim))
    reply = frames.arp(op=2, sha=own, spa=other.address, tpa=victim.address, tha=dst)
    data = frames.udp(b"forged", dport=7)
    packet = frames.ipv4(data, dst=victim.address, src=other.address, proto=17)
    mac = other.result["interfaces"][0]["mac"]
    return [
        frames.ethernet(reply, dst=dst, src=own, kind=0x0806, tags=[vid]),
        frames.ethernet(packet, dst=dst, src=own, tags=[vid]),
        frames.ethernet(packet, dst=dst, src=mac, tags=[vid]),
    ]


def dropped(agent: Agent) -> int:
    """How many frames of containers with other addresses the switch has dropped."""
    flows = json.loads(agent.ctl("flows", "--format", "json").stdout)
    assert {flow["state"] for flow in flows} == {"ok"}
    return sum(flow["packets"] for flow in flows if flow["purpose"] == "source-drop")


def test_root_of_a_vm_sends_nothing_in_the_name_of_a_container_of_another(
    agent: Agent, vms: list[ContainerVm], pods: Pods
) -> None:
    own, victim = pods[0, "red"], pods[1, "red"]
    with Pod(vms[1], "peer", "red") as peer:
        peer.add()
        # The victim knows both by now, and the switch has the flows of each container.
        assert victim.reaches(peer)
        assert own.reaches(victim)
        before = dropped(agent)
        attack = forged(vms[0], own, peer, victim)
        vms[0].guest.send_frames(*attack)
        wait_for(lambda: dropped(agent) == before + len(attack), "the frames to be dropped")
        mac = peer.result["interfaces"][0]["mac"]
        assert f"lladdr {mac}" in victim.ip(f"neigh show {peer.address}")
        assert victim.reaches(peer)
        assert own.reaches(victim)
        assert peer.call("DEL") == (0, None)


@contextlib.contextmanager
def sending(vm: ContainerVm, frame: bytes) -> Iterator[None]:
    """Send a frame again and again meanwhile."""
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(INTERVAL):
            vm.guest.send_frames(frame)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def secure(host: OpenvSwitch) -> Iterator[None]:
    """Make the bridge forward nothing without flows; it gets that of a switch from its owner."""
    host.vsctl("set-fail-mode", BRIDGE, "secure")
    host.ofctl("add-flow", BRIDGE, NORMAL)
    yield
    host.vsctl("del-fail-mode", BRIDGE)
    host.ofctl("add-flow", BRIDGE, NORMAL)


@pytest.mark.usefixtures("secure")
def test_secure_bridge_passes_no_unchecked_frame_after_a_crash_of_open_vswitch(
    host: OpenvSwitch, agent: Agent, vms: list[ContainerVm], pods: Pods
) -> None:
    own, victim = pods[0, "red"], pods[1, "red"]
    (_reply, packet, _other) = forged(vms[0], own, victim, victim)
    guest = vms[1].guest
    with Capture(guest.namespace, guest.device, arriving=True) as seen, sending(vms[0], packet):
        host.kill("ovs-vswitchd")
        host.start("ovs-vswitchd")
        wait_for(lambda: HAS_DROPPED.search(host.ofctl("dump-flows", BRIDGE, CHECKS)), "a drop")
        host.ofctl("add-flow", BRIDGE, NORMAL)
        assert own.reaches(victim)
        assert not [data for _, data in seen.frames() if b"forged" in data]
    wait_for(agent.ready, "the daemon to be ready")


def test_mac_of_another_device_is_refused(vms: list[ContainerVm], pods: Pods) -> None:
    other = pods[1, "red"].result["interfaces"][0]["mac"]
    with Pod(vms[0], "thief", "red") as pod, allowed(vms[0].inside) as connection:
        for mac in (vms[1].guest.mac, other, TAP_MAC, "00:00:5e:00:01:01"):
            path = f"/attachments/{pod.id}/eth0"
            reply = connection.ask("PUT", path, {"network": "red", "mac": mac})
            assert (reply.status, json.loads(reply.body)["error"]) == (422, "network"), mac


def test_gc_removes_what_a_crashed_runtime_left(host: OpenvSwitch, vms: list[ContainerVm]) -> None:
    vm = vms[0]
    with Pod(vm, "lost", "red") as lost, Pod(vm, "kept", "red") as kept:
        for pod in (lost, kept):
            pod.add()
            assert pod.call("CHECK", prevResult=pod.result) == (0, None)
        lost.ip("link del eth0")
        valid = [{"containerID": "kept", "ifname": "eth0"}]
        more: dict[str, Any] = {"cni.dev/valid-attachments": valid}
        assert vm.call("GC", network="red", **more) == (0, None)
        assert [attachment["container"] for attachment in vm.attachments()] == ["kept"]
        wait_for(lambda: len(ends(host)) == 2, "the ports to go")
        assert kept.call("CHECK", prevResult=kept.result) == (0, None)
        assert kept.call("DEL") == (0, None)
        assert "eth0" not in kept.ip("link show")
        assert kept.call("CHECK", prevResult=kept.result)[1]["code"] == Code.UNKNOWN
        assert kept.call("DEL") == (0, None)
    wait_for(lambda: not ends(host), "the ports to go")
