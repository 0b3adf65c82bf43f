"""Answers to guests leave by tap-metadata, whatever rules a VPN puts before dfmeta's."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import PROXY_PORT, Capture, asks_own

EC2_6 = "[fd00:ec2::254]"
TUNNEL = "vpn0"
VPNS = {
    # wg-quick(8) gives no priority: its rules come before all but that of the local table.
    "wg-quick": (
        f"route add default dev {TUNNEL} table 51820",
        "rule add not fwmark 51820 table 51820",
        "rule add table main suppress_prefixlength 0",
    ),
    "exit node": ("rule add lookup 52 priority 5270", f"route add default dev {TUNNEL} table 52"),
    "kill switch": ("route add unreachable default table 77", "rule add lookup 77 priority 1000"),
    "first priority": (f"route add default dev {TUNNEL} table 78", "rule add lookup 78 priority 1"),
}
UNRELATED = (
    "rule add fwmark 0x200/0xf00 lookup 2004 priority 9",
    "rule add from {other} lookup 52 priority 10",
    "rule add to {other} lookup 52 priority 11",
    "rule add iif lo ipproto udp lookup 52 priority 12",
    "rule add oif eth0 lookup 52 priority 13",
    "rule add uidrange 1000-1000 lookup 52 priority 14",
)
CILIUM = ("rule add lookup local priority 100", "rule del priority 0")
"""Moves the rule of the local table."""
OTHERS = {4: "10.0.0.0/8", 6: "2001:db8::/32"}

host, agent, guest = shared.host, shared.agent_with(), shared.guest6


@contextmanager
def tunnel(namespace: Namespace) -> Iterator[Capture]:
    """Have a device that stands in for a tunnel, and capture what leaves by it."""
    namespace.ip(
        f"link add {TUNNEL} type veth peer name of-{TUNNEL}",
        f"link set of-{TUNNEL} up",
        f"link set {TUNNEL} up",
        f"addr add 10.99.0.2/24 dev {TUNNEL}",
    )
    namespace.ip(f"addr add fd99::2/64 dev {TUNNEL} nodad", six=True)
    try:
        with Capture(namespace, TUNNEL) as capture:
            yield capture
    finally:
        namespace.ip(f"link del {TUNNEL}")


def apply(namespace: Namespace, lines: tuple[str, ...]) -> None:
    for six in (False, True):
        namespace.ip(*lines, six=six)


def removal_of(line: str) -> str:
    return line.replace(" add ", " del ")


def order(namespace: Namespace, *, six: bool) -> list[str]:
    """Selector and table of each rule but the first, in the kernel's order."""
    lines = namespace.ip("rule show", six=six).splitlines()
    return [line.partition("\t")[2].strip() for line in lines if "lookup local" not in line]


def leads(namespace: Namespace) -> bool:
    """Return whether dfmeta's rules come first in both families."""
    own = {4: SIDE.ip, 6: SIDE.ip6}
    for version, address in own.items():
        first, second, *_ = order(namespace, six=version == 6)
        if SIDE.rules and (address not in first or f"oif {SIDE.tap}" not in second):
            return False
        # The table with the route may come first by the other program's own rule.
        if not SIDE.rules and not first.startswith(
            (f"from all to {SIDE.keys.network(version)}", "from all lookup main")
        ):
            return False
    return True


def has_rule(namespace: Namespace, rule: str, *, six: bool) -> bool:
    return rule in order(namespace, six=six)


def asks_both(guest: Guest) -> None:
    asks_own(guest)
    asks_own(guest, host=EC2_6)


@pytest.mark.parametrize("kind", VPNS)
def test_vpns_take_no_answer(host: OpenvSwitch, agent: Agent, guest: Guest, kind: str) -> None:
    namespace = host.namespace
    asks_both(guest)
    with tunnel(namespace) as capture:
        apply(namespace, VPNS[kind])
        wait_for(lambda: leads(namespace), "dfmeta's rules to come first")
        asks_both(guest)
        assert [
            segment for segment in capture.segments() if segment.source_port == PROXY_PORT
        ] == []
        rules = [order(namespace, six=six) for six in (False, True)]
        agent.restart()
        asks_both(guest)
        assert [order(namespace, six=six) for six in (False, True)] == rules
        apply(namespace, tuple(map(removal_of, VPNS[kind])))
        asks_both(guest)


def test_rules_of_other_traffic_move_nothing(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    agent.restart()
    asks_both(guest)
    namespace, log = host.namespace, len(agent.log())
    for version, other in OTHERS.items():
        six = version == 6
        before = order(namespace, six=six)
        rules = [line.format(other=other) for line in UNRELATED]
        namespace.ip(*rules, *CILIUM, six=six)
        # The rule that comes back shows that the daemon has read all of them.
        if SIDE.rules:
            removed = before[1].removeprefix("from all ")
            namespace.ip(f"rule del {removed}", six=six)
            wait_for(partial(has_rule, namespace, before[1], six=six), "the rule to be back")
        assert order(namespace, six=six)[-len(before) :] == before
        namespace.ip("rule add lookup local priority 0", six=six)
        namespace.ip(*map(removal_of, [*rules, CILIUM[0]]), six=six)
    asks_both(guest)
    assert " before " not in agent.log()[log:]
