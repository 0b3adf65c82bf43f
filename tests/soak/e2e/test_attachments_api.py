"""Attachments with other identities, and the plugin over IPv6."""

from __future__ import annotations

import json

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import uuid_of
from tests.harness.netns import tx_off
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import test_attachments_api as api
from tests.host.e2e.cni_vm import BRIDGE
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.support import META_DATA, NOVA_OPTIONS, put
from tests.host.e2e.test_attachment_records import LABELS, site_with
from tests.host.e2e.test_attachment_records import OPTIONS as RECORD_OPTIONS
from tests.host.e2e.test_attachments_api import LINK_LOCAL


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


def test_the_plugin_uses_ipv6_and_the_pod_has_its_own_record() -> None:
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
