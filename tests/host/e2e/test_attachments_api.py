"""An allowed VM gets attachments over the metadata addresses; a container behind it does not."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.container import Container
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest, Ids, uuid_of
from tests.harness.netns import Namespace, veth
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import TOKEN, TTL, Connection, allowed, is_ready
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, Capture, asks_own, put

LINK_LOCAL, EC2 = "fe80::a9fe:a9fe", EC2_6.strip("[]")
HOSTS = {METADATA_IP: METADATA_IP, LINK_LOCAL: OPENSTACK6, EC2: EC2_6}
"""Address of the service → the host of a URL."""
NFT = str(UNPACKED / "usr/sbin/nft")
NETWORK = {"network": "pods"}
OPTIONS: Options = {
    "attachments": {"enabled": True, "allow": uuid_of("instance allowed"), "rate": 100, "rest": 0},
    "attachment_network:pods": {
        "subnet": "10.20.0.0/24",
        "gateway": "10.20.0.1",
        "local_vlan": 7,
        "mtu": 1400,
        "dns": "192.0.2.53",
    },
    # Workers answer guests; test_attachment_records has a daemon without them.
    "df_metadata": {"proxy_workers": 1},
}

host, agent = shared.host, shared.agent_with(OPTIONS)


@pytest.fixture(scope="module")
def its_vm(host: OpenvSwitch, agent: Agent) -> Iterator[Guest]:
    """Provide the allowed VM, with a trunk and an address of either scope."""
    ids = Ids(iface_id=uuid_of("port allowed"), vm_uuid=uuid_of("instance allowed"))
    addresses = {"address": "10.0.0.5/24", "address6": ["fd12::5/64"]}
    with Guest(host, "allowed", ids=ids, **addresses) as guest:
        put(agent, guest)
        asks_own(guest)
        agent.ctl("trunk", "enable", guest.port)
        wait_for(lambda: is_ready(guest.namespace), "the VM to be ready")
        yield guest
        agent.ctl("trunk", "disable", f"tpi-{guest.ids.iface_id}"[:15])


@pytest.fixture
def vm(host: OpenvSwitch, its_vm: Guest) -> Iterator[Guest]:
    """Provide the allowed VM, without attachments."""
    yield its_vm
    with allowed(its_vm.namespace) as connection:
        for attachment in listed(connection):
            path = f"/attachments/{attachment['container']}/{attachment['ifname']}?link=gone"
            assert connection.ask("DELETE", path).status == 204
    wait_for(lambda: not ends(host), "the ports to go")


def listed(connection: Connection) -> list[dict[str, Any]]:
    return list(json.loads(connection.ask("GET", "/attachments").body)["attachments"])


def made(connection: Connection, container: str, **body: Any) -> dict[str, Any]:
    reply = connection.ask("PUT", f"/attachments/{container}/eth0", {**NETWORK, **body})
    assert reply.status == 201, reply
    return dict(json.loads(reply.body))


def ends(host: OpenvSwitch) -> dict[str, str]:
    """The attachments that OVSDB has: port → attachment."""
    return {
        row["name"]: row["external_ids"]["dfmeta-attachment"]
        for row in host.records("Interface", "name", "external_ids")
        if "dfmeta-attachment" in row["external_ids"]
    }


def to(guest: Guest, service: str, *, low: bool = True) -> Connection:
    """A connection of a guest to an address of the service."""
    device = guest.device if ":" in service else ""
    return Connection(guest.namespace, low=low, host=service, device=device)


@pytest.mark.parametrize("service", HOSTS)
def test_attachment_is_made_and_deleted(host: OpenvSwitch, vm: Guest, service: str) -> None:
    with to(vm, service, low=False) as connection:
        reply = connection.get_token()
        assert (reply.status, json.loads(reply.body)["error"]) == (403, "not_privileged")
    with to(vm, service) as connection:
        assert connection.get_token().status == 200
        attachment = made(connection, "c1", owner="cni", labels={"pod": "p"})
        token = connection.token
    assert (attachment["network"], attachment["mtu"], attachment["state"]) == (
        "pods",
        1400,
        "active",
    )
    address = attachment["ips"][0]["address"]
    assert attachment["ips"] == [{"address": address, "gateway": "10.20.0.1"}]
    assert attachment["dns"] == {"nameservers": ["192.0.2.53"]}
    assert (attachment["parent_mac"], attachment["owner"], attachment["labels"]) == (
        vm.mac,
        "cni",
        {"pod": "p"},
    )
    assert sorted(ends(host).values()) == [attachment["id"]] * 2
    # It is the same API over each address, and the token is the VM's.
    with Connection(vm.namespace) as connection:
        connection.token = token
        assert json.loads(connection.ask("GET", "/attachments/c1/eth0").body) == attachment
    with Container(
        vm,
        attachment["vid"],
        address=address,
        mac=attachment["mac"],
        address6=["fd13::5/64"],
        instance_id=attachment["id"],
    ) as container:
        # The container has a record of its own, and no token.
        url = HOSTS[service]
        wait_for(lambda: container.curl(META_DATA, host=url).status == 200, "an answer")
        asks_own(container, host=url)
        with to(container, service) as connection:
            assert connection.get_token().status == 404
    with to(vm, service) as connection:
        connection.token = token
        assert connection.ask("DELETE", "/attachments/c1/eth0?link=gone").status == 204
        assert connection.ask("GET", "/attachments/c1/eth0").status == 404
    wait_for(lambda: not ends(host), "the ports to go")


@dataclass(frozen=True)
class Hop:
    """A version of IP of a container one hop behind the VM."""

    service: str
    container: str
    gateway: str
    forwarding: str
    table: str
    limit: int
    """Place of the hop limit in a frame."""


HOPS = {
    4: Hop(METADATA_IP, "172.30.0.2/24", "172.30.0.1", "net/ipv4/ip_forward", "ip", 22),
    6: Hop(EC2, "fd14::2/64", "fd14::1", "net/ipv6/conf/all/forwarding", "ip6", 21),
}


@contextlib.contextmanager
def behind(vm: Guest, hop: Hop, *, masqueraded: bool) -> Iterator[Namespace]:
    """A container that the VM routes, or whose addresses it translates."""
    length = hop.container.partition("/")[2]
    with Namespace("behind") as container:
        container.setting("net/ipv6/conf/default/accept_dad", "0")
        veth(vm.namespace, "c0", container, "eth0", then=[f"addr add {hop.container} dev eth0"])
        nodad = " nodad" if ":" in hop.gateway else ""
        vm.namespace.ip(f"addr add {hop.gateway}/{length} dev c0{nodad}")
        container.ip(f"route add default via {hop.gateway}")
        vm.namespace.setting(hop.forwarding, "1")
        if masqueraded:
            chain = "{ type nat hook postrouting priority 100; }"
            rule = f'add rule {hop.table} t p oifname "{vm.device}" masquerade'
            rules = f"add table {hop.table} t; add chain {hop.table} t p {chain}; {rule}"
            vm.namespace.run([NFT, rules])
        try:
            yield container
        finally:
            vm.namespace.setting(hop.forwarding, "0")
            vm.namespace.run([NFT, "flush", "ruleset"])
            vm.namespace.ip("link delete c0")


@pytest.mark.parametrize("masqueraded", [False, True], ids=["routed", "masqueraded"])
@pytest.mark.parametrize("version", HOPS)
def test_a_container_one_hop_away_gets_no_answer(
    vm: Guest, version: int, *, masqueraded: bool
) -> None:
    hop, lines = HOPS[version], f"Host: {METADATA_IP}\r\n"
    with Connection(vm.namespace) as own:
        assert own.get_token().status == 200
    # The second one is with a token that the container was given.
    token_request = f"PUT /dfmeta/v1/token HTTP/1.1\r\n{lines}{TTL}: 60\r\n\r\n"
    status_request = f"GET /dfmeta/v1/status HTTP/1.1\r\n{lines}{TOKEN}: {own.token}\r\n\r\n"
    with behind(vm, hop, masqueraded=masqueraded) as container:
        # The container does reach the service, from a port below 1024.
        with Connection(container, host=hop.service) as connection:
            connection.socket.sendall(f"GET / HTTP/1.1\r\n{lines}\r\n".encode())
            assert connection.socket.recv(100).startswith(b"HTTP/1.1 200")
        for request in (token_request, status_request):
            assert_unanswered(vm, hop, container, request)


def assert_unanswered(vm: Guest, hop: Hop, container: Namespace, request: str) -> None:
    """The answers to a container's requests end at its VM."""
    with (
        Capture(vm.namespace, vm.device, arriving=True) as capture,
        Connection(container, host=hop.service) as connection,
    ):
        connection.socket.sendall(request.encode() * 2)

        def answers() -> list[bytes]:
            return [data for _, data in capture.frames() if b"HTTP/1.1 200" in data]

        wait_for(answers, "the answer to come as far as the VM")
        assert {data[hop.limit] for data in answers()} == {1}
        # The VM has not passed it on: the kernel routes a frame before it hands out the next.
        with Connection(vm.namespace) as own:
            assert own.get_token().status == 200
            # The connection goes on.
            assert own.ask("GET", "/status").status == 200
        connection.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.socket.recv(1)
