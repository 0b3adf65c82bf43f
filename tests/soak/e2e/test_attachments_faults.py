"""No fault of a daemon or a host leaks an attachment, doubles one or takes one from a container."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed, is_ready, status_of

HOSTS = 3
EACH = 15
WORKERS, CYCLES = 5, 20
"""Clients that make and delete attachments, and how many each of them."""
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

    def plugged(self, name: str) -> Guest:
        """Return a VM that may have attachments, without a trunk."""
        ids = Ids(
            iface_id=uuid_of(f"port {name}"),
            vm_uuid=uuid_of(f"instance {name}"),
            extra={"dfmeta-attachments": "true"},
        )
        return Guest(self.switch, name, address="10.0.0.5/24", ids=ids)

    def vm(self, name: str) -> Guest:
        """Return a VM with a trunk."""
        guest = self.plugged(name)
        self.agent.ctl("trunk", "enable", guest.port)
        wait_for(lambda: is_ready(guest.namespace), "the VM to be ready")
        return guest

    def tags(self) -> dict[str, int]:
        """The attachments that the switch has whole: id → VLAN id."""
        ids = {
            row["name"]: row["external_ids"].get("dfmeta-attachment")
            for row in self.switch.records("Interface", "name", "external_ids")
        }
        ends = Counter(one for one in ids.values() if one)
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


def add(guest: Guest) -> None:
    attach(guest, "c1")


def delete(guest: Guest) -> None:
    detach(guest, "c1")


@pytest.mark.parametrize(
    ("act", "state"), [(add, "made"), (delete, "leaving")], ids=["made", "leaving"]
)
def test_a_daemon_that_is_killed_in_a_state_goes_on_from_it(
    host: Host, vm: Guest, act: Callable[[Guest], None], state: str
) -> None:
    if act is delete:
        attach(vm, "c1")
    with ThreadPoolExecutor(1) as pool:
        with host.switch.paused("ovsdb-server"):
            running = pool.submit(act, vm)
            wait_for(lambda: states(host.agent).get("c1") == state, f"the state {state}")
            host.agent.kill()
        host.agent.start()
        if act is delete:
            running.exception()  # its connection was lost; the work goes on without it
            wait_for(lambda: "c1" not in states(host.agent), "the row to go")
            return
        running.result()
    wait_for(lambda: states(host.agent)["c1"] == "active", "the state active")
    assert len(host.tags()) == 2
    detach(vm, "c1")


def test_daemons_that_are_killed_at_any_moment_leak_and_double_nothing(
    host: Host, vm: Guest
) -> None:
    with ThreadPoolExecutor(EACH) as pool:
        for number in range(3):
            names = [f"r{number}-{one}" for one in range(EACH)]
            running = [pool.submit(attach, vm, name) for name in names]
            wait_for(lambda: len(states(host.agent)) > 2, "rows")
            host.agent.kill()
            host.agent.start()
            given = [one.result() for one in running]
            assert len({one["vid"] for one in given}) == EACH
            assert len({one["ips"][0]["address"] for one in given}) == EACH
            for name in names:
                detach(vm, name)


def test_many_come_and_go_and_none_is_doubled_or_left(host: Host, vm: Guest, soak: int) -> None:
    lock, in_use = threading.Lock(), set[Any]()

    def cycles(worker: int) -> int:
        """Make attachments and delete each when the next one is there; return how many."""
        count, before = CYCLES * soak, set[Any]()
        for number in range(count):
            one = attach(vm, f"w{worker}-{number}")
            mine = {one["vid"], one["ips"][0]["address"], one["mac"]}
            with lock:
                assert in_use.isdisjoint(mine), one
                in_use.update(mine)
                in_use.difference_update(before)
            if number:
                detach(vm, f"w{worker}-{number - 1}")
            before = mine
        detach(vm, f"w{worker}-{count - 1}")
        return count

    with ThreadPoolExecutor(WORKERS) as pool:
        assert sum(pool.map(cycles, range(WORKERS))) == WORKERS * CYCLES * soak
    wait_for(lambda: only_first(host), "the last ones to go")


def test_a_vm_is_told_nothing_of_the_host(host: Host, vm: Guest) -> None:
    def said(guest: Guest) -> str:
        with allowed(guest.namespace) as connection:
            reply = connection.ask("PUT", "/attachments/c1/eth0", NETWORK)
            assert reply.status == 503, reply
            return reply.text + connection.ask("GET", "/status").text

    with host.plugged("without") as without:
        wait_for(lambda: status_of(without.namespace), "an answer")
        told = said(without)
        with host.switch.paused("ovsdb-server"):
            told += said(vm)
    ours = (BRIDGE, vm.port, without.port, "tbr-", "tpi-", "spi-", "unix", "OVSDB", ".sock")
    assert not any(name in told for name in ours), told
    assert f"{without.port} is not on a trunk" in host.agent.log()
    assert "OVSDB does not do its part" in host.agent.log()


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
        vms = [stack.enter_context(one.vm(f"vm{n}")) for n, one in enumerate(hosts)]
        with ThreadPoolExecutor(HOSTS * 5) as pool:
            work = [(vm, f"c{number}") for number in range(EACH) for vm in vms]
            given = list(pool.map(lambda one: attach(*one), work))
        for kind in (lambda one: one["ips"][0]["address"], lambda one: one["mac"]):
            assert len({kind(one) for one in given}) == HOSTS * EACH
        its = {one["id"]: one["vid"] for one in given[::HOSTS]}
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
