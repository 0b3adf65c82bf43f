"""``dfmeta doctor`` on hosts with faults: what it reads of each part, and its remedies applied.

Remedies are applied as they are printed: the first command between backticks is what runs.
tests/core/unit/doctor has the judgements on facts.
"""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, put

CHECKS = """
user daemon configuration state_path secret-files disk ovsdb vswitchd version ovs-version
permissions sockets open-files bridge tap tap-vlan socket openflow fail-mode flow-restore-wait
foreign-flows flows floods device address rule-from rule-oif route way-back neighbour rp_filter
arp_ignore checksum listener path path-ipv6 somaxconn syncookies conntrack neighbours firewall
networkd network-manager cloud source-libvirt store store-schema store-files clock guests ports
address-ipv6 rule-from-ipv6 rule-oif-ipv6 route-ipv6 way-back-ipv6 neighbour-ipv6 listener-ipv6
firewall-ipv6
"""

Line = dict[str, Any]


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with nft and an empty packet filter."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


host, agent = shared.host, shared.agent_with()


@pytest.fixture(scope="module")
def stopped() -> Iterator[tuple[OpenvSwitch, Agent, Guest]]:
    """A host whose daemon has been stopped in good order: nothing mends what a test breaks."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        guest = stack.enter_context(Guest(host))
        agent = stack.enter_context(Agent(host))
        agent.start()
        agent.stop()
        yield host, agent, guest


def pretend_nft(folder: Path, document: Any) -> None:
    """Put an ``nft`` into *folder* that lists *document* as its ruleset."""
    script = folder / "nft"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(document)}\nEND\n")
    script.chmod(0o755)


def examine(agent: Agent) -> tuple[int, list[Line]]:
    """The exit status and every line."""
    # Whose cloud the test machine is in, and who keeps its routes, is not this host's.
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    assert done.stderr == ""
    lines: list[Line] = json.loads(done.stdout)
    assert done.returncode == int(any(line["status"] == "wrong" for line in lines))
    return done.returncode, lines


def faults(found: list[Line]) -> set[str]:
    """The checks that fail."""
    return {line["check"] for line in found if line["status"] == "wrong"}


def named(found: list[Line], check: str, *words: str) -> str:
    """The check fails, in these words; gives the remedy."""
    of_check = [line for line in found if line["check"] == check]
    failing = [line for line in of_check if line["status"] == "wrong"]
    assert failing, of_check
    for word in words:
        assert word in failing[0]["text"]
    assert failing[0]["remedy"]
    return str(failing[0]["remedy"])


def apply(host: OpenvSwitch, remedy: str) -> None:
    """Run the remedy's first command on the host."""
    match = re.search(r"`([^`]+)`", remedy)
    assert match, remedy
    run(host, match[1])


def run(host: OpenvSwitch, command: str) -> None:
    """Run a command on the host."""
    name, *arguments = shlex.split(command)
    tools = {"ovs-vsctl": host.vsctl, "ovs-ofctl": host.ofctl}
    if name in tools:
        tools[name](*arguments)
    else:
        host.namespace.run([name, *arguments])


def test_working_host_has_an_ok_line_for_each_check(agent: Agent, make_guest: MakeGuest) -> None:
    guest = make_guest()
    put(agent, guest)
    asks_own(guest)
    status, result = examine(agent)
    assert [line for line in result if line["status"] != "ok"] == []
    assert status == 0
    assert {line["check"] for line in result} == set(CHECKS.split())
    _headings, *table, summary = agent.ctl(
        "doctor", "--root", str(agent.folder)
    ).stdout.splitlines()
    assert all(line.startswith("ok ") for line in table)
    assert summary == f"{len(result)} ok, 0 warnings, 0 wrong"
    assert len(table) == len(result)


FOREIGN = "cookie=0xbad,priority=300,ip,nw_dst=169.254.0.0/16,actions=drop"
Break = tuple[str, str, tuple[str, ...]]
BREAKS: tuple[tuple[Break, ...], ...] = (
    (
        (
            "ovs-vsctl remove Interface tap-metadata external_ids dfmeta",
            "tap",
            ("lacks dfmeta's mark",),
        ),
        (
            "ovs-vsctl clear Port tap-metadata vlan_mode",
            "tap-vlan",
            ("tag=4095 vlan_mode=[]", "flooded"),
        ),
        (
            "ip addr del 169.254.169.254/32 dev tap-metadata",
            "address",
            ("does not have 169.254.169.254/32",),
        ),
        ("ip rule del from 169.254.169.254", "rule-from", ("no rule from 169.254.169.254 table",)),
        ("ip rule del priority 32765", "rule-oif", ("no rule oif tap-metadata",)),
        # The kernel takes them along with the last address.
        ("true", "route", ("no default route via 128.0.0.0",)),
        ("true", "neighbour", ("no permanent MAC on tap-metadata",)),
        (
            "sysctl -q -w net.ipv4.conf.all.arp_ignore=0",
            "arp_ignore",
            ("answers ARP for 169.254.169.254",),
        ),
        ("sysctl -q -w net.core.somaxconn=128", "somaxconn", ("net.core.somaxconn is 128",)),
        ("sysctl -q -w net.ipv4.tcp_syncookies=0", "syncookies", ("tcp_syncookies is 0",)),
        (
            f"ovs-ofctl add-flow {BRIDGE} {FOREIGN}",
            "foreign-flows",
            ("takes packets of guests", "cookie 0xbad", "priority 300", "actions=drop"),
        ),
        ("chmod 0755 STATE", "state_path", ("has mode 0755",)),
        ("chmod 0644 STATE/store.db", "store-files", ("STATE/store.db",)),
    ),
    (
        ("ovs-vsctl clear Port tap-metadata tag", "tap-vlan", ("tag=None",)),
        ("ip link set tap-metadata down", "device", ("tap-metadata is down",)),
        ("true", "route", ("no default route via 128.0.0.0",)),
        ("true", "neighbour", ("no permanent MAC on tap-metadata",)),
        (
            "ovs-vsctl set Bridge br-int protocols=OpenFlow10",
            "openflow",
            ("does not speak OpenFlow 1.3",),
        ),
    ),
)
"""Faults of a host at a time: a command, the check that fails, and words of its line."""


@pytest.mark.parametrize("breaks", BREAKS, ids=["up", "down"])
def test_remedies_mend_a_host(
    stopped: tuple[OpenvSwitch, Agent, Guest], breaks: tuple[Break, ...]
) -> None:
    host, agent, _ = stopped
    state = str(agent.state_path)
    for command, _check, _words in breaks:
        run(host, command.replace("STATE", state))
    _, result = examine(agent)
    for _command, check, words in breaks:
        apply(host, named(result, check, *(word.replace("STATE", state) for word in words)))
    _, result = examine(agent)
    failing = faults(result) & {check for _command, check, _words in breaks}
    assert not failing, [line for line in result if line["check"] in failing]
