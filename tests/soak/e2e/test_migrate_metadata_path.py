"""From Neutron's extension metadata_path to dfmeta, to its Meta IPs, and back, while guests ask.

The steps are those of doc/source/migrate.rst, "metadata_path".
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import META_BRIDGE
from tests.host.e2e import shared
from tests.host.e2e.support import NOVA_OPTIONS, TWIN_MAC, put_nova
from tests.host.e2e.test_neutron_agent import UNDER_WAY, asking
from tests.host.neutron.agent import OUTSIDE, NeutronAgent

pytestmark = pytest.mark.early

PROJECT = "project"
"""Of all ports of the harness's neutron-server, which metadata_path sends to Nova."""
MAPPINGS = f"physnet:{OUTSIDE}"
EXTENSIONS = "dhcp,dns_forwarder,qos"
METADATA_PATH: dict[str, dict[str, object]] = {
    "OVS": {"bridge_mappings": f"{MAPPINGS},meta:{META_BRIDGE}"},
    "AGENT": {"extensions": f"{EXTENSIONS},metadata_path"},
    "METADATA": {
        "nova_metadata_host": "127.0.0.1",
        "nova_metadata_port": 8775,
        "metadata_proxy_shared_secret": SECRET,
    },
}
WITHOUT: dict[str, dict[str, object]] = {
    "OVS": {"bridge_mappings": MAPPINGS},
    "AGENT": {"extensions": EXTENSIONS},
}
RESTORING = 100
"""Requests that may be reset while Neutron's agent deletes dfmeta's flows, beside the extension.

Until dfmeta has restored them, the extension's flows take segments of dfmeta's connections: 3 to 31
requests were seen.
"""
FORWARDED = "X-Forwarded-For"
"""Header to Nova that dfmeta sends and metadata_path does not."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A compute node with metadata_path, and with dfmeta, which does not run yet."""

    host: OpenvSwitch
    neutron: NeutronAgent
    agent: Agent
    nova: RecordingNova
    guests: tuple[Guest, ...]

    def provider_ips(self) -> list[str]:
        """Meta IP of each guest, as metadata_path has written it into OVSDB."""
        config = {row["name"]: row["other_config"] for row in self.host.records("Port")}
        return [str(config[guest.port].get("provider_ip", "")) for guest in self.guests]

    def haproxy(self) -> Path:
        """File with the process id of the extension's haproxy."""
        return self.neutron.folder / "external/pids/host_metadata_proxy.pid.haproxy"

    def asking(self, *, unanswered: int = 0) -> contextlib.AbstractContextManager[None]:
        """See :func:`tests.host.e2e.test_neutron_agent.asking`."""
        return asking(self.nova.received, self.guests, unanswered=unanswered)

    def server(self) -> str:
        """Program that answers the guests now."""
        self.nova.clear()
        enough = UNDER_WAY * len(self.guests)
        wait_for(lambda: self.nova.received() >= enough, "requests")
        by_us = {
            response.header(FORWARDED) is not None for response in self.nova.requests()[-UNDER_WAY:]
        }
        assert len(by_us) == 1
        return "dfmeta" if by_us.pop() else "metadata_path"


@pytest.fixture
def world() -> Iterator[World]:
    """Two guests of two networks with the same addresses, served by the extension."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE, META_BRIDGE)))
        nova = stack.enter_context(RecordingNova(host.namespace))
        neutron = stack.enter_context(NeutronAgent(host, METADATA_PATH))
        guests = []
        for number, name in enumerate(("first", "second")):
            ids = Ids(
                iface_id=uuid_of(f"port {name}"),
                vm_uuid=uuid_of(f"instance {name}"),
                project_id=PROJECT,
            )
            guest = stack.enter_context(Guest(host, name, mac=TWIN_MAC, ids=ids))
            neutron.put(guest, network=name, vlan=101 + number)
            put_nova(nova, guest)
            guests.append(guest)
        agent = stack.enter_context(Agent(host, NOVA_OPTIONS))
        agent.configure({"df_metadata": {"identity_scheme": "in_port"}})
        neutron.start()
        neutron.clean_up()
        yield World(host=host, neutron=neutron, agent=agent, nova=nova, guests=tuple(guests))
        if agent.running:
            agent.stop()


neutron, agent = shared.neutron_of_world, shared.agent_of_world


def test_a_host_goes_over_and_comes_back_while_guests_ask(
    world: World, neutron: NeutronAgent, agent: Agent
) -> None:
    """No request fails, but for those under way when another program takes over.

    That is one for each guest: it waits for the answer before it asks again.
    """
    under_way = len(world.guests)
    provider_ips, before = world.provider_ips(), outside(world.host)
    with world.asking(unanswered=under_way):
        assert world.server() == "metadata_path"
        agent.start()
        assert world.server() == "dfmeta"
    with world.asking():
        remove_the_extension(world)
        assert world.server() == "dfmeta"
    with world.asking(unanswered=under_way):
        change_the_scheme(agent, "meta_ip")
        assert world.server() == "dfmeta"
    assert keys(world) == provider_ips
    with world.asking(unanswered=under_way):
        change_the_scheme(agent, "in_port")
        assert world.server() == "dfmeta"
    with world.asking(unanswered=RESTORING):
        bring_the_extension_back(world)
        assert world.server() == "dfmeta"
    with world.asking(unanswered=under_way):
        agent.stop()
        agent.clean_up()
        assert world.server() == "metadata_path"
    assert world.provider_ips() == provider_ips
    assert outside(world.host) == before


def outside(host: OpenvSwitch) -> dict[str, object]:
    """What the way back restores: bridges, ports and the number of flows of each bridge."""
    return {
        bridge: (sorted(host.ports(bridge)), len(host.flows(bridge)))
        for bridge in host.vsctl("list-br").split()
    }


def remove_the_extension(world: World) -> None:
    """Step 2 of the page: between the stop and the start of Neutron's agent."""
    host = world.host
    world.neutron.kill()
    world.neutron.configure(WITHOUT)
    os.kill(int(world.haproxy().read_text()), signal.SIGTERM)
    host.vsctl("--if-exists", "del-port", BRIDGE, "int-br-meta")
    host.vsctl("--if-exists", "del-br", META_BRIDGE)
    world.neutron.start()
    world.neutron.clean_up()


def change_the_scheme(agent: Agent, scheme: str) -> None:
    """Step 3 of the page."""
    agent.stop()
    agent.configure({"df_metadata": {"identity_scheme": scheme}})
    agent.start()


def bring_the_extension_back(world: World) -> None:
    """The rollback of the page, until the extension serves guests."""
    world.host.add_bridge(META_BRIDGE)
    world.neutron.configure(METADATA_PATH)
    world.neutron.restart()
    world.neutron.clean_up()


def keys(world: World) -> list[str]:
    """The first Meta IP of each guest."""
    rows = {row["port"]: row["key"] for row in world.agent.admin("/ports").json()}
    return [str(rows[guest.port]) for guest in world.guests]
