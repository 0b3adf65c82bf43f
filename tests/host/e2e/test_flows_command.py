"""``dfmeta flows``: names and counters, what is unknown, missing or changed, with and without the
daemon.
"""

import json
from typing import Any

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Ids, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import Capture, packets

GUESTS = ("guest-http", "guest-syn", "guest-fragment", "guest-arp", "syn")
GUESTS6 = ("guest-http", "guest-syn", "guest-fragment", "guest-nd", "syn", "guest-nd-bare")
HEADS = "TABLE PURPOSE FAMILY PORT INSTANCE ADDRESS SERVICE PACKETS BYTES STATE"
"""Of the table for operators."""
ADDRESS = ("address", "reply", "key-arp")

Row = dict[str, Any]


def rows(agent: Agent) -> list[Row]:
    """All flows, as programs get them."""
    result: list[Row] = json.loads(agent.ctl("flows", "--format", "json").stdout)
    return result


def of(found: list[Row], port: str, family: int = 4) -> dict[str, Row]:
    """Purpose → flow of that port and version of IP, or of none."""
    mine = [row for row in found if row["port"] == port and row["family"] in (family, None)]
    return {row["purpose"]: row for row in mine}


def states(found: list[Row]) -> set[str]:
    """All states that there are."""
    return {row["state"] for row in found}


def test_flows_are_named_with_whom_they_serve_and_their_counters(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    known, silent = make_guest("known"), make_guest("silent", address="10.0.0.6/24")
    nobody = make_guest("nobody", address="10.0.0.7/24", ids=Ids(iface_id=uuid_of("nobody")))
    agent = make_agent()
    with Capture(host.namespace, known.port) as capture:
        assert known.curl("/").status == 404
        result = rows(agent)
        # A guest that has no answer for a second, on a machine that stalls, asks again.
        syns, arps = packets(capture.syns()), len(capture.arp_requests())
    assert states(result) == {"ok"}
    assert set(of(result, known.port)) == {*GUESTS, *ADDRESS}
    assert set(of(result, silent.port)) == set(GUESTS)
    assert set(of(result, nobody.port)) == set(GUESTS)
    mine = of(result, known.port)
    assert {row["instance"] for row in mine.values()} == {known.instance_id}
    assert {row["instance"] for row in of(result, nobody.port).values()} == {None}
    assert mine["guest-http"]["table"] == "classification"
    assert mine["address"]["table"] == "metadata service"
    assert mine["reply"]["table"] == "metadata service reply"
    assert {mine[purpose]["address"] for purpose in ("address", "reply")} == {known.ip}
    assert {mine[purpose]["key"] for purpose in ADDRESS} == {f"128.0.0.{known.ofport}"}
    assert 1 <= mine["syn"]["packets"] <= syns
    assert mine["syn"]["bytes"] > 0
    assert 1 <= mine["guest-arp"]["packets"] <= arps
    assert of(result, silent.port)["syn"]["packets"] == 0
    assert set(of(result, "tap-metadata")) == {"from-tap"}
    assert {row["purpose"] for row in result if row["ofport"] is None} == {
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
        assert set(of(result, guest.port, 6)) == set(GUESTS6)
    services = [row["service"] for row in result if row["purpose"] == "guest-syn"]
    assert sorted(services) == sorted(3 * ["169.254.169.254", "fd00:ec2::254", "fe80::a9fe:a9fe"])
    table = agent.ctl("flows").stdout.splitlines()
    assert table[0].split() == HEADS.split()
    assert len(table) == 1 + len(result)
    for family, hooks in (("4", 1), ("6", 2)):
        hook = ["classification", "guest-http", family, known.port]
        assert [line.split()[:4] for line in table].count(hook) == hooks
