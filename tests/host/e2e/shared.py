"""Fixtures whose objects the tests of a module share; the module takes them by name.

``host, agent = shared.host, shared.agent_with()``: one compute node and one daemon for all tests of
the module. ``make_guest`` then makes its guests on that compute node.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from dfmeta.model import TAP_MAC
from tests.harness.agent import Agent, Options
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.scheme import SIDE, Side
from tests.host.e2e.support import NOVA_OPTIONS, project_ids, put, put_nova
from tests.host.neutron.agent import NeutronAgent


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    """Provide a compute node."""
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture(scope="module")
def nova(host: OpenvSwitch) -> Iterator[RecordingNova]:
    """Provide a recording Nova on ``host``."""
    with RecordingNova(host.namespace) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh_record(nova: RecordingNova) -> None:
    """Have ``nova`` without faults, and without requests of an earlier test."""
    nova.mend()
    nova.clear()


def agent_with(options: Options | None = None) -> object:
    """Make a fixture: a daemon on ``host``, which must stop with exit status 0."""

    @pytest.fixture(scope="module")
    def agent(host: OpenvSwitch) -> Iterator[Agent]:
        yield from _run(host, options)

    return agent


def nova_agent_with(options: Options = NOVA_OPTIONS) -> object:
    """Make a fixture: the same with backend=nova and ``nova``."""

    @pytest.fixture(scope="module")
    def agent(host: OpenvSwitch, nova: RecordingNova) -> Iterator[Agent]:
        del nova
        yield from _run(host, options)

    return agent


@pytest.fixture
def guest(agent: Agent, make_guest: MakeGuest) -> Guest:
    """Provide a guest with a record in the store."""
    guest = make_guest("one")
    put(agent, guest)
    return guest


@pytest.fixture
def guest6(agent: Agent, make_guest: MakeGuest) -> Guest:
    """Provide the same with an IPv6 address beside the IPv4 one."""
    guest = make_guest("one", address6=["fd12:3456::5/64"], route="gateway")
    put(agent, guest)
    return guest


@pytest.fixture
def nova_guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    """Provide a guest with an instance at Nova, which answers."""
    del agent
    nova.mend()
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    return guest


class World(Protocol):
    """A host of the fixture ``world``, with Neutron's agent."""

    @property
    def neutron(self) -> NeutronAgent:
        """Neutron's agent."""

    @property
    def agent(self) -> Agent:
        """The daemon."""


@pytest.fixture
def neutron_of_world(world: World) -> NeutronAgent:
    """Neutron's agent, so that a failure shows its log."""
    return world.neutron


@pytest.fixture
def agent_of_world(world: World) -> Agent:
    """The daemon, so that a failure shows its log."""
    return world.agent


@dataclass(frozen=True)
class Net:
    """A hostile guest, a good one beside it, and the host that serves both."""

    host: OpenvSwitch
    agent: Agent
    good: Guest
    bad: Guest
    tap_mac: str
    """MAC of the service, as guests know it: with one bridge, that of the device as well."""
    side: Side
    keys: set[str] = field(default_factory=set)
    """Keys that one of the two guests has had, and those of the daemon's own probe."""

    def key(self, guest: Guest, version: int = 4) -> str:
        """The key of the guest's first address."""
        (row,) = [row for row in self.agent.admin("/ports").json() if row["port"] == guest.port]
        return str(row["key" if version == 4 else "key6"])

    def note_keys(self) -> None:
        """Keep the keys of this moment: an address may give way to others of its port."""
        self.keys.update(self.side.probes)
        for row in self.agent.admin("/ports").json():
            self.keys.update(address["key"] for address in row["addresses"])


def net_of(
    kind: Callable[[OpenvSwitch, Agent, Guest, Guest, str, Side], Net], side: Side = SIDE
) -> object:
    """Make a fixture: such a net of that subclass, with an identity scheme."""
    options = {"df_metadata": {"identity_scheme": side.scheme}}

    @pytest.fixture(scope="module")
    def net() -> Iterator[Net]:
        with OpenvSwitch() as host, Agent(host, options) as agent:
            good = Guest(host, "good", address="10.0.0.5/24")
            bad = Guest(host, "bad", address="10.0.0.66/24")
            agent.start()
            put(agent, good)
            put(agent, bad)
            yield kind(host, agent, good, bad, TAP_MAC, side)
            agent.stop()

    return net


def _run(host: OpenvSwitch, options: Options | None) -> Iterator[Agent]:
    with Agent(host, options) as daemon:
        yield daemon.start()
        daemon.stop()
