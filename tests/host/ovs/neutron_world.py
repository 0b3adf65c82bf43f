"""Neutron, a host with a trunk on it, and the driver ``neutron`` between both."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session

from dfmeta.attach.drivers.networks import Chosen, NeutronNetworks
from dfmeta.attach.drivers.neutron import NeutronDriver
from dfmeta.attach.drivers.wired import WiredPorts, is_patch
from dfmeta.attach.engine import AttachmentEngine
from dfmeta.attach.model import (
    Attachment,
    AttachmentDriver,
    AttachmentLimits,
    AttachmentRequest,
    AttachmentState,
    Parent,
)
from dfmeta.errors import SourceError
from dfmeta.neutron.client import NeutronApi, NeutronTrunks
from dfmeta.ovsdb.idl import OvsdbClient
from dfmeta.ovsdb.subport_list import KEY
from dfmeta.ovsdb.trunk_bridge import enable
from dfmeta.ovsdb.watcher import COLUMNS
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.database import Database
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.neutron.api import HOST, NeutronServer
from tests.host.neutron.trunk_agent import TrunkAgent
from tests.host.ovs import vms

SUBNET = IPv4Network("10.9.0.0/16")
GATEWAY = IPv4Address("10.9.0.1")
INSTANCE = "11111111-2222-3333-4444-555555555555"
_NUMBERS = itertools.count()


class CrashError(BaseException):
    """The process ends here."""


class Api(NeutronApi):
    """The client, which a test can break at the request that is *left* requests away.

    A break comes before the request, or after it, so that its answer is lost.
    """

    left = 0
    error: type[BaseException] = CrashError
    sent: list[str]

    def call(self, method: str, path: str, **more: Any) -> Any:
        self.step()
        answer = super().call(method, path, **more)
        self.sent.append(f"{method} {path.rpartition('/')[2] if method == 'PUT' else path}")
        self.step()
        return answer

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error

    @property
    def changes(self) -> list[str]:
        return [request for request in self.sent if not request.startswith("GET")]


class LostError(SourceError):
    """There is no answer."""

    def __init__(self) -> None:
        super().__init__(source="neutron", cause="the answer is lost", status=0)


@dataclass
class World:
    """Neutron with two networks, a host, and a VM with a trunk on it."""

    host: OpenvSwitch
    server: NeutronServer
    agent: TrunkAgent
    vms_network: str
    pods: Chosen
    parents: tuple[tuple[str, str], ...]
    """Ports that are parents already, on the host, with their trunks."""
    used: int = 0

    def parent(self) -> tuple[str, str]:
        """Return the next of the parents."""
        self.used += 1
        return self.parents[self.used - 1]

    def vm(self, name: str, *, network: str = "", host: str = "") -> tuple[Parent, str]:
        """Plug a VM whose port is a parent; return it with the id of its trunk."""
        if network or host:
            port, trunk = self.server.parent(network or self.vms_network, host=host or HOST)
        else:
            port, trunk = self.parent()
        made = vms.plug(self.host, name, tag=7, iface_id=port)
        enable(self.host.ovsdb_connection, BRIDGE, name)
        return made, trunk

    def tagged(self, name: str) -> Parent:
        """Plug a VM with a trunk whose tags reach the integration bridge."""
        port, _trunk = self.parent()
        return replace(vms.plug(self.host, name, iface_id=port), port_name=name)

    def entries(self, vm: Parent) -> list[Any]:
        """Return a VM's list of subports."""
        return list(json.loads(vms.rows(self.host)[vm.port_name]["external_ids"].get(KEY, "[]")))

    def api(self) -> Api:
        made = Api(Session(auth=NoAuth()), host=HOST, where={}, endpoint=self.server.url)
        made.sent = []
        return made

    def driver(self, *parents: Parent, api: Api | None = None, **more: Chosen) -> NeutronDriver:
        """Make a driver, as at the start of a process."""
        trunks = NeutronTrunks(api or self.api(), host=HOST, connect=10)
        networks = NeutronNetworks(trunks, {"red": self.pods, **more})
        database = OvsdbClient(self.host.ovsdb_connection, COLUMNS)
        wired = WiredPorts(database, BRIDGE, trunks.statuses)
        driver: AttachmentDriver = NeutronDriver(
            trunks, networks, wired, lambda: [parent.port_id for parent in parents]
        )
        assert isinstance(driver, NeutronDriver)
        return driver

    def ours(self) -> list[str]:
        """Return the ids of the ports of containers in Neutron."""
        return self.server.described("dfmeta:")

    def inner(self) -> set[str]:
        return {port for port in self.host.ports() if port.startswith("spi-")}


@pytest.fixture(scope="module")
def server() -> Iterator[NeutronServer]:
    with NeutronServer() as server:
        yield server.start()


@pytest.fixture(scope="module")
def whole(switch: OpenvSwitch, server: NeutronServer) -> Iterator[World]:
    network, _subnet = server.network("vms", "10.0.0.0/16")
    pods, subnet = server.network(
        "pods", str(SUBNET), gateway_ip=str(GATEWAY), dns_nameservers=["192.0.2.53"]
    )
    group = server.create("security_group", name="pods")["id"]
    with TrunkAgent(switch, server) as agent:
        chosen = Chosen(pods["id"], subnet["id"], (group,))
        parents = tuple(server.parent(network["id"]) for _ in range(2))
        server.keep()
        yield World(switch, server, agent, network["id"], chosen, parents)


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.server.reset()
    whole.used = 0
    wait_for(lambda: not whole.inner(), "the patch ports to go")
    vms.clear(whole.host)


@pytest.fixture
def vm(world: World) -> Parent:
    return world.vm("tap1")[0]


@pytest.fixture
def ovn(world: World) -> None:
    """An OVN that is fast; with the one of tests/host/e2e the status comes late."""
    world.server.activate_subports()


def wanted(parent: Parent, vid: int, **values: Any) -> Attachment:
    """Return an attachment that has just been chosen."""
    attachment = vms.attachment(parent, vid)
    mac = f"fa:16:3f:{attachment.id[:2]}:{attachment.id[2:4]}:{attachment.id[4:6]}"
    number = 100 * vid + next(_NUMBERS) % 100
    return replace(attachment, **{"port_id": "", "ip": SUBNET[number], "mac": mac, **values})


def trunk_of(world: World, parent: Parent) -> str:
    return world.server.trunk_of(parent.port_id)


@dataclass
class Engines:
    """An engine on Neutron, and its database."""

    world: World
    database: Database
    parents: tuple[Parent, ...]
    now: float = 1_000_000.0

    def start(self, api: Api | None = None) -> AttachmentEngine:
        driver = self.world.driver(*self.parents, api=api)
        return AttachmentEngine(
            AttachmentTables(self.database),
            driver,
            driver._networks,
            AttachmentLimits(rate=1e9, rest=0.0, rest_unknown=0.0),
            host="host-1",
            clock=lambda: self.now,
            name=str,
        )

    def check(self, engine: AttachmentEngine) -> None:
        """Tables and Neutron should be the same."""
        rows = {attachment.port_id: attachment for attachment in engine.everything()}
        assert {row.state for row in rows.values()} <= {AttachmentState.ACTIVE}
        assert set(self.world.ours()) == rows.keys()
        for parent in self.parents:
            its = {port: row for port, row in rows.items() if row.parent == parent.port_id}
            vids = {port: attachment.vid for port, attachment in its.items()}
            assert self.world.server.subports(trunk_of(self.world, parent)) == vids
            if not is_patch(parent):
                entries = self.world.entries(parent)
                message = {entry["port_id"]: entry["attachment"] for entry in entries}
                assert message == {port: attachment.id for port, attachment in its.items()}


@pytest.fixture
def engines(world: World, vm: Parent, tmp_path: Path) -> Iterator[Engines]:
    database = Database(f"sqlite:///{tmp_path / 'attachments.db'}")
    yield Engines(world, database, (vm,))
    database.close()


def one_of(number: int = 1, **values: Any) -> AttachmentRequest:
    return AttachmentRequest(container=f"c{number}", ifname="eth0", network="red", **values)
