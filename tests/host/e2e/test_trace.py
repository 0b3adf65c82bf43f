"""``dfmeta trace``: where a SYN ends, in words, on hosts where it ends there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.test_doctor import pretend_nft

pytestmark = pytest.mark.early

LEADS = (
    "The path leads to the proxy and back. The flows were traced on the switch, and the host "
    "answered a SYN of dfmeta-agent's own."
)


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def trace(agent: Agent, port: str, status: int, family: int | None = 4) -> str:
    """What it prints; its last line is the verdict.

    :param family: version of IP to trace; None: both.
    """
    options = ("--family", str(family)) if family is not None else ()
    done = agent.ctl("trace", port, *options, check=False)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout


def verdict(agent: Agent, port: str, status: int = 1) -> str:
    """The last line."""
    return trace(agent, port, status).splitlines()[-1]


def test_a_known_address_leads_to_the_proxy_and_back(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    text = trace(agent, guest.port, 0)
    head, *steps, end = text.splitlines()
    assert head == (
        f"{guest.port} (ofport {guest.ofport}), instance {guest.instance_id}, "
        f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}"
    )
    found = [step.split(":")[0].split(maxsplit=1) for step in steps if "proxy  " not in step]
    assert found == [
        ["there", "classification"],
        ["there", "metadata service"],
        ["host", "ok"],
        ["back", "classification"],
        ["back", "metadata service reply"],
        ["probe", "a SYN from br-int to 169.254.169.254"],
    ]
    assert f"output:{guest.ofport}" in steps[-2]
    # Where the way leads, and what its guest gets there, are two things.
    assert "proxy  the guest gets an answer, and fails: 404 (no record) since" in text
    assert end == LEADS


def test_both_versions_are_traced_and_each_alone(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert guest.curl("/").status == 404
    text = trace(agent, guest.port, 0, None)
    heads = [line for line in text.splitlines() if line.startswith(f"{guest.port} (ofport")]
    assert heads[0].endswith(f"{guest.ip} {guest.mac}, key 128.0.0.{guest.ofport}")
    assert heads[1].endswith("no address known yet, to fe80::a9fe:a9fe")
    assert text.splitlines()[-1] == LEADS
    assert text.count("  probe  ") == 2
    six = trace(agent, guest.port, 0, 6)
    assert "  finds  neighbour discovery: service-nd" in six
    assert "128.0.0." not in six
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ipv6,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    end = trace(agent, guest.port, 1, None).splitlines()[-1]
    assert end.startswith(
        "Over IPv6 to fe80::a9fe:a9fe: neighbour discovery: stops in the classification table: "
        "another program's flow (cookie 0xbad"
    )
    assert trace(agent, guest.port, 0, 4).splitlines()[-1] == LEADS


def test_a_foreign_flow_before_our_hooks_is_named(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ip,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    end = verdict(agent, guest.port)
    assert end.startswith("Stops in the classification table: another program's flow")
    assert "(cookie 0xbad, priority 400, actions=NORMAL)" in end
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad2,priority=500,tcp,tcp_flags=+syn+ack,actions=drop")
    host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")
    end = verdict(agent, guest.port)
    assert end.startswith("On the return path: stops in the classification table:")
    assert "cookie 0xbad2" in end


def test_without_the_daemon_a_trace_ends_at_the_proxy_or_the_controller(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    known, silent = make_guest(), make_guest(address="10.0.0.6/24")
    agent = make_agent()
    known.curl("/")
    agent.stop()
    end = verdict(agent, known.port)
    assert end.startswith("Stops at the proxy: dfmeta-agent does not run")
    assert verdict(agent, silent.port).startswith("Stops at the controller: dfmeta-agent does not")


def test_a_switch_that_is_away_is_one_line(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    host.kill("ovs-vswitchd")
    done = agent.ctl("trace", guest.port, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("dfmeta: ovs-vswitchd at")
    assert done.stderr.count("\n") == 1
