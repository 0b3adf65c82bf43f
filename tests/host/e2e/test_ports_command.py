"""``dfmeta ports``."""

from __future__ import annotations

import json

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import PROJECT, asks_own, project_ids, put


def test_ports_shows_every_guest_port_as_a_table_and_as_json(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    served = make_guest("served", ids=project_ids("served"))
    waiting = make_guest("waiting", ids=Ids(iface_id=uuid_of("waiting")))
    dead = make_guest("dead")
    broken = make_guest("broken", ids=Ids(vm_uuid="odd"))
    nobody = make_guest("nobody", ids=Ids(attached_mac=False))
    host.vsctl("set", "Port", dead.port, "tag=4095")
    put(agent, served)
    asks_own(served)

    def states() -> dict[str, str]:
        rows = json.loads(agent.ctl("ports", "--format", "json").stdout)
        return {row["port"]: row["state"] for row in rows}

    expected = {
        served.port: "served",
        waiting.port: "no instance",
        dead.port: "dead",
        broken.port: "broken",
    }
    wait_for(lambda: states() == expected, "all four ports")
    rows = json.loads(agent.ctl("ports", "--format", "json").stdout)
    row = next(row for row in rows if row["port"] == served.port)
    assert row["ofport"] == served.ofport
    assert row["key"] == f"128.0.0.{served.ofport}"
    assert (row["instance"], row["project"]) == (served.instance_id, PROJECT)
    assert row["sources"] == {"instance_id": "ovsdb", "project_id": "ovsdb"}
    assert (row["requests"]["2xx"], row["last_failure"]) == (1, None)
    (address,) = row["addresses"]
    assert (address["slot"], address["ip"], address["mac"]) == (0, served.ip, served.mac)

    table = agent.ctl("ports").stdout
    heading, *lines = table.splitlines()
    assert heading.split()[:3] == ["PORT", "OFPORT", "KEY"]
    assert len(lines) == len(expected)
    line = next(line for line in lines if line.startswith(served.port))
    for text in (row["key"], served.instance_id, PROJECT, f"0: {served.ip} {served.mac}"):
        assert text in line
    assert "is not a UUID" in table
    assert nobody.port not in table.split()
