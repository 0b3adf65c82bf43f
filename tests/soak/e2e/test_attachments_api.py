"""The API of attachments: many at once, restarts and reloads, other identities, and the plugin."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import METADATA_IP, Guest, uuid_of
from tests.harness.netns import tx_off
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed, status_of
from tests.host.e2e import test_attachments_api as api
from tests.host.e2e.cni_vm import BRIDGE
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.support import META_DATA, NOVA_OPTIONS, put
from tests.host.e2e.test_attachment_records import LABELS, site_with
from tests.host.e2e.test_attachment_records import OPTIONS as RECORD_OPTIONS
from tests.host.e2e.test_attachments_api import LINK_LOCAL, NETWORK, ends, listed, made

host, agent, its_vm, vm = api.host, api.agent, api.its_vm, api.vm


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


def test_a_reload_takes_networks(agent: Agent, vm: Guest) -> None:
    before = agent.log().count("Reloaded")
    agent.configure({"attachment_network:new": {"subnet": "10.22.0.0/24"}})
    agent.signal(signal.SIGHUP)

    def networks() -> list[str]:
        return [one["name"] for one in status_of(vm.namespace).get("networks", [])]

    wait_for(lambda: networks() == ["new", "pods"], "the network")
    # A worker of before closes its connections, also between two requests.
    wait_for(lambda: agent.log().count("Reloaded") > before, "the end of the reload")
    agent.configure({"attachment_network:new": {"subnet": "nonsense"}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded" in agent.log(), "the refusal")
    assert networks() == ["new", "pods"]
    agent.configure({"attachment_network:new": {"subnet": "10.22.0.0/24"}})


@pytest.mark.parametrize(
    ("options", "uuid"),
    [
        (
            {**RECORD_OPTIONS, "df_metadata": {"subport_identity": "parent"}},
            uuid_of("instance vm1"),
        ),
        ({**RECORD_OPTIONS, **NOVA_OPTIONS}, ""),
    ],
    ids=["parent", "nova"],
)
def test_other_configurations_give_no_record(options: Options, uuid: str) -> None:
    with (
        OpenvSwitch() as host,
        RecordingNova(host.namespace) as nova,
        site_with(host, options, nova) as site,
        site.container(site.vms[0], "c1", labels=LABELS) as container,
    ):
        nova.clear()
        reply = container.curl(META_DATA)
        if uuid:
            assert (reply.status, json.loads(reply.body)["uuid"]) == (200, uuid)
        else:
            assert reply.status == 404
        # Nova is not asked for an instance that it cannot have.
        assert nova.requests() == []


def test_the_plugin_uses_ipv6_and_the_pod_has_its_own_record(host: OpenvSwitch) -> None:
    del host
    endpoint = f"[{LINK_LOCAL}%{BRIDGE}]:80"
    options: Options = {**api.OPTIONS, "attachments": {"enabled": True, "rest": 0}}
    with (
        OpenvSwitch() as other,
        Agent(other, options) as agent,
        ContainerVm(other, "cni", "10.0.0.6/24") as vm,
        Pod(vm, "web-1", "pods") as pod,
    ):
        agent.start()
        put(agent, vm.guest)
        agent.ctl("trunk", "enable", vm.guest.port)
        wait_for(vm.ready, "the VM to be ready")

        def is_added() -> bool:
            # The VM's link-local address is not usable at once.
            status, pod.result = pod.call("ADD", endpoint=endpoint)
            return status == 0

        wait_for(is_added, "the addition")
        tx_off(pod, "eth0")
        (one,) = vm.attachments()
        told = json.loads(pod.get(META_DATA))
        assert (told["uuid"], told["hostname"]) == (one["id"], "web-1")
        assert pod.call("DEL", endpoint=endpoint) == (0, None)
        assert vm.attachments() == []
