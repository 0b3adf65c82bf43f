"""A VM gets attachments from a real Neutron: its server, its trunk plugin and its agent."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

from tests.harness.container import Container
from tests.harness.guest import Guest
from tests.harness.poll import wait_for
from tests.harness.vm_api import Connection, allowed
from tests.host.e2e import shared
from tests.host.e2e.neutron_vm import World, listed, world_with
from tests.host.e2e.support import META_DATA, SILENCE

NETWORK = {"network": "pods"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Neutron, the daemon with driver = neutron, and a VM."""
    with world_with() as made:
        yield made


neutron, agent = shared.neutron_of_world, shared.agent_of_world


pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]


@pytest.fixture
def vm(world: World) -> Iterator[Guest]:
    """The VM, without attachments."""
    yield world.vm
    with allowed(world.vm.namespace) as connection:
        for attachment in listed(connection):
            path = f"/attachments/{attachment['container']}/{attachment['ifname']}?link=gone"
            assert connection.ask("DELETE", path).status == 204
    wait_for(lambda: not world.ours(), "the ports to go")


def made(connection: Connection, container: str) -> dict[str, Any]:
    reply = connection.ask("PUT", f"/attachments/{container}/eth0", NETWORK)
    assert reply.status == 201, reply
    return dict(json.loads(reply.body))


def meta_data(guest: Guest) -> dict[str, Any]:
    reply = guest.curl(META_DATA)
    return dict(json.loads(reply.body)) if reply.status == 200 else {}


def reaches(guest: Guest, other: Guest) -> bool:
    """Return whether a datagram arrives within a moment."""
    with (
        other.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
        guest.namespace.open_socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
    ):
        far.bind((other.ip, 7001))
        far.settimeout(SILENCE)
        near.sendto(b"hello", (other.ip, 7001))
        with suppress(TimeoutError):
            return far.recv(16) == b"hello"
    return False


def test_frames_of_two_containers_pass(world: World, vm: Guest) -> None:
    with allowed(vm.namespace) as connection, ExitStack() as stack:
        containers = []
        for name in ("c1", "c2"):
            attachment = made(connection, name)
            container = stack.enter_context(
                Container(
                    vm,
                    attachment["vid"],
                    address=attachment["ips"][0]["address"],
                    mac=attachment["mac"],
                )
            )
            containers.append(container)
            # It is an instance of its own, with the record of its attachment.
            result = wait_for(partial(meta_data, container), "its record")
            assert (result["uuid"], result["name"]) == (attachment["id"], name)
        wait_for(lambda: reaches(*containers), "the containers to reach each other")
