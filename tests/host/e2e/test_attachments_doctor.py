"""``dfmeta ports`` and ``dfmeta doctor`` on a host with attachments."""

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
}
CHECK = "attachments"

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


def test_ports_that_are_gone_are_named_and_come_back(
    host: OpenvSwitch, agent: Agent, one: Line
) -> None:
    names = names_of(one["id"])

    def broken() -> Line | None:
        # The daemon may have repaired it before doctor has looked.
        for name in names:
            host.vsctl("--if-exists", "del-port", name)
        return next(
            (it for it in lines(agent) if "without their patch ports: c1" in it["text"]), None
        )

    line = dict(wait_for(broken, "the line of doctor") or {})
    assert line["status"] == "wrong"
    command = re.search(r"`dfmeta ([^`]+)`", line["remedy"])
    assert command, line
    agent.ctl(*shlex.split(command[1]))
    assert statuses(agent) == ["ok"]
    assert set(names) <= {*host.ports(BRIDGE), *host.ports(trunk(host))}


def trunk(host: OpenvSwitch) -> str:
    return next(it for it in host.vsctl("list-br").split() if it.startswith("tbr-"))


def test_a_table_that_cannot_be_read_and_ports_that_are_left_are_named(
    agent: Agent, one: Line
) -> None:
    edit(agent, "ALTER TABLE attachments RENAME TO elsewhere")
    try:
        (line,) = [it for it in lines(agent) if it["status"] == "wrong"]
        assert "attachments cannot be read: " in line["text"]
    finally:
        edit(agent, "ALTER TABLE elsewhere RENAME TO attachments")
    agent.stop()
    assert statuses(agent) == ["unknown"]
    agent.configure({"attachments": {"enabled": False}})
    agent.start()
    (line,) = lines(agent)
    assert line["status"] == "warning"
    assert names_of(one["id"])[0] in line["text"]
    agent.stop()
    agent.configure(OPTIONS)
