"""dfmeta-cni makes VLAN devices of a real kernel (8021q), for containers of two VMs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.guest import METADATA_IP
from tests.harness.poll import wait_for
from tests.soak.real.node import ADMIN, CONFIGURATION, Guest, Node

pytestmark = pytest.mark.long

VM1 = Guest("vm1", "10.0.0.11", "fa:16:3e:00:00:11")
VM2 = Guest("vm2", "10.0.0.12", "fa:16:3e:00:00:12")
OPTIONS = """
[attachments]
enabled = True
[attachment_network:pods]
subnet = 10.20.0.0/24
local_vlan = 7
"""
PLUGIN = "/opt/dfmeta-cni"
NETWORK = {"name": "cluster", "type": "dfmeta-cni", "network": "pods", "timeout": 120}


def cni(node: Node, vm: Guest, verb: str, container: str, **more: Any) -> Any:
    """Run the plugin in a VM as its runtime does; return its document, None if there is none."""
    config = json.dumps({"cniVersion": "1.0.0", **NETWORK, **more})
    variables = (
        f"CNI_COMMAND={verb} CNI_CONTAINERID={container} CNI_NETNS=/run/netns/{container} "
        "CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin"
    )
    done = node.run(f"ip netns exec {vm.name} env {variables} {PLUGIN}", stdin=config, check=False)
    assert done.returncode == 0, done
    return json.loads(done.stdout) if done.stdout else None


def served(node: Node, vm: Guest) -> None:
    """Wait until a VM gets its metadata."""
    wait_for(lambda: node.ask(vm) == vm.name, f"an answer for {vm.name}")


@pytest.fixture
def vms(node: Node) -> Iterator[tuple[Guest, Guest]]:
    """Two VMs with trunks, on a host with attachments."""
    node.run(f"cp -p {CONFIGURATION} {CONFIGURATION}.kept; cat >> {CONFIGURATION}", stdin=OPTIONS)
    node.run(f"/opt/dfmeta/bin/dfmeta-cni-zip {PLUGIN}")
    node.run("modprobe 8021q; systemctl restart dfmeta-agent.service")
    node.wait_ready()
    both = (VM1, VM2)
    node.put(*both)
    for guest in both:
        node.plug(guest)
        served(node, guest)
        allowed = "external_ids:dfmeta-attachments=true"
        node.run(f"ovs-vsctl set Interface {guest.port} {allowed}")
        node.run(f"/opt/dfmeta/bin/dfmeta trunk enable {guest.port}")
        served(node, guest)
    node.run("ip netns add c1; ip netns add c2")
    yield both
    node.run("ip netns delete c1; ip netns delete c2")
    for port in node.text("ovs-vsctl list-ports br-int").split():
        if port.startswith("tpi-"):
            node.run(f"/opt/dfmeta/bin/dfmeta trunk disable {port}")
    for guest in both:
        node.unplug(guest)
    node.run(f"mv {CONFIGURATION}.kept {CONFIGURATION}; systemctl restart dfmeta-agent.service")
    node.wait_ready()


def test_containers_have_vlan_devices(node: Node, vms: tuple[Guest, Guest]) -> None:
    first, second = vms
    first_, second_ = cni(node, first, "ADD", "c1"), cni(node, second, "ADD", "c2")
    listed = {
        row["container"]: row for row in json.loads(node.text(f"curl -sf {ADMIN}/attachments"))
    }
    link = node.text("ip -n c1 -d link show eth0")
    assert f"vlan protocol 802.1Q id {listed['c1']['vid']} " in link
    assert listed["c1"]["mac"] in link
    assert first_["ips"][0]["address"] == f"{listed['c1']['ip']}/24"
    address = second_["ips"][0]["address"].partition("/")[0]
    # Each container has a record of its own, and reaches the other one through both VMs.
    for container in ("c1", "c2"):
        url = f"http://{METADATA_IP}/latest/meta-data/local-hostname"
        assert node.text(f"ip netns exec {container} curl -sS -m 60 {url}") == container
    node.run("install -d /run/empty")
    server = node.machine.spawn(
        "exec timeout 300 ip netns exec c2 python3 -m http.server 8080 --directory /run/empty"
    )
    url = f"http://{address}:8080/"
    message = "-o /dev/null -w '%{http_code}'"
    wait_for(
        lambda: node.text(f"ip netns exec c1 curl -s -m 10 {message} {url} || true") == "200",
        "the other container",
    )
    server.kill()
    server.communicate()
    assert cni(node, first, "CHECK", "c1", prevResult=first_) is None
    for vm, container in ((first, "c1"), (second, "c2")):
        assert cni(node, vm, "DEL", container) is None
        assert "eth0" not in node.text(f"ip -n {container} link show")
    assert json.loads(node.text(f"curl -sf {ADMIN}/attachments")) == []
