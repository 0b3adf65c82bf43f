"""No fault of a daemon or a host leaks an attachment, doubles one or takes one from a container."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed, is_ready

HOSTS = 3
EACH = 15
NETWORK = {"network": "pods"}
GRACE = 2
OPTIONS: Options = {
    "attachments": {"enabled": True, "rate": 1000, "rest": 0, "rest_unknown": 0, "grace": GRACE},
    "attachment_network:pods": {"subnet": "10.20.0.0/24", "local_vlan": 7},
}


@dataclass(frozen=True)
class Host:
    """A compute node."""

    agent: Agent

    @property
    def switch(self) -> OpenvSwitch:
        """Its Open vSwitch."""
        return self.agent.host

    def vm(self, name: str) -> Guest:
        """Return a VM that may have attachments, with a trunk."""
        ids = Ids(
            iface_id=uuid_of(f"port {name}"),
            vm_uuid=uuid_of(f"instance {name}"),
            extra={"dfmeta-attachments": "true"},
        )
        guest = Guest(self.switch, name, address="10.0.0.5/24", ids=ids)
        self.agent.ctl("trunk", "enable", guest.port)
        wait_for(lambda: is_ready(guest.namespace), "the VM to be ready")
        return guest

    def tags(self) -> dict[str, int]:
        """The attachments that the switch has whole: id → VLAN id."""
        ids = {
            row["name"]: row["external_ids"].get("dfmeta-attachment")
            for row in self.switch.records("Interface", "name", "external_ids")
        }
        ends = Counter(end for end in ids.values() if end)
        return {
            str(ids[row["name"]]): row["tag"]
            for row in self.switch.records("Port", "name", "tag")
            if row["name"].startswith("spt-") and ends[ids.get(row["name"])] == 2
        }


def attach(guest: Guest, container: str) -> dict[str, Any]:
    """Return an attachment; the request is repeated as the plugin repeats it."""

    def made() -> dict[str, Any] | None:
        try:
            with allowed(guest.namespace) as connection:
                reply = connection.ask("PUT", f"/attachments/{container}/eth0", NETWORK)
        except (AssertionError, OSError):
            return None
        return json.loads(reply.body) if reply.status in (200, 201) else None

    return dict(wait_for(made, "the attachment") or {})


def detach(guest: Guest, container: str) -> None:
    with allowed(guest.namespace) as connection:
        reply = connection.ask("DELETE", f"/attachments/{container}/eth0?link=gone")
        assert reply.status == 204, reply


def states(agent: Agent) -> dict[str, str]:
    """Container → state, as the database has it."""
    path = agent.folder / "state" / "attachments.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT container, state FROM attachments"))


def only_first(host: Host) -> bool:
    return states(host.agent) == {"first": "active"} and len(host.tags()) == 1


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Provide a host with a database of its own."""
    with OpenvSwitch() as switch, Agent(switch, OPTIONS) as agent:
        yield Host(agent.start())
        agent.stop()


@pytest.fixture(scope="module")
def its_vm(host: Host) -> Iterator[Guest]:
    """Provide a VM of that host, with one attachment."""
    guest = host.vm("killed")
    attach(guest, "first")
    yield guest
    guest.close()


@pytest.fixture
def vm(host: Host, its_vm: Guest) -> Iterator[Guest]:
    """Provide the VM, with one attachment before and after the test."""
    yield its_vm
    wait_for(lambda: only_first(host), "all other attachments to go")


def test_daemons_killed_at_any_moment_leak_and_double_nothing(host: Host, vm: Guest) -> None:
    with ThreadPoolExecutor(EACH) as pool:
        for number in range(3):
            names = [f"r{number}-{one}" for one in range(EACH)]
            running = [pool.submit(attach, vm, name) for name in names]
            wait_for(lambda: len(states(host.agent)) > 2, "rows")
            host.agent.kill()
            host.agent.start()
            given = [thread.result() for thread in running]
            assert len({attachment["vid"] for attachment in given}) == EACH
            assert len({attachment["ips"][0]["address"] for attachment in given}) == EACH
            for name in names:
                detach(vm, name)


@pytest.fixture
def hosts(postgres_url: str) -> Iterator[list[Host]]:
    """Provide hosts that share a database."""
    with ExitStack() as stack:
        made = []
        for number in range(HOSTS):
            switch = stack.enter_context(OpenvSwitch())
            agent = stack.enter_context(Agent(switch, OPTIONS))
            agent.configure({"attachments": {"connection": postgres_url}})
            agent.configure({"neutron": {"host": f"host-{number}"}})
            made.append(Host(agent.start()))
        yield made


def test_hosts_that_share_a_database_give_nothing_twice_and_a_vm_moves(hosts: list[Host]) -> None:
    first, second, third = hosts
    with ExitStack() as stack:
        vms = [stack.enter_context(host.vm(f"vm{n}")) for n, host in enumerate(hosts)]
        with ThreadPoolExecutor(HOSTS * 5) as pool:
            work = [(vm, f"c{number}") for number in range(EACH) for vm in vms]
            given = list(pool.map(lambda words: attach(*words), work))
        for kind in (
            lambda attachment: attachment["ips"][0]["address"],
            lambda attachment: attachment["mac"],
        ):
            assert len({kind(attachment) for attachment in given}) == HOSTS * EACH
        its = {attachment["id"]: attachment["vid"] for attachment in given[::HOSTS]}
        assert first.tags() == its
        others = second.tags()

        # The VM moves: its port goes from one host, and comes on another.
        vms[0].close()
        moved = stack.enter_context(second.vm("vm0"))
        assert attach(moved, "c0")["id"] == given[0]["id"]
        wait_for(lambda: second.tags() == others | its, "its attachments there", interval=0.5)
        wait_for(lambda: first.tags() == {}, "nothing on the first host", interval=0.5)

        # The VM ends, and its attachments with it.
        moved.close()
        wait_for(lambda: second.tags() == others, "its attachments to go", interval=0.5)
        assert len(third.tags()) == EACH
