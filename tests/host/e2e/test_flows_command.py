"""``dfmeta flows``: names and counters, what is unknown, missing or changed, with and without the
daemon.
"""

import json
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Ids, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import Capture, packets

GUESTS = ("guest-http", "guest-syn", "guest-fragment", "guest-arp", "syn")
GUESTS6 = ("guest-http", "guest-syn", "guest-fragment", "guest-nd", "syn", "guest-nd-bare")
HEADS = "TABLE PURPOSE FAMILY PORT INSTANCE ADDRESS SERVICE PACKETS BYTES STATE"
"""Of the table for operators."""
ADDRESS = ("address", "reply", "key-arp")

Row = dict[str, Any]


def rows(agent: Agent) -> list[Row]:
    """All flows, as programs get them."""
    found: list[Row] = json.loads(agent.ctl("flows", "--format", "json").stdout)
    return found


def of(found: list[Row], port: str, family: int = 4) -> dict[str, Row]:
    """Purpose → flow of that port and version of IP, or of none."""
    mine = [row for row in found if row["port"] == port and row["family"] in (family, None)]
    return {row["purpose"]: row for row in mine}


def states(found: list[Row]) -> set[str]:
    """All states that there are."""
    return {row["state"] for row in found}


def disconnect(host: OpenvSwitch, agent: Agent) -> None:
    """Take the daemon's connection to the switch, and so all flows; it cannot mend anything."""
    host.vsctl("del-controller", BRIDGE)
    wait_for(lambda: not agent.ready(), "the daemon to lose its connection")


@pytest.fixture
def listening(host: OpenvSwitch, make_agent: MakeAgent) -> Agent:
    """A daemon that waits to be dialled, so that a test can take its connection."""
    options = {"df_metadata": {"openflow_connection": "listen:127.0.0.1:6655"}}
    agent = make_agent(options, start=False).start(wait=False)
    host.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:6655")
    agent.wait_ready()
    return agent


def test_flows_are_named_with_whom_they_serve_and_their_counters(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    known, silent = make_guest("known"), make_guest("silent", address="10.0.0.6/24")
    nobody = make_guest("nobody", address="10.0.0.7/24", ids=Ids(iface_id=uuid_of("nobody")))
    agent = make_agent()
    with Capture(host.namespace, known.port) as capture:
        assert known.curl("/").status == 404
        found = rows(agent)
        # A guest that has no answer for a second, on a machine that stalls, asks again.
        syns, arps = packets(capture.syns()), len(capture.arp_requests())
    assert states(found) == {"ok"}
    assert set(of(found, known.port)) == {*GUESTS, *ADDRESS}
    assert set(of(found, silent.port)) == set(GUESTS)
    assert set(of(found, nobody.port)) == set(GUESTS)
    mine = of(found, known.port)
    assert {row["instance"] for row in mine.values()} == {known.instance_id}
    assert {row["instance"] for row in of(found, nobody.port).values()} == {None}
    assert mine["guest-http"]["table"] == "classification"
    assert mine["address"]["table"] == "metadata service"
    assert mine["reply"]["table"] == "metadata service reply"
    assert {mine[purpose]["address"] for purpose in ("address", "reply")} == {known.ip}
    assert {mine[purpose]["key"] for purpose in ADDRESS} == {f"128.0.0.{known.ofport}"}
    assert 1 <= mine["syn"]["packets"] <= syns
    assert mine["syn"]["bytes"] > 0
    assert 1 <= mine["guest-arp"]["packets"] <= arps
    assert of(found, silent.port)["syn"]["packets"] == 0
    assert set(of(found, "tap-metadata")) == {"from-tap"}
    assert {row["purpose"] for row in found if row["ofport"] is None} == {
        "service-drop",
        "reply-drop",
        "probe",
        "guest-dad",
        "guest-nd-answer",
        "key-nd-answer",
        "service-nd",
        "nd-drop",
        "subport-proxy",
        "subport-syn",
        "subport-drop",
        "source-router-drop",
        "source-drop",
    }
    for guest in (known, silent, nobody):
        assert set(of(found, guest.port, 6)) == set(GUESTS6)
    services = [row["service"] for row in found if row["purpose"] == "guest-syn"]
    assert sorted(services) == sorted(3 * ["169.254.169.254", "fd00:ec2::254", "fe80::a9fe:a9fe"])
    table = agent.ctl("flows").stdout.splitlines()
    assert table[0].split() == HEADS.split()
    assert len(table) == 1 + len(found)
    for family, hooks in (("4", 1), ("6", 2)):
        hook = ["classification", "guest-http", family, known.port]
        assert [line.split()[:4] for line in table].count(hook) == hooks


def test_missing_unknown_and_changed_flows_are_marked(
    host: OpenvSwitch, listening: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    wait_for(lambda: of(rows(listening), guest.port), "the guest's flows")
    disconnect(host, listening)
    found = rows(listening)
    assert states(found) == {"missing"}
    assert set(of(found, guest.port)) == set(GUESTS)
    tap = host.ofport("tap-metadata")
    reply = "priority=200,cookie=0x64666d6501030007,tcp,nw_src=169.254.169.254,tp_src=18080"
    actions = "set_field:10.0.0.9->ip_dst,set_field:80->tcp_src,output:77"
    for flow in (
        "table=200,priority=7,cookie=0x64666d65000000ff,actions=drop",
        "table=9,cookie=0x64666d6501020006,actions=drop",
        f"priority=300,cookie=0x64666d6501010003,in_port={tap},actions=NORMAL",
        f"table=201,{reply},nw_dst=128.0.0.77,actions={actions}",
    ):
        host.ofctl("add-flow", BRIDGE, flow)
    found = rows(listening)
    assert [row["purpose"] for row in found if row["state"] == "differs"] == ["from-tap"]
    strange = [row for row in found if row["state"] == "unknown"]
    assert {(row["table"], row["purpose"], row["priority"]) for row in strange} == {
        ("metadata service", "?", 7),
        ("metadata service reply", "reply", 200),
        ("9", "?", 32768),
    }
    (stale,) = [row for row in strange if row["purpose"] == "reply"]
    assert (stale["ofport"], stale["key"]) == (77, "128.0.0.77")
    assert (stale["port"], stale["address"]) == ("gone", "10.0.0.9")
