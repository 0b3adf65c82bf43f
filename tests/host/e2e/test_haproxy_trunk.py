"""The containers of a VM should leave the places of haproxy to other guests."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.harness.agent import HAPROXY, Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Container, Trunk
from tests.host.e2e import shared
from tests.host.e2e.support import PROJECT, asks_own, open_connection, project_ids, put_nova
from tests.host.e2e.test_haproxy import OPTIONS

VIDS = (100, 200, 300)
PER_PORT, PLACES = 32, 64
OF_VM = 48
"""Connections of a VM with its containers when it opens as many as it can: three quarters."""

host, nova = shared.host, shared.nova
agent = shared.nova_agent_with(
    {
        **OPTIONS,
        "haproxy": {"binary": HAPROXY, "maxconn": PLACES},
        "guest_limits": {
            "header_timeout": 120,
            "connections_per_port": 16,
            "waiting_per_port": PER_PORT - 16,
        },
    }
)


@pytest.fixture
def vm(host: OpenvSwitch, agent: Agent, nova: RecordingNova) -> Iterator[list[Guest]]:
    """A VM, and its containers on subports with ports of their own."""
    with ExitStack() as stack:
        parent = stack.enter_context(
            Guest(host, "vm", address="10.0.0.5/24", plug=False, ids=project_ids("vm"))
        )
        trunk = Trunk(parent, *VIDS)
        stack.callback(trunk.close)
        put_nova(nova, parent)
        guests = [parent]
        for vid, subport in zip(VIDS, trunk.subports, strict=True):
            container = stack.enter_context(
                Container(trunk, vid, f"container-{vid}", address="10.9.0.5/24")
            )
            instance = container.instance_id
            nova.put(Instance(instance_id=instance, project_id=PROJECT, hostname=container.name))
            ids = f'external_ids:dfmeta-instance="{instance}"'
            host.vsctl("set", "Interface", subport.inner, ids)
            wait_for(lambda instance=instance: instance in agent.admin("/ports").text, "its port")
            guests.append(container)
        yield guests


def test_containers_that_open_connections_without_end_take_no_place_of_another(
    agent: Agent, nova: RecordingNova, vm: list[Guest], make_guest: MakeGuest
) -> None:
    neighbour, stranger = (make_guest(name, ids=project_ids(name)) for name in ("one", "two"))
    for guest in (neighbour, stranger):
        put_nova(nova, guest)
    for guest in (*vm, neighbour):
        asks_own(guest)

    def count() -> tuple[float, float]:
        refused = agent.metric("dfmeta_closed_connections_total", reason="too_many")
        return agent.metric("dfmeta_open_connections"), refused

    with ExitStack() as opened:
        for _ in range(PER_PORT):
            for guest in vm:
                # The kernel may tell of the cut before it tells of the connection.
                with suppress(ConnectionResetError):
                    opened.enter_context(open_connection(guest))
        wait_for(lambda: count() == (OF_VM, PER_PORT * len(vm) - OF_VM), "all connections")
        asks_own(neighbour)
        asks_own(stranger)
