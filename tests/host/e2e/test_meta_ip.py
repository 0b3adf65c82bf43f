"""``identity_scheme = meta_ip``: the same guests, each its own, by way of a second bridge."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.container import Container, declare
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import TWIN_MAC, asks_own, is_unanswered, put

OPTIONS: dict[str, dict[str, Any]] = {"df_metadata": {"identity_scheme": "meta_ip"}}
ULA = "fd12:3456::5"
META = "br-meta"
BRIDGES = {"br-int", META}


@dataclass(frozen=True)
class World:
    """A host with Meta IPs, two guests with the same addresses, and one more."""

    host: OpenvSwitch
    agent: Agent
    left: Guest
    right: Guest
    other: Guest

    @property
    def guests(self) -> tuple[Guest, ...]:
        """All guests."""
        return self.left, self.right, self.other


def row(agent: Agent, guest: Guest) -> dict[str, Any]:
    (result,) = [row for row in agent.admin("/ports").json() if row["port"] == guest.port]
    return dict(result)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, OPTIONS))
        left, right = (
            stack.enter_context(Guest(host, name, mac=TWIN_MAC, address6=[f"{ULA}/64"]))
            for name in ("left", "right")
        )
        other = stack.enter_context(Guest(host, "other", address="10.0.0.6/24"))
        agent.start()
        for guest in (left, right, other):
            put(agent, guest)
        yield World(host, agent, left, right, other)
        agent.stop()


def test_each_guest_gets_its_own(world: World) -> None:
    for service in (METADATA_IP, OPENSTACK6):
        for guest in (*world.guests, *world.guests):
            asks_own(guest, host=service)


def test_containers_behind_a_guest_get_their_own_with_the_same_addresses(world: World) -> None:
    parent = world.other
    with (
        Container(parent, 100, address6=[f"{ULA}/64"]) as first,
        Container(parent, 4094, address6=[f"{ULA}/64"]) as second,
    ):
        declare(parent, first.entry(), second.entry())
        for container in (first, second):
            put(world.agent, container)
        for service in (METADATA_IP, OPENSTACK6, EC2_6):
            for guest in (first, second, first, second):
                asks_own(guest, host=service)
        for service in (METADATA_IP, OPENSTACK6):
            asks_own(parent, host=service)
        declare(parent)
        wait_for(lambda: is_unanswered(first), "the subports to be removed")
    asks_own(parent)


def listed(world: World, *command: str) -> list[dict[str, Any]]:
    options = ("--format", "json")
    return list(json.loads(world.agent.ctl(*command, *options, check=False).stdout))


def test_doctor_finds_no_fault(world: World) -> None:
    lines = listed(world, "doctor", "--root", str(world.agent.folder))
    bad = [line for line in lines if line["status"] in ("wrong", "warning")]
    assert bad == [], world.agent.tail()
    checks = {line["check"] for line in lines}
    assert {"meta-bridge", "meta-patch", "meta-patch-vlan", "meta-mappings", "meta-range"} <= checks
    assert "rule-from" not in checks
    flows = [line["text"] for line in lines if line["check"] == "flows"]
    assert len(flows) == len(BRIDGES)
    assert all(f"on {bridge}" in text for bridge, text in zip(sorted(BRIDGES), flows, strict=True))


def outside(host: OpenvSwitch) -> dict[str, str]:
    """What --cleanup has to leave as it was."""
    ids = {record["name"]: record["external_ids"] for record in host.records("Interface")}
    return {
        "bridges": host.vsctl("list-br"),
        "ports": " ".join(host.ports()),
        "ids": str(sorted(ids.items())),
        "flows": str(sorted(flow.partition("priority=")[2] for flow in host.flows())),
        "rules": host.namespace.ip("rule show") + host.namespace.ip("rule show", six=True),
        "routes": host.namespace.ip("route show table main"),
        "routes6": host.namespace.ip("route show table main", six=True),
        "links": str(
            sorted(re.findall(r"^\d+: (\S+):", host.namespace.ip("link show"), re.MULTILINE))
        ),
    }


@pytest.mark.parametrize("shared", [False, True], ids=["own bridge", "shared bridge"])
def test_cleanup_restores_host(make_agent: MakeAgent, make_guest: MakeGuest, shared: bool) -> None:
    guest = make_guest()
    host = guest.host
    if shared:
        host.add_bridge("br-meta")
        row = ("--", "set", "Interface", "others", "type=internal")
        host.vsctl("add-port", "br-meta", "others", *row)
    before = outside(host)
    agent = make_agent(OPTIONS)
    asks(agent, guest)
    agent.stop()
    agent.clean_up()
    assert outside(host) == before
    if shared:
        assert host.ports("br-meta") == ["others"]
        assert not [flow for flow in host.flows("br-meta") if "cookie=0x64666d65" in flow]


def asks(agent: Agent, guest: Guest) -> None:
    put(agent, guest)
    for service in (METADATA_IP, OPENSTACK6):
        asks_own(guest, host=service)
