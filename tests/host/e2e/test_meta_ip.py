"""``identity_scheme = meta_ip``: the same guests, each its own, by way of a second bridge."""

from __future__ import annotations

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
from tests.host.e2e.support import META_DATA, TWIN_MAC, asks_own, put, uuid_in

OPTIONS: dict[str, dict[str, Any]] = {"df_metadata": {"identity_scheme": "meta_ip"}}
ULA = "fd12:3456::5"


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


@pytest.fixture(scope="module", params=[0, 2], ids=["in the daemon", "in workers"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, OPTIONS))
        agent.configure({"df_metadata": {"proxy_workers": request.param}})
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


@pytest.mark.parametrize("service", [METADATA_IP, OPENSTACK6])
def test_each_guest_gets_its_own(world: World, service: str) -> None:
    for _ in range(2):
        for guest in world.guests:
            reply = guest.curl(META_DATA, host=service)
            assert reply.status == 200, (reply, world.agent.tail(), world.host.flows("br-meta"))
            assert uuid_in(reply.body) == guest.instance_id


def test_twins_ask_at_once(world: World) -> None:
    batches = [
        (guest, guest.start_many(60, 10, path=META_DATA, host=host))
        for guest in (world.left, world.right)
        for host in (METADATA_IP, OPENSTACK6, EC2_6)
    ]
    for guest, batch in batches:
        samples = batch.samples()
        assert [sample.error for sample in samples if sample.status != 200] == []
        assert {uuid_in(sample.body) for sample in samples} == {guest.instance_id}


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
        wait_for(lambda: not one.curl("/", timeout=0.5).status, "the subports to be removed")
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


def test_cleanup_leaves_nothing(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest = make_guest()
    before = outside(guest.host)
    agent = make_agent(OPTIONS)
    asks(agent, guest)
    agent.stop()
    done = agent.run("--cleanup")
    assert done.returncode == 0, done.stderr
    assert outside(guest.host) == before


def test_a_bridge_with_others_ports_stays(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest = make_guest()
    host = guest.host
    host.add_bridge("br-meta")
    host.vsctl("add-port", "br-meta", "others", "--", "set", "Interface", "others", "type=internal")
    before = outside(host)
    agent = make_agent(OPTIONS)
    asks(agent, guest)
    agent.stop()
    done = agent.run("--cleanup")
    assert done.returncode == 0, done.stderr
    assert outside(host) == before
    assert host.ports("br-meta") == ["others"]
    assert not [one for one in host.flows("br-meta") if "cookie=0x64666d65" in one]


@pytest.mark.parametrize("schemes", [("in_port", "meta_ip"), ("meta_ip", "in_port")])
def test_a_change_of_the_scheme_removes_the_other_one(
    make_agent: MakeAgent, make_guest: MakeGuest, schemes: tuple[str, str]
) -> None:
    guest = make_guest()
    host = guest.host
    first, second = schemes
    agent = make_agent({"df_metadata": {"identity_scheme": first}})
    asks(agent, guest)
    agent.stop()
    agent.configure({"df_metadata": {"identity_scheme": second}})
    agent.start()
    asks(agent, guest)
    ports = {"in_port": "tap-metadata", "meta_ip": "int-br-meta"}
    assert ports[second] in host.ports()
    assert ports[first] not in host.ports()
    assert ("br-meta" in host.vsctl("list-br").split()) == (second == "meta_ip")
    rules = host.namespace.ip("rule show")
    assert ("32765" in rules) == (second == "in_port"), rules


@pytest.mark.parametrize("schemes", [("in_port", "meta_ip"), ("meta_ip", "in_port")])
def test_tap_metadata_may_have_had_the_name_of_tap_meta(
    make_agent: MakeAgent, make_guest: MakeGuest, schemes: tuple[str, str]
) -> None:
    guest = make_guest()
    host = guest.host
    agent = make_agent(start=False)
    for scheme in schemes:
        own = {"metadata_interface": "tap-meta"} if scheme == "in_port" else {}
        agent.configure({"df_metadata": {"identity_scheme": scheme, **own}})
        agent.start()
        asks(agent, guest)
        there = {"in_port": ["br-int"], "meta_ip": ["br-int", "br-meta"]}[scheme]
        assert host.vsctl("list-br").split() == there
        assert host.vsctl("port-to-br", "tap-meta").strip() == there[-1]
        assert ("int-br-meta" in host.ports()) == (scheme == "meta_ip")
        assert ("32765" in host.namespace.ip("rule show")) == (scheme == "in_port")
        if scheme != schemes[-1]:
            agent.stop()
    agent.stop()
    agent.clean_up()
    assert host.vsctl("list-br").split() == ["br-int"]
    assert host.ports() == [guest.port]


def test_a_port_of_another_program_with_the_name_of_tap_meta_is_one_clear_line(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    host.vsctl(
        "add-port", "br-int", "tap-meta", "--", "set", "Interface", "tap-meta", "type=internal"
    )
    done = make_agent(OPTIONS, start=False).run()
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert "tap-meta is a port of br-int, and dfmeta did not create it" in line
    assert "ovs-vsctl del-port br-int tap-meta" in line


def test_a_changed_name_of_the_second_bridge_leaves_no_other_one(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    agent = make_agent(OPTIONS)
    asks(agent, guest)
    agent.stop()
    agent.configure({"df_metadata": {"meta_bridge": "br-new"}})
    agent.start()
    asks(agent, guest)
    assert guest.host.vsctl("list-br").split() == ["br-int", "br-new"]
    assert "int-br-new" in guest.host.ports()
    assert "int-br-meta" not in guest.host.ports()


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
        reply = guest.curl(META_DATA, host=service)
        assert reply.status == 200, (reply, agent.tail())
        assert uuid_in(reply.body) == guest.instance_id


def test_a_route_of_another_program_is_not_replaced(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    host.namespace.ip("link add theirs type veth peer name of-theirs", "link set theirs up")
    host.namespace.ip("route add 240.0.0.0/16 dev theirs")
    agent = make_agent(
        {"df_metadata": {**OPTIONS["df_metadata"], "startup_timeout": 2}}, start=False
    )
    agent.start(wait=False)
    assert agent.wait(10) == 2
    assert "the host has another route to 240.0.0.0/16" in agent.log()
    assert "dev theirs" in host.namespace.ip("route show 240.0.0.0/16")
    assert "br-meta" not in host.vsctl("list-br").split(), "a failed start leaves nothing"


def test_a_range_that_is_full_harms_nobody(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guests = [make_guest(f"guest{n}", address=f"10.0.0.{n}/24") for n in range(11, 16)]
    agent = make_agent({**OPTIONS, "METADATA": {"provider_cidr": "240.0.0.0/29"}})
    for guest in guests:
        asks(agent, guest)
    late = make_guest("late", address="10.0.0.99/24")
    put(agent, late)
    assert late.curl(META_DATA, timeout=2).status == 0
    wait_for(lambda: f"Port {late.port} is not served: no Meta IP" in agent.log(), "the line")
    without = 'dfmeta_ports{state="no meta ip"}'
    wait_for(lambda: agent.metrics()[without] == 1, "the review of the ports")
    for guest in guests:
        asks(agent, guest)


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
