"""``dfmeta``'s commands that inspect a host, on one with Meta IPs: a sound one, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, put
from tests.host.e2e.test_doctor import pretend_nft
from tests.host.e2e.test_meta_ip import OPTIONS, ULA

META = "br-meta"
BRIDGES = {"br-int", META}
Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A host with Meta IPs and two guests, one of which has asked over both versions of IP."""

    host: OpenvSwitch
    agent: Agent
    guest: Guest
    silent: Guest


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, OPTIONS))
        guest = stack.enter_context(Guest(host, "asks", address6=[f"{ULA}/64"]))
        silent = stack.enter_context(Guest(host, "silent", address="10.0.0.6/24"))
        agent.start()
        put(agent, guest)
        for service in ("169.254.169.254", OPENSTACK6):
            assert guest.curl(META_DATA, host=service).status == 200
        yield World(host, agent, guest, silent)
        if agent.running:
            agent.stop()


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", f"{tmp_path}:{UNPACKED / 'usr/bin'}", prepend=":")


@pytest.fixture
def stopped(world: World) -> Iterator[World]:
    """The daemon does not run; its next start mends what a test breaks."""
    world.agent.stop()
    yield world
    world.agent.start()


def rows(agent: Agent, *command: str) -> list[Row]:
    found: list[Row] = json.loads(agent.ctl(*command, "--format", "json", check=False).stdout)
    return found


def doctor(agent: Agent) -> list[Row]:
    # The cloud and the systemd of the test machine are not this host's.
    return rows(agent, "doctor", "--root", str(agent.folder))


def faults(agent: Agent) -> dict[str, Row]:
    """Check → its line of doctor, of those that are wrong."""
    return {one["check"]: one for one in doctor(agent) if one["status"] == "wrong"}


def trace(agent: Agent, guest: Guest, status: int, *options: str) -> list[str]:
    done = agent.ctl("trace", guest.port, *options, check=False)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout.splitlines()


def test_doctor_finds_no_fault(world: World) -> None:
    root = str(world.agent.folder)
    done = world.agent.ctl("doctor", "--format", "json", "--root", root, check=False)
    lines = json.loads(done.stdout)
    bad = [one for one in lines if one["status"] in ("wrong", "warning")]
    assert (done.returncode, bad) == (0, []), world.agent.tail()
    checks = {one["check"] for one in lines}
    assert {"meta-bridge", "meta-patch", "meta-patch-vlan", "meta-mappings", "meta-range"} <= checks
    assert "rule-from" not in checks
    flows = [one["text"] for one in lines if one["check"] == "flows"]
    assert len(flows) == len(BRIDGES)
    assert all(f"on {bridge}" in text for bridge, text in zip(sorted(BRIDGES), flows, strict=True))


def test_flows_of_both_bridges_are_named_with_their_guests(world: World) -> None:
    found = rows(world.agent, "flows")
    assert {row["state"] for row in found} == {"ok"}
    assert {row["bridge"] for row in found} == BRIDGES
    beyond = [row for row in found if row["bridge"] == META and row["port"] == world.guest.port]
    purposes = sorted(row["purpose"] for row in beyond)
    assert purposes == sorted([*2 * ("meta-source", "meta-reply"), "meta-key-arp", "meta-key-nd"])
    assert {row["instance"] for row in beyond} == {world.guest.instance_id}
    ports = {row["port"] for row in found if row["table"] == "meta classification"}
    assert ports == {"tap-meta", "phy-br-meta"}
    head = world.agent.ctl("flows").stdout.split()
    assert head[:2] == ["BRIDGE", "TABLE"]
    lines = world.agent.ctl("flows", "--raw").stdout.splitlines()
    assert len([one for one in lines if "actions=" in one]) == len(found)


def test_ports_have_their_meta_ips_and_meta_macs(world: World) -> None:
    found = {row["port"]: row for row in rows(world.agent, "ports")}
    records = {one["name"]: one["external_ids"] for one in world.host.records("Interface")}
    for guest in (world.guest, world.silent):
        row, ids = found[guest.port], records[guest.port]
        assert row["key"] == ids["dfmeta-meta-ip"]
        assert row["meta_mac"] == ids["dfmeta-meta-mac"]
        assert row["key6"] == ids["dfmeta-meta-ip6"]
    four, six = found[world.guest.port]["addresses"]
    assert (four["key"], four["ip"]) == (found[world.guest.port]["key"], world.guest.ip)
    assert four["meta_mac"] == found[world.guest.port]["meta_mac"]
    assert (six["service"], six["meta_mac"][:8]) == ("fe80::a9fe:a9fe", "fa:16:ee")
    text = world.agent.ctl("ports").stdout
    assert f"{four['key']}, {four['meta_mac']}: {world.guest.ip} {world.guest.mac}" in text


@pytest.mark.parametrize("version", ["4", "6"])
def test_a_known_address_is_traced_over_the_patch_and_back(world: World, version: str) -> None:
    lines = trace(world.agent, world.guest, 0, "--family", version)
    found = [line.split(":")[0].split(maxsplit=1) for line in lines if line.startswith("  ")]
    path = [tuple(one) for one in found if one[0] in ("there", "back")]
    assert path == [
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


def test_an_address_that_is_not_known_is_traced_as_the_daemons_own(world: World) -> None:
    lines = trace(world.agent, world.silent, 0)
    assert any("the first SYN goes to the controller" in line for line in lines)
    assert lines[-1].startswith("The path leads to the proxy and back.")


def test_a_patch_that_is_cut(stopped: World) -> None:
    stopped.host.vsctl("del-port", META, "phy-br-meta")
    end = trace(stopped.agent, stopped.guest, 1, "--family", "4")[-1]
    assert end.startswith("Stops at the patch: phy-br-meta is not a port of br-meta")
    stopped.host.vsctl("del-port", "br-int", "int-br-meta")
    end = trace(stopped.agent, stopped.guest, 1)[-1]
    assert end.startswith("Not traced: int-br-meta is not a port of br-int")
    found = [one for one in doctor(stopped.agent) if one["check"] == "meta-patch"]
    assert [one["status"] for one in found] == ["wrong", "wrong"]


def test_a_host_without_its_route_and_a_second_bridge_without_flows(stopped: World) -> None:
    stopped.host.namespace.ip("route del 240.0.0.0/16")
    command = "`ip route add 240.0.0.0/16 via 240.0.255.255 dev tap-meta onlink`"
    assert command in faults(stopped.agent)["route"]["remedy"]
    end = trace(stopped.agent, stopped.guest, 1, "--family", "4")[-1]
    assert end.startswith("Stops at the host: the main table has no route to 240.0.0.0/16")
    stopped.host.namespace.ip("route add 240.0.0.0/16 via 240.0.255.255 dev tap-meta onlink")
    stopped.host.ofctl("del-flows", META, "table=91")
    *_, note, end = trace(stopped.agent, stopped.guest, 1, "--family", "4")
    assert "on br-meta: stops in the meta reply table: the meta-reply flow to 240.0.0." in note
    assert end.startswith("Stops at the proxy: dfmeta-agent does not run")
    stopped.host.ofctl("del-flows", META)
    end = trace(stopped.agent, stopped.guest, 1, "--family", "4")[-1]
    missing = "the meta-from-patch flow is missing"
    assert end == f"On br-meta: stops in the meta classification table: {missing}."


def test_a_second_bridge_that_is_gone(stopped: World) -> None:
    stopped.host.vsctl("del-br", META)
    assert faults(stopped.agent)["meta-bridge"]["text"] == "there is no bridge br-meta"
    done = stopped.agent.ctl("flows", check=False)
    assert done.returncode == 1
    assert "the flows of br-meta are not shown: no program accepts connections" in done.stderr


def test_neutrons_agent_on_the_second_bridge(world: World) -> None:
    world.host.ofctl("add-flow", META, "cookie=0xbad,priority=0,actions=NORMAL")
    (line,) = [one for one in doctor(world.agent) if one["check"] == "meta-mappings"]
    assert line["status"] == "warning"
    assert "remove meta:br-meta from [ovs] bridge_mappings" in line["remedy"]
    world.host.ofctl("add-flow", META, "cookie=0xbad,table=80,priority=201,actions=drop")
    assert "in table 80: cookie 0xbad" in faults(world.agent)["meta-mappings"]["text"]
    world.host.ofctl("del-flows", META, "cookie=0xbad/-1")


def test_a_range_that_is_full_names_the_ports_without_a_meta_ip(world: World) -> None:
    agent = world.agent
    agent.stop()
    small = {"provider_cidr": "240.0.0.0/29", "provider_base_mac": "fa:16:ee:00:00:00"}
    agent.configure({"METADATA": small})
    with ExitStack() as stack:
        for number in range(4):
            address = f"10.0.0.{20 + number}/24"
            stack.enter_context(Guest(world.host, f"more{number}", address=address))
        agent.start()

        def without() -> list[Row]:
            return [one for one in rows(agent, "ports") if one["state"] == "no meta ip"]

        wait_for(without, "a port without a Meta IP")
        (left,) = without()
        assert left["key"] is None
        assert left["fault"].startswith("all Meta IPs of 240.0.0.0/29 are taken")
        line = faults(agent)["meta-range"]
        assert line["text"].endswith(f"their guests are not served: {left['port']}")
        end = agent.ctl("trace", left["port"], "--family", "4", check=False).stdout.splitlines()[-1]
        assert end.startswith("Stops at the controller: all Meta IPs of 240.0.0.0/29 are taken")
    agent.stop()
    agent.configure({"METADATA": dict.fromkeys(small)})
    agent.start()
