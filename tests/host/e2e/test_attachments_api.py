"""An allowed VM gets attachments over the metadata address; its containers and others do not."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.container import Container
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.netns import Namespace, veth
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import Connection, allowed, is_ready, status_of
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, asks_own, put

SUBNET = "10.20.0.0/24"
PROJECT = "5f0c0a52b6f44d12a8a1e1a5e5f0c0a5"
OPTIONS: Options = {
    "attachments": {"enabled": True, "allow": uuid_of("instance allowed"), "rate": 100, "rest": 0},
    "attachment_network:pods": {
        "subnet": SUBNET,
        "gateway": "10.20.0.1",
        "local_vlan": 7,
        "mtu": 1400,
        "dns": "192.0.2.53",
    },
    "attachment_network:other": {"subnet": "10.21.0.0/24", "local_vlan": 8},
}
NETWORK = {"network": "pods"}
UNANSWERED = 1.4
"""Seconds that an answer would take at most: of the answer alone, not of the connection."""


host = shared.host


@pytest.fixture(scope="module", params=[0, 1], ids=["daemon", "worker"])
def agent(host: OpenvSwitch, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """Provide a daemon with attachments, which answers guests itself or by a worker."""
    options = {**OPTIONS, "df_metadata": {"proxy_workers": request.param}}
    with Agent(host, options) as daemon:
        yield daemon.start()
        daemon.stop()


def vm_of(host: OpenvSwitch, name: str, address: str) -> Guest:
    ids = Ids(iface_id=uuid_of(f"port {name}"), vm_uuid=uuid_of(f"instance {name}"))
    return Guest(host, name, address=address, ids=ids)


@pytest.fixture(scope="module")
def its_vm(host: OpenvSwitch, agent: Agent) -> Iterator[Guest]:
    """Provide the allowed VM, with a trunk."""
    with vm_of(host, "allowed", "10.0.0.5/24") as guest:
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
        for one in listed(connection):
            path = f"/attachments/{one['container']}/{one['ifname']}?link=gone"
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


def test_an_attachment_is_made_found_and_deleted(host: OpenvSwitch, vm: Guest) -> None:
    with allowed(vm.namespace) as connection:
        one = made(connection, "c1", owner="cni", labels={"pod": "p"})
        assert one["network"] == "pods"
        assert one["mtu"] == 1400
        assert one["ips"] == [{"address": one["ips"][0]["address"], "gateway": "10.20.0.1"}]
        assert one["ips"][0]["address"].endswith("/24")
        assert one["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.20.0.1"}]
        assert one["dns"] == {"nameservers": ["192.0.2.53"]}
        assert one["parent_mac"] == vm.mac
        assert (one["state"], one["owner"], one["labels"]) == ("active", "cni", {"pod": "p"})
        assert sorted(ends(host).values()) == [one["id"]] * 2
        again = connection.ask("PUT", "/attachments/c1/eth0", NETWORK)
        assert (again.status, json.loads(again.body)["id"]) == (200, one["id"])
        got = connection.ask("GET", "/attachments/c1/eth0")
        assert (got.status, json.loads(got.body)["vid"]) == (200, one["vid"])
        assert [it["id"] for it in listed(connection)] == [one["id"]]
        other = connection.ask("PUT", "/attachments/c1/eth0", {"network": "other"})
        assert other.status == 409
        assert connection.ask("PUT", "/attachments/c2/eth0", {"network": "no"}).status == 422
        assert connection.ask("DELETE", "/attachments/c1/eth0?link=gone").status == 204
        assert connection.ask("DELETE", "/attachments/c1/eth0?link=gone").status == 204
        assert connection.ask("GET", "/attachments/c1/eth0").status == 404
        wait_for(lambda: not ends(host), "the ports to go")


def test_a_containers_frames_pass_and_it_is_no_vm(
    host: OpenvSwitch, agent: Agent, vm: Guest
) -> None:
    with allowed(vm.namespace) as connection:
        one = made(connection, "c1")
    address = one["ips"][0]["address"]
    with Container(vm, one["vid"], address=address, mac=one["mac"]) as container:
        wait_for(
            lambda: any(row["mac"] == one["mac"] for row in agent.admin("/ports").json()),
            "the container's port",
        )
        # It has a record of its own, and no attachments.
        with Connection(container.namespace) as connection:
            assert connection.get_token().status == 404
        assert json.loads(container.curl(META_DATA).text)["uuid"] == one["id"]


def test_a_vm_that_is_not_allowed_gets_404_until_its_row_says_so(
    host: OpenvSwitch, agent: Agent
) -> None:
    with vm_of(host, "stranger", "10.0.0.6/24") as guest:
        put(agent, guest)
        asks_own(guest)
        for path in ("/token", "/status", "/attachments", "/no"):
            with Connection(guest.namespace) as connection:
                assert connection.ask("PUT", path).status == 404
        guest.set_external_ids(**{"dfmeta-attachments": "true"})

        def is_answered() -> bool:
            with Connection(guest.namespace) as connection:
                return connection.get_token().status == 200

        wait_for(is_answered, "the VM to be allowed")
        # Without a trunk it gets none, and the operator the reason.
        with allowed(guest.namespace) as connection:
            reply = connection.ask("PUT", "/attachments/c1/eth0", NETWORK)
            assert (reply.status, reply.header("Retry-After")) == (503, "2")
            assert "dfmeta trunk enable" not in reply.text
        assert "dfmeta trunk enable" in agent.log()


def test_an_unprivileged_port_and_a_proxy_get_403(vm: Guest) -> None:
    with Connection(vm.namespace, low=False) as connection:
        reply = connection.get_token()
        assert reply.status == 403
        assert json.loads(reply.body)["error"] == "not_privileged"
    with Connection(vm.namespace) as connection:
        assert connection.get_token(X_Forwarded_For="10.0.0.1").status == 403
        assert connection.ask("GET", "/status").status == 401
        assert connection.ask("PUT", "/token").status == 400


def test_metadata_tokens_are_of_another_kind(vm: Guest) -> None:
    header = [("X-aws-ec2-metadata-token-ttl-seconds", "60")]
    ec2 = vm.curl("/latest/api/token", "-X", "PUT", headers=header).text
    with Connection(vm.namespace) as connection:
        connection.token = ec2
        assert connection.ask("GET", "/status").status == 401
        connection.get_token()
        token = [("X-aws-ec2-metadata-token", connection.token)]
    assert vm.curl(META_DATA, headers=token).status == 401
    assert vm.curl(META_DATA, headers=[("X-aws-ec2-metadata-token", ec2)]).status == 200


@pytest.mark.parametrize("translated", [False, True], ids=["routed", "masqueraded"])
def test_a_container_one_hop_away_gets_no_token(vm: Guest, *, translated: bool) -> None:
    with Namespace("behind") as behind:
        veth(vm.namespace, "c0", behind, "eth0", then=["addr add 172.30.0.2/24 dev eth0"])
        vm.namespace.ip("addr add 172.30.0.1/24 dev c0")
        behind.ip("route add default via 172.30.0.1")
        vm.namespace.setting("net/ipv4/ip_forward", "1")
        try:
            if translated:
                chain = "type nat hook postrouting priority 100"
                rule = f'oifname "{vm.device}" masquerade'
                rules = f"table ip t {{\n chain p {{\n  {chain};\n  {rule};\n }}\n}}\n"
                vm.namespace.run([str(UNPACKED / "usr/sbin/nft"), "-f", "-"], stdin=rules)
            # The container does reach the service, from a port below 1024.
            with Connection(behind) as connection:
                assert connection.ask("GET", "/status").status == 401
            with Connection(behind) as connection:
                connection.socket.settimeout(UNANSWERED)
                with pytest.raises(TimeoutError):
                    connection.get_token()
            # Nor does it get one by requests that follow on the same connection, or repetitions.
            with Connection(behind) as connection:
                connection.socket.settimeout(UNANSWERED)
                lines = f"Host: {METADATA_IP}\r\nX-dfmeta-token-ttl-seconds: 60\r\n\r\n"
                request = f"PUT /dfmeta/v1/token HTTP/1.1\r\n{lines}".encode()
                connection.socket.sendall(request * 2)
                with pytest.raises(TimeoutError):
                    connection.socket.recv(1)
            with Connection(vm.namespace) as connection:
                assert connection.get_token().status == 200
                # The connection goes on.
                assert connection.ask("GET", "/status").status == 200
        finally:
            if translated:
                vm.namespace.run([str(UNPACKED / "usr/sbin/nft"), "flush", "ruleset"])
            vm.namespace.ip("link delete c0")


def test_the_next_guest_of_a_port_needs_a_token_of_its_own(host: OpenvSwitch, agent: Agent) -> None:
    def vm() -> Guest:
        one = vm_of(host, "again", "10.0.0.7/24")
        one.set_external_ids(**{"dfmeta-attachments": "true"})
        return one

    first = vm()
    try:
        put(agent, first)
        asks_own(first)
        with Connection(first.namespace) as connection:
            assert connection.get_token().status == 200
            old = connection.token
    finally:
        first.close()
    with vm() as second:
        asks_own(second)
        with Connection(second.namespace) as connection:
            connection.token = old
            assert connection.ask("GET", "/status").status == 401
            assert connection.get_token().status == 200
            assert connection.ask("GET", "/status").status == 200


def test_fifty_at_once_get_an_attachment_each(host: OpenvSwitch, vm: Guest) -> None:
    def one(number: int) -> dict[str, Any]:
        with allowed(vm.namespace) as connection:
            return made(connection, f"c{number}")

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(one, range(50)))
    for member in ("id", "vid", "mac", "port_id"):
        assert len({it[member] for it in found}) == 50
    assert len({it["ips"][0]["address"] for it in found}) == 50
    assert len(ends(host)) == 100


def test_a_late_deletion_does_not_touch_the_next_container(vm: Guest) -> None:
    with allowed(vm.namespace) as connection:
        made(connection, "old")
        assert connection.ask("DELETE", "/attachments/old/eth0?link=gone").status == 204
        new = made(connection, "new")
        assert connection.ask("DELETE", "/attachments/old/eth0").status == 204
        assert [it["id"] for it in listed(connection)] == [new["id"]]


def test_garbage_collection_keeps_what_is_young_and_what_is_valid(agent: Agent, vm: Guest) -> None:
    with allowed(vm.namespace) as connection:
        made(connection, "c1", owner="a")
        body = {"network": "pods", "owner": "a", "valid": []}
        reply = connection.ask("POST", "/gc", body)
        assert (reply.status, json.loads(reply.body)) == (200, {"removed": 0})
        assert connection.ask("POST", "/gc", {"network": "pods"}).status == 400
        many = [{"container": f"{number:064x}", "ifname": "eth0"} for number in range(250)]
        assert connection.ask("POST", "/gc", {**body, "valid": many}).status == 200
        long = connection.ask("PUT", "/attachments/c2/eth0", b" " * 8193)
        assert (long.status, json.loads(long.body)["error"]) == (413, "too_large")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])
def test_a_request_that_a_restart_interrupts_can_be_repeated(
    host: OpenvSwitch, agent: Agent, vm: Guest, number: signal.Signals
) -> None:
    with allowed(vm.namespace) as connection:
        token = connection.token
        body = json.dumps(NETWORK)
        head = f"Host: {METADATA_IP}\r\nX-dfmeta-token: {token}\r\nContent-Length: {len(body)}"
        request = f"PUT /dfmeta/v1/attachments/c1/eth0 HTTP/1.1\r\n{head}\r\n\r\n{body}"
        connection.socket.sendall(request.encode())
        wait_for(lambda: len(ends(host)) == 2, "the ports")
        if number == signal.SIGKILL:
            agent.kill()
        else:
            agent.stop()
    (before,) = set(ends(host).values())
    agent.start()
    with allowed(vm.namespace) as connection:
        reply = connection.ask("PUT", "/attachments/c1/eth0", NETWORK)
        assert (reply.status, json.loads(reply.body)["id"]) == (200, before)
        # The token outlives the daemon.
        connection.token = token
        assert [it["id"] for it in listed(connection)] == [before]
    assert len(ends(host)) == 2


def test_a_reload_takes_networks_and_ids(agent: Agent, vm: Guest) -> None:
    before = agent.log().count("Reloaded")
    agent.configure({"attachment_network:new": {"subnet": "10.22.0.0/24"}})
    agent.signal(signal.SIGHUP)

    def networks() -> list[str]:
        return [one["name"] for one in status_of(vm.namespace).get("networks", [])]

    wait_for(lambda: networks() == ["new", "other", "pods"], "the network")
    # A worker of before closes its connections, also between two requests.
    wait_for(lambda: agent.log().count("Reloaded") > before, "the end of the reload")
    agent.configure({"attachment_network:new": {"subnet": "nonsense"}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded" in agent.log(), "the refusal")
    assert networks() == ["new", "other", "pods"]
    agent.configure({"attachment_network:new": {"subnet": "10.22.0.0/24"}})


def test_without_attachments_the_paths_do_not_exist(host: OpenvSwitch) -> None:
    del host
    with OpenvSwitch() as other, ExitStack() as stack:
        daemon = stack.enter_context(Agent(other))
        daemon.start()
        guest = stack.enter_context(vm_of(other, "allowed", "10.0.0.5/24"))
        put(daemon, guest)
        asks_own(guest)
        for path in ("/dfmeta/v1/token", "/dfmeta/", "//dfmeta/v1/status", "/%64fmeta"):
            assert guest.curl(path).status == 404
            assert guest.curl(path, "-X", "PUT").status == 404
        daemon.stop()
