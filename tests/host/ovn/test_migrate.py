"""From OVN's metadata agent to dfmeta and back, by the steps of doc/source/migrate.rst."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.core.docs.typed import chapter, commands
from tests.harness.console import Step
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.ovn import Chassis
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.shell import Shell
from tests.host.e2e.support import NOVA_OPTIONS, PROJECT, put_nova
from tests.host.e2e.test_neutron_agent import UNDER_WAY, asking
from tests.host.ovn.cloud import Network, plug
from tests.host.ovn.metadata_agent import MetadataAgent

pytestmark = pytest.mark.early

AGENT, EXTENSION = "neutron-ovn-metadata-agent", "neutron-ovn-agent"
STEPS, _, ROLLBACK = chapter("migrate", "OVN's metadata agent").partition("\nRollback: ")
DISABLE, *REMOVE = commands(STEPS)
DFMETA, NEUTRON = "dfmeta", "python-requests"
"""User agents of requests to Nova."""
INTERRUPTED = 20
"""Requests that may get no answer when one program takes over from another."""


@dataclass(frozen=True)
class Cloud:
    """A compute node with OVN's metadata agent, and with dfmeta, which does not run yet."""

    chassis: Chassis
    networks: list[Network]
    nova: RecordingNova
    neutron: MetadataAgent
    shell: Shell
    guests: tuple[Guest, ...]

    def during(self, change: Callable[[], object], server: str, *, unanswered: int = 0) -> None:
        """Change something while guests ask, who get answers by *server* afterwards."""
        with asking(self.nova.received, self.guests, unanswered=unanswered):
            change()
            self.nova.clear()
            wait_for(lambda: self.nova.received() >= UNDER_WAY, "requests")
            names = [str(request.header("User-Agent")) for request in self.nova.requests()]
            assert names[-1].partition("/")[0] == server

    def start_controller(self) -> None:
        """Start ovn-controller again and again: it deletes all flows of br-int."""
        for stop in (self.chassis.kill, lambda: self.chassis.stop(restart=True)) * 2:
            stop()
            self.chassis.start()
            wait_for(self.shell.agent.ready, "the daemon to be ready")

    def start_neutron(self) -> None:
        """Do the rollback of the page, for the agent."""
        self.neutron.configure({"agent": {"extensions": "metadata"}})
        self.shell.type_all(ROLLBACK)
        wait_for(lambda: all(map(self.neutron.serves, self.networks)), "OVN's metadata agent")

    def stop_neutron(self) -> None:
        """Stop the agent; Neutron's OVN agent runs on without the extension."""
        self.neutron.stop()
        if self.neutron.program == EXTENSION:
            self.neutron.configure({"agent": {"extensions": ""}})
            self.neutron.start()

    def remove_neutron(self) -> None:
        """Do the second step of the page."""
        for command in (DISABLE, *REMOVE):
            self.shell.type(Step(guest="", command=command, shown=()))

    def doctor(self) -> list[str]:
        """Return the lines of ``dfmeta doctor`` on the agent."""
        lines = self.shell.run("dfmeta doctor || true").splitlines()
        return [" ".join(line.split()) for line in lines if " ovn-metadata " in line]


@pytest.fixture(scope="module")
def guests(host: OpenvSwitch, networks: list[Network]) -> Iterator[tuple[Guest, ...]]:
    """Provide two guests of two networks with the same addresses."""
    with ExitStack() as stack:
        make_guest = MakeGuest(host, stack)
        yield tuple(
            plug(make_guest, network, network.name, mac="fa:16:3e:00:00:55", project=PROJECT)
            for network in networks
        )


@pytest.fixture(params=[AGENT, EXTENSION])
def cloud(
    chassis: Chassis,
    networks: list[Network],
    guests: tuple[Guest, ...],
    request: pytest.FixtureRequest,
) -> Iterator[Cloud]:
    """Provide the compute node, whose guests OVN's agent serves."""
    with ExitStack() as stack:
        nova = stack.enter_context(RecordingNova(chassis.host.namespace))
        for guest in guests:
            put_nova(nova, guest)
        neutron = stack.enter_context(MetadataAgent(chassis, request.param))
        shell = Shell(stack, chassis.host)
        shell.agent.configure(NOVA_OPTIONS)
        shell.inside += neutron.prefix[1:]
        shell.services[AGENT] = neutron
        made = Cloud(chassis, networks, nova, neutron, shell, guests)
        made.start_neutron()
        yield made
        made.remove_neutron()


def test_a_host_goes_over_and_comes_back_while_guests_ask(cloud: Cloud) -> None:
    """A start of ovn-controller fails no request once the agent's devices are removed."""
    cloud.during(cloud.shell.agent.start, DFMETA, unanswered=INTERRUPTED)
    (line,) = cloud.doctor()
    assert line.startswith("ok ovn-metadata ")
    cloud.during(cloud.start_controller, DFMETA, unanswered=INTERRUPTED)
    cloud.stop_neutron()
    (line,) = cloud.doctor()
    assert line.startswith("wrong ovn-metadata ")
    assert f"`{REMOVE[0]}`" in line
    cloud.during(cloud.remove_neutron, DFMETA)
    assert (cloud.doctor(), cloud.neutron.namespaces()) == ([], [])
    cloud.during(cloud.start_controller, DFMETA)
    cloud.during(cloud.start_neutron, DFMETA)
    back = chapter("migrate", "Rollback of one host")
    cloud.during(lambda: cloud.shell.type_all(back), NEUTRON, unanswered=INTERRUPTED)
