"""A VM uses the API of attachments over IPv6, with the same limits as over IPv4."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.container import Container
from tests.harness.guest import EC2_6, OPENSTACK6, Guest, Ids, uuid_of
from tests.harness.netns import Namespace, tx_off, veth
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import Connection, is_ready
from tests.host.e2e import shared
from tests.host.e2e.cni_vm import BRIDGE
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.support import META_DATA, asks_own, put

LINK_LOCAL, EC2 = "fe80::a9fe:a9fe", EC2_6.strip("[]")
SERVICES = (LINK_LOCAL, EC2)
NETWORK = {"network": "pods"}
UNANSWERED = 1.4
"""Seconds that an answer would take at most: of the answer alone, not of the connection."""

host = shared.host
agent = shared.agent_with(
    {
        "attachments": {"enabled": True, "allow": uuid_of("instance vm"), "rest": 0},
        "attachment_network:pods": {"subnet": "10.20.0.0/24", "local_vlan": 7},
    }
)


@pytest.fixture(scope="module")
def vm(host: OpenvSwitch, agent: Agent) -> Iterator[Guest]:
    """Provide the allowed VM, with a trunk and an address of either scope."""
    ids = Ids(iface_id=uuid_of("port vm"), vm_uuid=uuid_of("instance vm"))
    with Guest(host, "vm", address="10.0.0.5/24", address6=["fd12::5/64"], ids=ids) as guest:
        put(agent, guest)
        asks_own(guest)
        agent.ctl("trunk", "enable", guest.port)
        wait_for(
            lambda: is_ready(guest.namespace, host=LINK_LOCAL, device=guest.device),
            "the VM to be ready",
        )
        yield guest
        agent.ctl("trunk", "disable", f"tpi-{ids.iface_id}"[:15])


def to(guest: Guest, service: str, *, low: bool = True) -> Connection:
    """A connection of a guest to an address of the service."""
    return Connection(guest.namespace, low=low, host=service, device=guest.device)


@pytest.mark.parametrize("service", SERVICES)
def test_an_attachment_is_made_and_deleted(vm: Guest, service: str) -> None:
    with to(vm, service) as connection:
        assert connection.get_token().status == 200
        made = connection.ask("PUT", "/attachments/c1/eth0", NETWORK)
        assert made.status == 201, made
        one = json.loads(made.body)
        token = connection.token
    # It is the same API, and the token is the VM's, over IPv4 too.
    with Connection(vm.namespace) as connection:
        connection.token = token
        assert json.loads(connection.ask("GET", "/attachments/c1/eth0").body) == one
    with Container(
        vm,
        one["vid"],
        address=one["ips"][0]["address"],
        mac=one["mac"],
        address6=["fd13::5/64"],
        instance_id=one["id"],
    ) as container:
        # The container gets its own record over IPv6, and no token.
        host_name = {LINK_LOCAL: OPENSTACK6, EC2: EC2_6}[service]
        wait_for(lambda: container.curl(META_DATA, host=host_name).status == 200, "an answer")
        asks_own(container, host=host_name)
        with to(container, service) as connection:
            assert connection.get_token().status == 404
    with to(vm, service) as connection:
        connection.token = token
        assert connection.ask("DELETE", "/attachments/c1/eth0?link=gone").status == 204
        assert connection.ask("GET", "/attachments/c1/eth0").status == 404


@pytest.mark.parametrize("service", SERVICES)
def test_an_unprivileged_port_gets_403(vm: Guest, service: str) -> None:
    with to(vm, service, low=False) as connection:
        reply = connection.get_token()
        assert (reply.status, json.loads(reply.body)["error"]) == (403, "not_privileged")


@pytest.mark.parametrize("translated", [False, True], ids=["routed", "masqueraded"])
def test_a_container_one_hop_away_gets_no_token(vm: Guest, *, translated: bool) -> None:
    with Namespace("behind6") as behind:
        behind.setting("net/ipv6/conf/default/accept_dad", "0")
        veth(vm.namespace, "c0", behind, "eth0", then=["addr add fd14::2/64 dev eth0"])
        vm.namespace.ip("addr add fd14::1/64 dev c0 nodad")
        behind.ip("route add default via fd14::1")
        vm.namespace.setting("net/ipv6/conf/all/forwarding", "1")
        try:
            if translated:
                chain = "type nat hook postrouting priority 100"
                rule = f'oifname "{vm.device}" masquerade'
                rules = f"table ip6 t {{\n chain p {{\n  {chain};\n  {rule};\n }}\n}}\n"
                vm.namespace.run([str(UNPACKED / "usr/sbin/nft"), "-f", "-"], stdin=rules)
            # The container does reach the service, from a port below 1024.
            with Connection(behind, host=EC2) as connection:
                assert connection.ask("GET", "/status").status == 401
            with Connection(behind, host=EC2) as connection:
                connection.socket.settimeout(UNANSWERED)
                with pytest.raises(TimeoutError):
                    connection.get_token()
            # The VM itself gets one, and its connection goes on.
            with to(vm, EC2) as connection:
                assert connection.get_token().status == 200
                assert connection.ask("GET", "/status").status == 200
        finally:
            vm.namespace.setting("net/ipv6/conf/all/forwarding", "0")
            if translated:
                vm.namespace.run([str(UNPACKED / "usr/sbin/nft"), "flush", "ruleset"])
            vm.namespace.ip("link delete c0")


def test_the_plugin_uses_it_and_the_pod_has_its_own_record(host: OpenvSwitch, agent: Agent) -> None:
    endpoint = f"[{LINK_LOCAL}%{BRIDGE}]:80"
    with ContainerVm(host, "cni", "10.0.0.6/24") as vm, Pod(vm, "web-1", "pods") as pod:
        put(agent, vm.guest)
        agent.ctl("trunk", "enable", vm.guest.port)
        wait_for(vm.ready, "the VM to be ready")
        try:

            def is_added() -> bool:
                # The VM's link-local address is not usable at once.
                status, pod.result = pod.call("ADD", endpoint=endpoint)
                return status == 0

            wait_for(is_added, "the addition")
            tx_off(pod, "eth0")
            (one,) = vm.attachments()
            told = json.loads(pod.get(META_DATA))
            assert (told["uuid"], told["hostname"]) == (one["id"], "web-1")
            assert told["meta"] == {"K8S_POD_NAME": "web-1"}
        finally:
            assert pod.call("DEL", endpoint=endpoint) == (0, None)
        assert vm.attachments() == []
        agent.ctl("trunk", "disable", f"tpi-{vm.guest.ids.iface_id}"[:15])
