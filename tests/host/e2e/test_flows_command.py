"""``dfmeta flows``: names and counters, what is unknown, missing or changed, with and without the
daemon.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Ids, uuid_of
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import Capture

GUESTS = ("guest-http", "guest-syn", "guest-fragment", "guest-arp", "syn")
GUESTS6 = ("guest-http", "guest-syn", "guest-fragment", "guest-nd", "syn", "guest-nd-bare")
OF_PORT6 = 10
"""Flows of IPv6 that a port has, with two addresses of the service."""
FIXED, FIXED6 = 7, 7
METERED = {"guest-syn", "syn"}
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
        syns, arps = len(capture.syns()), len(capture.arp_requests())
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
    assert {purpose for purpose in mine if mine[purpose]["meter"] is not None} == METERED
    assert {mine[purpose]["dropped"] for purpose in METERED} == {0}
    assert mine["guest-http"]["dropped"] is None
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
    }
    for guest in (known, silent, nobody):
        assert set(of(found, guest.port, 6)) == set(GUESTS6)
    services = [row["service"] for row in found if row["purpose"] == "guest-syn"]
    assert sorted(services) == sorted(3 * ["169.254.169.254", "fd00:ec2::254", "fe80::a9fe:a9fe"])


def test_a_table_for_people(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest, agent = make_guest(), make_agent()
    done = agent.ctl("flows")
    head, *lines = done.stdout.splitlines()
    assert head.split() == [
        "TABLE",
        "PURPOSE",
        "FAMILY",
        "PORT",
        "INSTANCE",
        "ADDRESS",
        "SERVICE",
        "PACKETS",
        "BYTES",
        "DROPPED",
        "STATE",
    ]
    assert len(lines) == FIXED + FIXED6 + len(GUESTS) + OF_PORT6
    assert all(line.endswith(" ok") for line in lines)
    for family, hooks in (("4", 1), ("6", 2)):
        hook = ["classification", "guest-http", family, guest.port]
        assert [line.split()[:4] for line in lines].count(hook) == hooks
    assert done.stderr == ""


def test_unknown_and_missing_flows_are_marked(
    host: OpenvSwitch, listening: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    wait_for(lambda: of(rows(listening), guest.port), "the guest's flows")
    disconnect(host, listening)
    found = rows(listening)
    assert states(found) == {"missing"}
    assert set(of(found, guest.port)) == set(GUESTS)
    host.ofctl("add-flow", BRIDGE, "table=200,priority=7,cookie=0x64666d65000000ff,actions=drop")
    host.ofctl("add-flow", BRIDGE, "table=9,cookie=0x64666d6501020006,actions=drop")
    strange = [row for row in rows(listening) if row["state"] == "unknown"]
    assert [(row["table"], row["purpose"], row["priority"]) for row in strange] == [
        ("metadata service", "?", 7),
        ("9", "?", 32768),
    ]


def test_a_flow_that_does_something_else_is_marked(host: OpenvSwitch, listening: Agent) -> None:
    disconnect(host, listening)
    tap = host.ofport("tap-metadata")
    match = f"priority=300,cookie=0x64666d6501010003,in_port={tap}"
    host.ofctl("add-flow", BRIDGE, f"{match},actions=NORMAL")
    changed = [row for row in rows(listening) if row["state"] == "differs"]
    assert [row["purpose"] for row in changed] == ["from-tap"]


def test_a_flow_of_a_port_that_is_gone_is_unknown(
    host: OpenvSwitch, listening: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    wait_for(lambda: of(rows(listening), guest.port), "the guest's flows")
    disconnect(host, listening)
    match = "priority=200,cookie=0x64666d6501030007,tcp,nw_src=169.254.169.254,tp_src=18080"
    actions = "set_field:10.0.0.9->ip_dst,set_field:80->tcp_src,output:77"
    host.ofctl("add-flow", BRIDGE, f"table=201,{match},nw_dst=128.0.0.77,actions={actions}")
    (stale,) = [row for row in rows(listening) if row["state"] == "unknown"]
    assert (stale["purpose"], stale["ofport"], stale["key"]) == ("reply", 77, "128.0.0.77")
    assert (stale["port"], stale["address"]) == ("gone", "10.0.0.9")


def test_without_the_daemon_flows_are_shown_unchecked(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    guest.curl("/")
    agent.stop()
    found = rows(agent)
    assert states(found) == {"unchecked"}
    assert of(found, guest.port)["address"]["instance"] == guest.instance_id
    assert "the flows are shown unchecked" in agent.ctl("flows").stderr


def test_raw_is_what_ovs_ofctl_prints_of_ours(
    host: OpenvSwitch, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    monkeypatch.setenv("PATH", f"{UNPACKED / 'usr/bin'}:{os.environ['PATH']}")
    lines = [line for line in agent.ctl("flows", "--raw").stdout.splitlines() if "actions=" in line]
    assert len(lines) == FIXED + FIXED6
    assert all(" cookie=0x64666d65" in line for line in lines)
    assert len(host.flows()) > len(lines)


def test_raw_without_ovs_ofctl_is_one_line(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent(start=False)
    kept = [p for p in os.environ["PATH"].split(":") if not os.path.exists(f"{p}/ovs-ofctl")]
    monkeypatch.setenv("PATH", ":".join(kept))
    done = agent.ctl("flows", "--raw", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--raw needs ovs-ofctl" in done.stderr


def test_a_switch_that_is_away_is_one_line(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent(start=False)
    host.kill("ovs-vswitchd")
    done = agent.ctl("flows", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dfmeta: no program accepts connections on")
    assert done.stderr.count("\n") == 1
