"""``identity_scheme = meta_ip``: the same guests, each its own, by way of a second bridge."""

from __future__ import annotations

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
    (found,) = [one for one in agent.admin("/ports").json() if one["port"] == guest.port]
    return dict(found)


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
        Container(parent, 100, address6=[f"{ULA}/64"]) as one,
        Container(parent, 4094, address6=[f"{ULA}/64"]) as two,
    ):
        declare(parent, one.entry(), two.entry())
        for container in (one, two):
            put(world.agent, container)
        for service in (METADATA_IP, OPENSTACK6, EC2_6):
            for guest in (one, two, one, two):
                asks_own(guest, host=service)
        for service in (METADATA_IP, OPENSTACK6):
            asks_own(parent, host=service)
        declare(parent)
        wait_for(lambda: is_unanswered(one), "the subports to be removed")
    asks_own(parent)


def test_meta_ips_are_in_ovsdb_and_unique(world: World) -> None:
    ids = [
        one["external_ids"]
        for one in world.host.records("Interface", "name", "external_ids")
        if "dfmeta-meta-ip" in one["external_ids"]
    ]
    assert len(ids) == len(world.guests)
    assert len({one["dfmeta-meta-ip"] for one in ids}) == len(ids)
    assert len({one["dfmeta-meta-mac"] for one in ids}) == len(ids)
    assert all(one["dfmeta-meta-ip"].startswith("240.0.") for one in ids)


def listed(world: World, *command: str) -> list[dict[str, Any]]:
    options = ("--format", "json")
    return list(json.loads(world.agent.ctl(*command, *options, check=False).stdout))


def test_doctor_finds_no_fault(world: World) -> None:
    lines = listed(world, "doctor", "--root", str(world.agent.folder))
    bad = [one for one in lines if one["status"] in ("wrong", "warning")]
    assert bad == [], world.agent.tail()
    checks = {one["check"] for one in lines}
    assert {"meta-bridge", "meta-patch", "meta-patch-vlan", "meta-mappings", "meta-range"} <= checks
    assert "rule-from" not in checks
    flows = [one["text"] for one in lines if one["check"] == "flows"]
    assert len(flows) == len(BRIDGES)
    assert all(f"on {bridge}" in text for bridge, text in zip(sorted(BRIDGES), flows, strict=True))


def test_flows_of_both_bridges_are_listed_with_their_guests(world: World) -> None:
    found = listed(world, "flows")
    assert {row["state"] for row in found} == {"ok"}
    assert {row["bridge"] for row in found} == BRIDGES
    beyond = [row for row in found if (row["bridge"], row["port"]) == (META, world.other.port)]
    purposes = sorted(row["purpose"] for row in beyond)
    assert purposes == sorted([*2 * ("meta-source", "meta-reply"), "meta-key-arp", "meta-key-nd"])
    assert {row["instance"] for row in beyond} == {world.other.instance_id}
    ports = {row["port"] for row in found if row["table"] == "meta classification"}
    assert ports == {"tap-meta", "phy-br-meta"}


def test_a_known_address_is_traced_over_the_patch_and_back(world: World) -> None:
    lines = world.agent.ctl("trace", world.other.port).stdout.splitlines()
    found = [line.split(":")[0].split(maxsplit=1) for line in lines if line.startswith("  ")]
    assert [tuple(one) for one in found if one[0] in ("there", "back")] == 2 * [
        ("there", "classification"),
        ("there", "metadata service"),
        ("there", "meta classification"),
        ("there", "meta source"),
        ("there", "meta proxy"),
        ("back", "meta classification"),
        ("back", "meta reply"),
        ("back", "classification"),
        ("back", "metadata service reply"),
    ]
    assert lines[-1].startswith("The path leads to the proxy and back.")


def test_a_second_bridge_that_is_deleted_is_made_again(world: World) -> None:
    world.host.vsctl("del-br", META)
    wait_for(lambda: "int-br-meta" in world.host.ports() and world.agent.ready(), "the repair")
    for guest in world.guests:
        asks_own(guest)


def outside(host: OpenvSwitch) -> dict[str, str]:
    """What --cleanup has to leave as it was."""
    ids = {one["name"]: one["external_ids"] for one in host.records("Interface")}
    return {
        "bridges": host.vsctl("list-br"),
        "ports": " ".join(host.ports()),
        "ids": str(sorted(ids.items())),
        "flows": str(sorted(one.partition("priority=")[2] for one in host.flows())),
        "rules": host.namespace.ip("rule show") + host.namespace.ip("rule show", six=True),
        "routes": host.namespace.ip("route show table main"),
        "routes6": host.namespace.ip("route show table main", six=True),
        "links": str(
            sorted(re.findall(r"^\d+: (\S+):", host.namespace.ip("link show"), re.MULTILINE))
        ),
    }


@pytest.mark.parametrize("shared", [False, True], ids=["own bridge", "shared bridge"])
def test_cleanup_leaves_the_host_as_it_was(
    make_agent: MakeAgent, make_guest: MakeGuest, shared: bool
) -> None:
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
        assert not [one for one in host.flows("br-meta") if "cookie=0x64666d65" in one]


def test_a_change_of_the_scheme_removes_the_other_one(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    host = guest.host
    agent = make_agent(start=False)
    ports = {"in_port": "tap-metadata", "meta_ip": "int-br-meta"}
    for scheme, other in (("in_port", "meta_ip"), ("meta_ip", "in_port"), ("in_port", "meta_ip")):
        agent.configure({"df_metadata": {"identity_scheme": scheme}})
        agent.start()
        asks(agent, guest)
        assert ports[scheme] in host.ports()
        assert ports[other] not in host.ports()
        assert ("br-meta" in host.vsctl("list-br").split()) == (scheme == "meta_ip")
        rules = host.namespace.ip("rule show")
        assert ("32765" in rules) == (scheme == "in_port"), rules
        agent.stop()


def test_a_restart_keeps_meta_ips_and_learns_nothing_anew(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guests = [make_guest(name, address=f"10.0.0.{n}/24") for n, name in enumerate("abc", 5)]
    agent = make_agent(OPTIONS)
    for guest in guests:
        asks(agent, guest)
    before = [row(agent, guest)["addresses"] for guest in guests]
    agent.restart()
    assert [row(agent, guest)["addresses"] for guest in guests] == before
    for guest in guests:
        asks(agent, guest)
    assert agent.metric("dfmeta_packet_ins_total") == 0
    assert agent.metric("dfmeta_flow_mods_total") == 0


def asks(agent: Agent, guest: Guest) -> None:
    put(agent, guest)
    for service in (METADATA_IP, OPENSTACK6):
        asks_own(guest, host=service)


def test_a_route_of_another_program_is_not_replaced(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    host.namespace.ip("link add theirs type veth peer name of-theirs", "link set theirs up")
    host.namespace.ip("route add 240.0.0.0/16 dev theirs")
    agent = make_agent(
        {"df_metadata": {**OPTIONS["df_metadata"], "startup_timeout": 2}}, start=False
    )
    agent.start(wait=False)
    assert agent.wait() == 2
    assert "the host has another route to 240.0.0.0/16" in agent.log()
    assert "dev theirs" in host.namespace.ip("route show 240.0.0.0/16")
    assert "br-meta" not in host.vsctl("list-br").split(), "a failed start leaves nothing"


def test_the_addresses_of_metadata_path_are_taken_over_where_they_are_sound(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guests = [make_guest(name, address=f"10.0.0.{n}/24") for n, name in enumerate("abcd", 5)]
    given = ("240.0.7.7", "240.0.7.7", "240.0.0.1", "100.64.0.9")
    for guest, ip in zip(guests, given, strict=True):
        config = ("other_config:provider_ip", "other_config:provider_mac")
        mac = "fa:16:ee:aa:bb:cc"
        host.vsctl("set", "Port", guest.port, f"{config[0]}={ip}", f'{config[1]}="{mac}"')
    agent = make_agent(OPTIONS)
    for guest in guests:
        asks(agent, guest)
    keys = [row(agent, guest)["key"] for guest in guests]
    assert keys.count("240.0.7.7") == 1, "it is one guest's, and the other one gets another"
    assert len(set(keys)) == len(keys)
    assert not {"240.0.0.1", "100.64.0.9"} & set(keys), "the gateway's, and one out of range"
