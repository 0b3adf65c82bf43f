"""``dfmeta trace``: where a SYN ends, in words, on hosts where it ends there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import OPENSTACK6
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

    :param family: version of IP to trace; None: those that the guest uses.
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


def test_name_in_a_record_names_its_guest_everywhere(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, other, agent = make_guest(), make_guest(), make_agent()
    for port in (guest, other):
        agent.ctl("store", "put", port.instance_id, "--hostname", f"{port.port}.example.org")
    for name in ("before", "web2"):
        agent.ctl("store", "put", guest.instance_id, "--name", name)
        assert trace(agent, name, 0).startswith(f"{guest.port} (ofport"), "also at once"
    (row,) = json.loads(agent.ctl("ports", "web2", "--format", "json").stdout)
    hostname = f"{guest.port}.example.org"
    assert (row["port"], row["record_names"]) == (guest.port, ["web2", hostname])
    assert len(agent.ctl("ports", hostname).stdout.splitlines()) == 2
    assert " web2 " in agent.ctl("ports").stdout
    flows = json.loads(agent.ctl("flows", "--port", "web2", "--format", "json").stdout)
    assert {row["port"] for row in flows} == {guest.port}
    page = agent.admin(f"/?port={hostname}").text
    assert (guest.port in page, other.port in page) == (True, False)
    assert agent.ctl("flows", "--port", "web3", check=False).returncode == 2
    agent.ctl("store", "put", other.instance_id, "--name", "web2")
    for command in (["trace", "web2"], ["flows", "--port", "web2"], ["ports", "web2"]):
        done = agent.ctl(*command, check=False)
        (said,) = done.stderr.splitlines()
        assert done.returncode == 2
        assert f"{guest.port} ({guest.instance_id}), {other.port} (" in said, command


def test_version_of_ip_that_the_guest_uses_is_traced(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    assert ", to fe80::" not in trace(agent, guest.port, 0, None), "it has used none"
    assert guest.curl("/", host=OPENSTACK6).status == 404
    text = trace(agent, guest.port, 0, None)
    assert (", to fe80::a9fe:a9fe" in text, "128.0.0." in text) == (True, False)


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
