"""Containers whose tagged frames reach br-int: each VLAN of a port is a guest of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import shared
from tests.e2e.support import asks_own, put
from tests.harness.agent import Agent
from tests.harness.container import Container, declare
from tests.harness.guest import EC2_6, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch

VIDS = (1, 300, 4094)
HOSTS = ("169.254.169.254", OPENSTACK6, EC2_6)

host, agent = shared.host, shared.agent_with()


@pytest.fixture(scope="module")
def vms(host: OpenvSwitch, agent: Agent) -> Iterator[tuple[Guest, Guest]]:
    """Two virtual machines."""
    with Guest(host, "vm1") as one, Guest(host, "vm2", address="10.0.0.6/24") as two:
        for vm in (one, two):
            put(agent, vm)
        yield one, two


@pytest.fixture(scope="module")
def containers(
    agent: Agent, vms: tuple[Guest, Guest]
) -> Iterator[dict[tuple[str, int], Container]]:
    """Both have containers on the same VLANs, all of them with the same MAC and addresses."""
    made = {}
    try:
        for vm in vms:
            mine = [Container(vm, vid, address6=["fd12:3456::5/64"]) for vid in VIDS]
            made.update({(vm.name, one.vid): one for one in mine})
            declare(vm, *(one.entry() for one in mine))
            for one in mine:
                put(agent, one)
        yield made
    finally:
        for one in made.values():
            one.close()


def test_each_container_gets_its_own_over_both_versions_of_ip(
    vms: tuple[Guest, Guest], containers: dict[tuple[str, int], Container]
) -> None:
    for address in HOSTS:
        for one in (*containers.values(), *vms):
            if address == EC2_6 and one in vms:
                continue
            asks_own(one, host=address)
