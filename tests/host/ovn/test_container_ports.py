"""Identity from OVN's southbound database: VMs, and the containers at their container ports."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dfmeta.store.db.repository import Repository
from tests.harness.agent import Agent
from tests.harness.certificates import Authority
from tests.harness.container import Container
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovn import Chassis
from tests.harness.ovs import UNPACKED, OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e.support import META_DATA, PROJECT, asks_own, is_unanswered
from tests.host.ovn.cloud import Network, external_ids, plug

MOMENT = 5.0
"""Seconds: well below the 30 in which a change is noticed without an event."""


class Site:
    """A VM with two containers on each network; the same tags, MACs and addresses on both."""

    def __init__(self, agent: Agent, networks: list[Network], stack: ExitStack) -> None:
        self.agent, self.networks, self.stack = agent, networks, stack
        self.central, host = networks[0].central, agent.host
        make_guest, mac = MakeGuest(host, stack), "fa:16:3e:00:00:55"
        self.vms = [
            plug(make_guest, each, each.name, mac=mac, project=PROJECT) for each in networks
        ]
        for vm in self.vms:  # OVN alone names them
            host.vsctl("remove", "Interface", vm.port, "external_ids", "vm-uuid", "project-id")
        self.containers = [self.add(number, vid) for number in (0, 1) for vid in (100, 200)]
        self.guests = [*self.vms, *self.containers]
        self.put(*self.guests)
        for guest in self.guests:
            self.await_state(guest, "served")

    def add(self, number: int, vid: int, *, named: bool = True) -> Container:
        """Add a container and its port; *named*: the port has the container's instance."""
        vm, network = self.vms[number], self.networks[number]
        mac, address = f"fa:16:3f:00:00:{vid & 255:02x}", f"10.0.0.{vid & 255}"
        container = Container(vm, vid, mac=mac, address=f"{address}/24")
        self.stack.enter_context(container)
        port, device = container.ids.iface_id, container.instance_id if named else ""
        network.add(port, mac, address, parent=vm.ids.iface_id, tag=vid)
        values = {"device_owner": "trunk:subport", "device_id": device, "project_id": PROJECT}
        self.central.wire(external_ids(port, **values))
        return container

    def remove(self, number: int, container: Container) -> None:
        """Remove the port of a container."""
        self.networks[number].ports.remove(container.ids.iface_id)
        self.central.nbctl("lsp-del", container.ids.iface_id)

    def put(self, *guests: Guest) -> None:
        """Put records; an unverified instance needs the project of its port there."""
        with Repository(f"sqlite:///{self.agent.state_path}/store.db") as records:
            for guest in guests:
                document = {"hostname": guest.name}
                records.put(guest.instance_id, document=document, project_id=PROJECT)

    def await_state(self, guest: Guest, state: str, *, deadline: float = DEADLINE) -> None:
        """Wait until the port of a guest has a state; empty: until it is gone."""

        def has_state() -> bool:
            rows = self.agent.admin("/ports").json()
            states = [row["state"] for row in rows if row["iface_id"] == guest.ids.iface_id]
            return "".join(states) == state

        wait_for(has_state, f"{guest.name} to be {state or 'gone'}", deadline=deadline)

    def ask_all(self) -> None:
        """Each guest asks once, and gets its own document."""
        for guest in self.guests:
            asks_own(guest)

    def verdict(self) -> str:
        """Return doctor's verdict on the database."""
        done = self.agent.ctl("doctor", "--format", "json", check=False)
        lines = json.loads(done.stdout)
        return next(line["status"] for line in lines if line["check"] == "source-ovn")


@pytest.fixture(scope="module")
def site(host: OpenvSwitch, chassis: Chassis, networks: list[Network]) -> Iterator[Site]:
    options = {"df_metadata": {"identity_sources": "ovsdb,libvirt,ovn"}}
    with Agent(chassis.host, options) as agent, ExitStack() as stack:
        yield Site(agent.start(), networks, stack)
        agent.stop()


def test_each_guest_gets_its_own(site: Site) -> None:
    site.ask_all()
    for row in site.agent.admin("/ports").json():
        assert row["sources"] == {"instance_id": "ovn", "project_id": "ovn (port)"}


def test_a_container_port_follows_each_change_within_a_moment(site: Site) -> None:
    """It has no instance at first, and never its VM's."""
    container = site.add(0, 300, named=False)
    site.put(container)
    site.await_state(container, "unnamed", deadline=MOMENT)
    assert container.curl(META_DATA).status == 404
    port = container.ids.iface_id
    site.central.wire(external_ids(port, device_id=container.instance_id))
    site.await_state(container, "served", deadline=MOMENT)
    asks_own(container)
    site.central.nbctl("set", "Logical_Switch_Port", port, "tag_request=301")
    wait_for(lambda: is_unanswered(container), "the VLAN to be nobody's")
    site.central.nbctl("set", "Logical_Switch_Port", port, "tag_request=300")
    wait_for(lambda: not is_unanswered(container), "the VLAN to be the container's again")
    site.remove(0, container)
    site.await_state(container, "", deadline=MOMENT)
    site.ask_all()


def test_nobodys_data_changes_while_the_database_is_away(site: Site) -> None:
    assert site.verdict() == "ok"
    site.central.kill("databases")
    wait_for(lambda: "known ports stay" in site.agent.log(), "the daemon to notice")
    site.ask_all()
    assert site.verdict() == "wrong"
    site.central.start("databases")
    added = site.add(1, 300)
    site.put(added)
    site.await_state(added, "served")
    asks_own(added)
    site.remove(1, added)
    site.ask_all()


def test_a_relay_is_read_over_tls(site: Site, tmp_path: Path) -> None:
    authority, namespace = Authority(tmp_path), site.agent.namespace
    server, client = (authority.issue("127.0.0.1") for _ in range(2))
    relay = [str(UNPACKED / "usr/sbin/ovsdb-server"), "--remote=pssl:6642:127.0.0.1"]
    relay += [f"--private-key={server.key}", f"--certificate={server.certificate}"]
    relay += [f"--ca-cert={authority.certificate}", f"--unixctl={tmp_path}/ctl", "-vconsole:off"]
    process = namespace.spawn([*relay, f"relay:OVN_Southbound:{site.central.remote}"])
    try:
        options = {
            "ovn_sb_connection": "ssl:127.0.0.1:1,ssl:127.0.0.1:6642",
            "ovn_sb_private_key": client.key,
            "ovn_sb_certificate": client.certificate,
            "ovn_sb_ca_cert": authority.certificate,
        }
        site.agent.configure({"ovn": options})
        site.agent.restart()
        for guest in site.guests:
            site.await_state(guest, "served")
        site.ask_all()
        assert site.verdict() == "ok"
    finally:
        process.kill()
        process.wait()
