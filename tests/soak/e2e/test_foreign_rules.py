"""Rules of a VPN take no answer to guests with any reverse path filter."""

import json
import subprocess

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.netns import end, spawn
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import PROXY_PORT, asks_own
from tests.host.e2e.test_foreign_rules import (
    EC2_6,
    TUNNEL,
    VPNS,
    apply,
    asks_both,
    leads,
    removal_of,
    tunnel,
)

host, agent, guest = shared.host, shared.agent_with(), shared.guest6


@pytest.mark.parametrize("rp_filter", [0, 1, 2])
@pytest.mark.parametrize("kind", VPNS)
def test_answers_leave_by_tap_metadata_with_any_rp_filter(
    host: OpenvSwitch, agent: Agent, guest: Guest, kind: str, rp_filter: int
) -> None:
    namespace = host.namespace
    asks_both(guest)
    with tunnel(namespace) as capture:
        for device in ("all", SIDE.tap):
            namespace.setting(f"net/ipv4/conf/{device}/rp_filter", str(rp_filter))
        apply(namespace, VPNS[kind])
        wait_for(lambda: leads(namespace), "dfmeta's rules to come first")
        for _ in range(10):
            asks_both(guest)
        assert [
            segment for segment in capture.segments() if segment.source_port == PROXY_PORT
        ] == []
        apply(namespace, tuple(map(removal_of, VPNS[kind])))
        asks_both(guest)


FIRST_AGAIN = """
while :; do
    case $(ip rule show | sed -n 2p) in
        *'lookup 77'*) ;;
        *) ip rule del lookup 77; ip rule add lookup 77 ;;
    esac
    sleep 0.05
done
"""
"""A program that puts its rule before all others each time."""


def test_rival_for_the_first_rule_is_borne(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    namespace = host.namespace
    asks_both(guest)
    agent.restart()
    log = len(agent.log())
    with tunnel(namespace):
        namespace.ip(f"route add default dev {TUNNEL} table 77")
        program = spawn(namespace.command(["sh", "-c", FIRST_AGAIN]), stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: "WARNING" in agent.log()[log:], "the daemon to give way")
            asks_own(guest, host=EC2_6)
            result = json.loads(agent.ctl("doctor", "--format", "json", check=False).stdout)
            (line,) = [line for line in result if line["check"] == "way-back"]
            assert line["status"] == "wrong"
            own = f"from {SIDE.ip} lookup 2" if SIDE.rules else "the main table's rule"
            for rule in ("from all lookup 77", own):
                assert rule in line["text"]
        finally:
            end(program)
        assert agent.log()[log:].count(" before '") <= 30
        namespace.ip("rule del lookup 77", "route flush table 77")
        asks_both(guest)
