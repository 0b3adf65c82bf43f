"""A VM on a Neutron trunk is not served, and every command says so."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e import shared
from tests.e2e.support import asks_own, put
from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Trunk

VIDS = (100, 200)
REMEDY = "Give the VM a config drive"


host, agent = shared.host, shared.agent_with()


@pytest.fixture(scope="module")
def trunk(host: OpenvSwitch, agent: Agent) -> Iterator[Trunk]:
    """A VM with a trunk of two subports, beside a guest that has none."""
    with (
        Guest(host, "other") as other,
        Guest(host, "vm", address="10.0.0.6/24", plug=False) as vm,
    ):
        put(agent, other)
        made = Trunk(vm, *VIDS)
        wait_for(lambda: agent.metric("dfmeta_ports", state="trunk") == 3, 5, "it to be noticed")
        asks_own(other)
        yield made


def test_its_ports_are_shown_with_what_they_are(agent: Agent, trunk: Trunk) -> None:
    rows = {row["port"]: row for row in agent.admin("/ports").json()}
    parent = rows[trunk.inner]
    assert (parent["state"], parent["iface_id"]) == ("trunk", trunk.guest.ids.iface_id)
    assert parent["fault"] == "it is the port of a trunk's parent"
    for subport in trunk.subports:
        row = rows[subport.inner]
        assert (row["state"], row["iface_id"]) == ("trunk", subport.port_id)
        assert row["fault"] == "it is the port of a trunk's subport"
    shown = agent.ctl("ports").stdout
    assert "trunk: it is the port of a trunk's parent" in shown


def test_the_log_says_it_once_for_each_port(host: OpenvSwitch, agent: Agent, trunk: Trunk) -> None:
    host.vsctl("set", "Port", trunk.inner, "tag=5")
    # What comes after that change has been read has come after it.
    with Guest(host, "later", address="10.0.0.7/24") as later:
        put(agent, later)
        asks_own(later)
    for name in (trunk.inner, *(one.inner for one in trunk.subports)):
        assert agent.log().count(f"Port {name} is not served") == 1


@pytest.mark.parametrize("running", [True, False], ids=["running", "not running"])
def test_a_trace_says_so_by_whichever_name(agent: Agent, trunk: Trunk, running: bool) -> None:
    vm, subport = trunk.guest, trunk.subports[0]
    if not running:
        agent.stop()
    try:
        for name in (trunk.inner, vm.port, vm.ids.iface_id, vm.instance_id, vm.instance_id.upper()):
            done = agent.ctl("trace", name, check=False)
            assert done.returncode == 1
            assert done.stdout.startswith(
                f"Not traced: {trunk.inner} (iface-id {vm.ids.iface_id}) is not served"
            ), name
            assert REMEDY in done.stdout
        for name in (subport.inner, subport.port_id):
            printed = agent.ctl("trace", name, check=False).stdout
            assert "it is the port of a trunk's subport" in printed
    finally:
        if not running:
            agent.start()


def test_doctor_does_not_say_that_all_is_well(agent: Agent, trunk: Trunk) -> None:
    done = agent.ctl("doctor", "--format", "json", check=False)
    assert done.returncode == 1
    (found,) = [one for one in json.loads(done.stdout) if one["check"] == "ports"]
    assert found["status"] == "wrong"
    for name, port_id in (
        (trunk.inner, trunk.guest.ids.iface_id),
        *((one.inner, one.port_id) for one in trunk.subports),
    ):
        assert name in found["text"]
        assert port_id in found["text"]
    assert found["remedy"].startswith(REMEDY)


def test_a_vm_of_two_ports_is_traced_at_both(agent: Agent, host: OpenvSwitch) -> None:
    """One on a trunk, and one that is served."""
    with (
        Guest(host, "twofold", address="10.0.0.8/24", plug=False) as vm,
        Guest(host, "second", address="10.0.0.9/24", plug=False) as second,
    ):
        made = Trunk(vm)
        second.plug(vm_uuid=vm.instance_id)
        wait_for(lambda: second.curl("/").status == 404, 5, "the second port to be served")
        printed = agent.ctl("trace", vm.instance_id, check=False).stdout
        assert "The path leads to the proxy and back. " in printed
        assert f"{made.inner} (iface-id" in printed


def test_other_patch_ports_are_no_guests(agent: Agent, host: OpenvSwitch, trunk: Trunk) -> None:
    before = len(agent.admin("/ports").json())
    host.add_bridge("br-ex")
    host.vsctl(
        *("add-port", "br-int", "int-br-ex", "--", "set", "Interface", "int-br-ex", "type=patch"),
        *("options:peer=phy-br-ex", "--", "add-port", "br-ex", "phy-br-ex", "--", "set"),
        *("Interface", "phy-br-ex", "type=patch", "options:peer=int-br-ex"),
    )
    with Guest(host, "after", address="10.0.0.10/24") as after:
        put(agent, after)
        asks_own(after)
        assert len(agent.admin("/ports").json()) == before + 1
