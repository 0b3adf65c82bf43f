"""A VM with a trunk on a compute node with Neutron: its server, its agent, and dfmeta.

:func:`tagged_with` has a stand-in for OVN instead of the agent: the VM's tags reach br-int.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.harness.agent import Agent, Options
from tests.harness.container import KEY
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Trunk
from tests.harness.vm_api import Connection, is_ready
from tests.host.e2e.support import asks_own, put
from tests.host.neutron.agent import OPEN, OUTSIDE, NeutronAgent
from tests.host.neutron.api import HOST, NeutronServer
from tests.host.neutron.trunk_agent import Link, Ovn

INSTANCE = uuid_of("instance with containers")
MTU = 1400


@dataclass
class World:
    """The compute node, and the VM."""

    host: OpenvSwitch
    server: NeutronServer
    neutron: NeutronAgent
    agent: Agent
    vm: Guest
    trunk: str
    network: str
    link: Link

    def ours(self) -> list[str]:
        """Return the ids of the containers' ports in Neutron."""
        return self.server.described("dfmeta:")


@contextlib.contextmanager
def world_with(**attachments: object) -> Iterator[World]:
    """Start all of it, with these options of the group ``attachments``."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        server = stack.enter_context(NeutronServer(host.namespace)).start()
        common, _subnet = server.network("common", "10.0.0.0/24")
        network, options = _configuration(server, attachments)
        port, trunk_id = server.parent(common["id"])
        (row,) = server.ports(id=port)
        neutron = stack.enter_context(NeutronAgent(host)).start()
        address = f"{row['fixed_ips'][0]['ip_address']}/24"
        ids = Ids(iface_id=port, vm_uuid=INSTANCE)
        vm = stack.enter_context(
            Guest(host, "vm", address=address, mac=row["mac_address"], ids=ids, plug=False)
        )
        neutron.put(vm, network="common", vlan=201, groups=(OPEN,))
        link = stack.enter_context(Link(neutron, server))
        agent = stack.enter_context(Agent(host, options)).start()
        put(agent, vm)
        wait_for(lambda: "iteration:1 completed" in neutron.log(), "Neutron's agent to run")
        trunk = Trunk(vm, plugged=False, wired=False, trunk_id=trunk_id)
        stack.callback(trunk.close)
        neutron.put_subports(trunk_id, port, {})
        trunk.plug()
        wait_for(lambda: trunk.inner in host.ports(), "the trunk")
        asks_own(vm)
        wait_for(lambda: is_ready(vm.namespace), "the VM to be ready")
        yield World(host, server, neutron, agent, vm, trunk_id, network, link)
        agent.stop()


@dataclass
class TaggedWorld:
    """The compute node, and a VM that is plugged straight into br-int."""

    host: OpenvSwitch
    server: NeutronServer
    agent: Agent
    vm: Guest

    def ours(self) -> list[str]:
        """Return the ids of the containers' ports in Neutron."""
        return self.server.described("dfmeta:")

    def entries(self) -> list[dict[str, Any]]:
        """Return the VM's list of subports."""
        for row in self.host.records("Interface", "name", "external_ids"):
            if row["name"] == self.vm.port:
                return list(json.loads(row["external_ids"].get(KEY, "[]")))
        return []


@contextlib.contextmanager
def tagged_with(**attachments: object) -> Iterator[TaggedWorld]:
    """Start all of it, with these options of the group ``attachments``."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        server = stack.enter_context(NeutronServer(host.namespace)).start()
        common, _subnet = server.network("common", "10.0.0.0/24")
        _network, options = _configuration(server, attachments)
        options["df_metadata"] = {"identity_sources": "ovsdb,neutron"}
        port, _trunk = server.parent(common["id"])
        stack.enter_context(Ovn(server))
        ids = Ids(iface_id=port, vm_uuid=INSTANCE)
        vm = stack.enter_context(Guest(host, "vm", address="10.0.0.5/24", ids=ids))
        agent = stack.enter_context(Agent(host, options)).start()
        put(agent, vm)
        asks_own(vm)
        wait_for(lambda: is_ready(vm.namespace), "the VM to be ready")
        yield TaggedWorld(host, server, agent, vm)
        agent.stop()


def _configuration(server: NeutronServer, attachments: Mapping[str, object]) -> tuple[str, Options]:
    """Create the network of the containers; return its id, and the options of the daemon."""
    pods, subnet = server.network(
        *("pods", "10.20.0.0/20"), gateway_ip="10.20.0.1", dns_nameservers=["192.0.2.53"], mtu=MTU
    )
    options: Options = {
        "attachments": {
            "enabled": True,
            "driver": "neutron",
            "allow": INSTANCE,
            "rest": 0,
            **attachments,
        },
        "attachment_network:pods": {"neutron_network": pods["id"], "neutron_subnet": subnet["id"]},
        "neutron": {
            "host": HOST,
            "auth_type": "none",
            "endpoint_override": server.url,
            # Its one thread answers all, and shares the CPU with other tests.
            "timeout": 6,
        },
    }
    return pods["id"], options


def listed(connection: Connection) -> list[dict[str, Any]]:
    """Return a VM's attachments."""
    return list(json.loads(connection.ask("GET", "/attachments").body)["attachments"])
