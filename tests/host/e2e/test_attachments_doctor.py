"""``dfmeta ports`` and ``dfmeta doctor`` on a host with attachments that is broken in each way."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dfmeta.ports.attachments import names_of
from tests.harness.agent import Agent, Options
from tests.harness.guest import Guest, Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed
from tests.host.e2e import shared

OPTIONS: Options = {
    "attachments": {"enabled": True, "rest": 0, "rest_unknown": 0},
    "attachment_network:pods": {"subnet": "10.20.0.0/24", "local_vlan": 7, "mtu": 1400},
    "attachment_network:other": {"subnet": "10.21.0.0/24", "local_vlan": 8, "mtu": 1400},
}
CHECK = "attachments"
PODS, OTHER = "attachment_network:pods", "attachment_network:other"

Line = dict[str, Any]


host = shared.host


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch) -> Iterator[Agent]:
    """Provide a daemon with attachments."""
    with Agent(host, OPTIONS) as daemon:
        yield daemon.start()


@pytest.fixture(scope="module")
def vm(host: OpenvSwitch, agent: Agent) -> Iterator[Guest]:
    """Provide a VM with a trunk."""
    ids = Ids(
        iface_id=uuid_of("port vm"),
        vm_uuid=uuid_of("instance vm"),
        extra={"dfmeta-attachments": "true"},
    )
    with Guest(host, "vm", address="10.0.0.5/24", ids=ids) as guest:
        wait_for(lambda: agent.admin("/ports").json(), "the port")
        agent.ctl("trunk", "enable", guest.port)
        yield guest


@pytest.fixture
def one(agent: Agent, vm: Guest) -> Iterator[Line]:
    """Provide an attachment, on a host that is in order again after the test."""
    with allowed(vm.namespace) as connection:
        body = {"network": "pods", "boot_id": uuid_of("boot")}

        def made() -> Any:
            return connection.ask("PUT", "/attachments/c1/eth0", body)

        reply = wait_for(lambda: (it := made()).status in (200, 201) and it, "the attachment")
    yield json.loads(reply.body)
    if not agent.running:
        agent.start()
    agent.configure(OPTIONS)
    agent.signal(signal.SIGHUP)
    agent.ctl("attachment", "gc")
    wait_for(lambda: statuses(agent) == ["ok"], "the host to be in order again")


def lines(agent: Agent) -> list[Line]:
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    return [line for line in json.loads(done.stdout) if line["check"] == CHECK]


def statuses(agent: Agent) -> list[str]:
    return [line["status"] for line in lines(agent)]


def said(agent: Agent, status: str, words: str) -> Line:
    """Wait for a line of doctor."""

    def found() -> Line | None:
        there = [it for it in lines(agent) if it["status"] == status and words in it["text"]]
        return there[0] if there else None

    return dict(wait_for(found, f"{status}: {words}") or {})


def apply(agent: Agent, line: Line) -> None:
    """Run the first command of a remedy."""
    command = re.search(r"`dfmeta ([^`]+)`", line["remedy"])
    assert command, line
    agent.ctl(*shlex.split(command[1]))


def edit(agent: Agent, statement: str, *values: object) -> None:
    """Change the table of attachments beside the daemon."""
    path = Path(agent.state_path) / "attachments.db"
    with closing(sqlite3.connect(path, timeout=20)) as database, database:
        database.execute(statement, values)


def test_a_row_of_ports_has_container_and_network(agent: Agent, vm: Guest, one: Line) -> None:
    rows = json.loads(agent.ctl("ports", "--format", "json").stdout)
    found = {row["port"]: row for row in rows}
    inner, _outer = names_of(one["id"])
    parent = f"tpi-{vm.ids.iface_id}"[:15]
    row = found[inner]
    assert (row["attachment"], row["container"], row["network"]) == (one["id"], "c1", "pods")
    assert (row["parent"], row["segmentation_id"]) == (parent, one["vid"])
    assert found[parent]["attachment"] is None
    table = agent.ctl("ports", "--wide").stdout
    assert re.search(rf"{inner} .* {one['vid']} +{parent} +c1 +pods ", table)


@pytest.mark.parametrize("ends", [(1,), (0, 1)])
def test_a_port_that_is_gone_is_named_and_comes_back(
    host: OpenvSwitch, agent: Agent, one: Line, ends: tuple[int, ...]
) -> None:
    names = names_of(one["id"])

    def broken() -> Line | None:
        # The daemon may have repaired it before doctor has looked.
        for end in ends:
            host.vsctl("--if-exists", "del-port", names[end])
        return next(
            (it for it in lines(agent) if "without their patch ports: c1" in it["text"]), None
        )

    line = dict(wait_for(broken, "the line of doctor") or {})
    assert line["status"] == "wrong"
    apply(agent, line)
    assert statuses(agent) == ["ok"]
    assert set(names) <= {*host.ports(BRIDGE), *host.ports(trunk(host))}


def trunk(host: OpenvSwitch) -> str:
    return next(it for it in host.vsctl("list-br").split() if it.startswith("tbr-"))


def test_ports_without_a_row_are_named_and_go(host: OpenvSwitch, agent: Agent, one: Line) -> None:
    stray = uuid_of("stray")
    inner, outer = names_of(stray)

    def broken() -> Line | None:
        for bridge, name, peer in ((BRIDGE, inner, outer), (trunk(host), outer, inner)):
            settings = ("type=patch", f"options:peer={peer}")
            mark = f"external_ids:dfmeta-attachment={stray}"
            add = ("--may-exist", "add-port", bridge, name, "--", "set", "Interface", name)
            host.vsctl(*add, *settings, mark)
        return next(
            (it for it in lines(agent) if "attachments that do not exist: " in it["text"]), None
        )

    line = dict(wait_for(broken, "the line of doctor") or {})
    assert (line["status"], stray in line["text"]) == ("warning", True)
    apply(agent, line)
    assert statuses(agent) == ["ok"]
    assert inner not in host.ports(BRIDGE)


def test_networks_and_quotas_that_no_longer_fit_are_named(agent: Agent, one: Line) -> None:
    text = agent.config_file.read_text()
    agent.configure({"attachments": {"quota": 1}, OTHER: {"mtu": 9000}})
    changed = re.sub(rf"\[{PODS}\]\n(.+\n)+", "", agent.config_file.read_text())
    agent.config_file.write_text(changed)
    agent.signal(signal.SIGHUP)

    def found() -> list[Line]:
        return [it for it in lines(agent) if it["status"] == "warning"]

    warnings = wait_for(lambda: (it := found()) and len(it) == 3 and it, "the lines") or []
    texts = "\n".join(f"{it['text']} {it['remedy']}" for it in warnings)
    for words in (
        *("networks that are not configured: c1 of tpi-", "[attachment_network:pods]"),
        *("MTU of networks is larger", "other (9000, tpi-", " has 1 of 1"),
    ):
        assert words in texts
    agent.config_file.write_text(text)
    agent.configure({"attachments": {"quota": None}})


def test_an_attachment_of_an_earlier_boot_is_named(agent: Agent, vm: Guest, one: Line) -> None:
    with allowed(vm.namespace) as connection:
        body = {"network": "pods", "boot_id": uuid_of("boot")}
        assert connection.ask("PUT", "/attachments/c2/eth0", body).status == 201
        edit(agent, "UPDATE attachments SET boot_id = 'earlier' WHERE container = 'c1'")
        line = said(agent, "warning", "before the last boot of their VM: c1 of tpi-")
        apply(agent, line)
        assert connection.ask("DELETE", "/attachments/c2/eth0?link=gone").status == 204


def test_a_table_that_cannot_be_read_is_named(agent: Agent, one: Line) -> None:
    edit(agent, "ALTER TABLE attachments RENAME TO elsewhere")
    try:
        line = said(agent, "wrong", "attachments cannot be read: ")
        assert "database" in line["text"]
    finally:
        edit(agent, "ALTER TABLE elsewhere RENAME TO attachments")


def test_ports_that_are_left_are_named(host: OpenvSwitch, agent: Agent, one: Line) -> None:
    agent.stop()
    assert statuses(agent) == ["unknown"]
    agent.configure({"attachments": {"enabled": False}})
    agent.start()
    (line,) = lines(agent)
    assert line["status"] == "warning"
    assert names_of(one["id"])[0] in line["text"]
    agent.stop()
    agent.configure(OPTIONS)
