"""``identity_scheme = meta_ip``: the same guests, each its own, by way of a second bridge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.support import META_DATA, TWIN_MAC, put, uuid_in
from tests.harness.agent import Agent
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch

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
