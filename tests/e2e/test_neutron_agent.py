"""Beside Neutron's own Open vSwitch agent: it runs here, only its neutron-server does not."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.support import TWIN_MAC, asks_own, failures, put
from tests.harness.agent import Agent
from tests.harness.guest import Guest, Sample
from tests.harness.neutron_agent import DEAD_VLAN, OPEN, OUTSIDE, NeutronAgent
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for

PATH = "/latest/meta-data/hostname"
OURS = "cookie=0x64666d65"
CONTROLLER = "tcp:127.0.0.1:6633"
TABLES = {0, 23, 24, 60, 71, 72, 73, 81, 82, 91, 92, 93, 94}
"""Those of the openvswitch firewall driver that have flows, among others."""
SPOOFING = {24, 25}
"""Tables of the spoofing protection without it; in 25 nothing stands with it."""
UNDER_WAY = 20
"""Answers that each guest has got before a fault is made, and after it before it is over."""


@dataclass(frozen=True, kw_only=True)
class Neutrons:
    """All on the host that is Neutron's and not ours."""

    flows: Counter[str]
    meters: list[str]
    bridges: list[dict[str, Any]]
    ports: list[dict[str, Any]]
    controllers: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class World:
    """A compute node with both agents.

    :ivar twins: guests with the same IP and MAC in two networks, who may send and receive nothing.
    :ivar friends: guests of a third network, who may ping each other.
    :ivar before: what was there before dfmeta came.
    """

    host: OpenvSwitch
    neutron: NeutronAgent
    agent: Agent
    twins: tuple[Guest, Guest]
    friends: tuple[Guest, Guest]
    before: Neutrons

    @property
    def guests(self) -> tuple[Guest, ...]:
        """All of them."""
        return (*self.twins, *self.friends)


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    """A compute node with a bridge of the physical network."""
    with OpenvSwitch(bridges=(BRIDGE, OUTSIDE)) as switch:
        yield switch


@pytest.fixture(scope="module")
def world(host: OpenvSwitch) -> Iterator[World]:
    """Neutron first, and when all is as it wants it, dfmeta."""
    with ExitStack() as stack:
        twins = make_twins(host, stack)
        friends = (
            stack.enter_context(Guest(host, "third", address="10.0.0.8/24")),
            stack.enter_context(Guest(host, "fourth", address="10.0.0.9/24")),
        )
        neutron = stack.enter_context(NeutronAgent(host))
        tell_of_twins(neutron, twins)
        for guest in friends:
            neutron.put(guest, network="common", vlan=201, groups=(OPEN,))
        neutron.start()
        neutron.clean_up()
        before = neutrons(host)
        agent = stack.enter_context(Agent(host)).start()
        for guest in (*twins, *friends):
            put(agent, guest, hostname=guest.name)
        yield World(
            host=host, neutron=neutron, agent=agent, twins=twins, friends=friends, before=before
        )
        agent.stop()


@pytest.fixture
def neutron(world: World) -> NeutronAgent:
    """Neutron's agent, so that a failure shows its log."""
    return world.neutron


@pytest.fixture
def agent(world: World) -> Agent:
    """The daemon, so that a failure shows its log."""
    return world.agent


pytestmark = pytest.mark.usefixtures("neutron", "agent")


def make_twins(host: OpenvSwitch, stack: ExitStack) -> tuple[Guest, Guest]:
    """Two guests with the same addresses."""
    return (
        stack.enter_context(Guest(host, "first", mac=TWIN_MAC)),
        stack.enter_context(Guest(host, "second", mac=TWIN_MAC, route="gateway")),
    )


def tell_of_twins(neutron: NeutronAgent, twins: tuple[Guest, Guest]) -> None:
    """Each is in a network of its own."""
    for number, guest in enumerate(twins):
        neutron.put(guest, network=guest.name, vlan=101 + number)


def neutrons(host: OpenvSwitch) -> Neutrons:
    """What is there, without what changes by itself."""
    lines = host.ofctl("--no-stats", "dump-flows", BRIDGE).splitlines()
    meters = host.ofctl("dump-meters", BRIDGE).partition("\n")[2].split("meter=")
    ports = [row for row in host.records("Port") if row["name"] != "tap-metadata"]
    return Neutrons(
        flows=Counter(line.strip() for line in lines if "actions=" in line and OURS not in line),
        meters=[meter for meter in meters if "rate=50" not in meter],
        bridges=without(host.records("Bridge"), "ports", "status", "rstp_status"),
        ports=without(ports, "statistics", "status", "rstp_status", "rstp_statistics"),
        controllers=without(host.records("Controller"), "status"),
    )


def without(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """The rows in a fixed order without these columns."""
    kept = [{k: v for k, v in row.items() if k not in columns} for row in rows]
    return sorted(kept, key=lambda row: str(row["_uuid"]))


def tables(host: OpenvSwitch) -> set[int]:
    """The tables in which flows of others stand."""
    found = set()
    for flow in neutrons(host).flows:
        _, _, table = flow.partition(" table=")
        found.add(int(table.partition(",")[0]) if table else 0)
    return found


def own_flows(host: OpenvSwitch) -> int:
    """How many flows of ours stand."""
    return host.ofctl("dump-flows", BRIDGE).count(OURS)


def own_hooks(host: OpenvSwitch) -> int:
    """How many of them stand in table 0."""
    return host.ofctl("dump-flows", BRIDGE, "table=0").count(OURS)


def tag(guest: Guest) -> object:
    """The local VLAN that Neutron has given its port."""
    ports = guest.host.records("Port", "name", "tag")
    return next(row["tag"] for row in ports if row["name"] == guest.port)


@contextlib.contextmanager
def asking(agent: Agent, guests: tuple[Guest, ...]) -> Iterator[None]:
    """The guests ask for their names all the time, and get them, before and after what is done."""

    def answered() -> float:
        return agent.metric("dfmeta_requests_total", code="2xx") - start

    def more() -> bool:
        return answered() >= sum(target)

    start = 0.0
    start = answered()
    target = [UNDER_WAY * len(guests)]
    batches = {guest: guest.start_many(1_000_000, path=PATH, timeout=30) for guest in guests}
    wait_for(more, 20, "guests to ask")
    yield
    target.append(int(answered()))
    wait_for(more, 40, "guests to be served again")
    samples: dict[Guest, list[Sample]] = {g: batch.finish() for g, batch in batches.items()}
    assert failures(samples) == Counter()


def added(agent: Agent) -> float:
    """Flows that the daemon has put in so far."""
    return agent.metric("dfmeta_flow_mods_total", command="add")


def test_the_bridge_is_as_neutron_has_it(world: World) -> None:
    assert tables(world.host) >= TABLES
    (bridge,) = [row for row in world.host.records("Bridge") if row["name"] == BRIDGE]
    (controller,) = [
        row for row in world.host.records("Controller") if row["_uuid"] == bridge["controller"]
    ]
    assert bridge["fail_mode"] == "secure"
    assert (controller["target"], controller["is_connected"]) == (CONTROLLER, True)
    third, fourth = world.friends
    tags = [tag(guest) for guest in world.guests]
    assert len(set(tags)) == 3
    assert all(isinstance(one, int) and one != DEAD_VLAN for one in tags)
    assert third.ping(fourth.ip)
    # Nothing of the twins' passes the firewall.
    assert not world.twins[0].ping("10.0.0.8", timeout=0.5)


def test_guests_whose_groups_allow_nothing_get_their_own(world: World) -> None:
    for guest in (*world.guests, *world.twins):
        asks_own(guest)


def test_spoofing_protection_does_not_keep_a_guest_from_its_own(world: World) -> None:
    """Neutron lets no ARP out with an address that is not the port's."""
    guest = world.twins[0]
    guest.add_address("169.254.8.15/16")
    guest.forget_neighbours()
    asks_own(guest, source="169.254.8.15")
