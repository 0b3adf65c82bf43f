"""``dfmeta flows`` should mark what is missing, unknown or changed."""

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.test_flows_command import GUESTS, of, rows, states


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
