"""The daemon puts IPv6's side of the host in place, and serves a host without IPv6."""

import json
import os
from typing import Any

from dfmeta.flows.family import IPV6
from dfmeta.host.host_facts import read_host
from dfmeta.identity.key import NEXT_HOP6
from dfmeta.runtime.saved_state import FILE
from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own
from tests.host.e2e.test_host_side import ip

TAP = SIDE.tap
TAP_KNOB = f"net.ipv6.conf.{TAP}"
RULES = [f"-6 rule del pref {priority}" for priority in SIDE.rules]
NEIGHBOUR = f"-6 neigh del {NEXT_HOP6} dev {TAP}"
ROUTE = f"-6 route del {SIDE.routes[6]} dev {TAP} table {SIDE.table}"


host, agent, guest = shared.host, shared.agent_with(), shared.guest


def in_place(host: OpenvSwitch) -> bool:
    with host.namespace.inside():
        if not os.path.isdir("/proc/sys/net/ipv6"):
            return False
        network = None if SIDE.rules else SIDE.keys.network(6)
        result = read_host(TAP, SIDE.ip6, table=2, family=IPV6, keys=SIDE.keys, network=network)
    own = [str(address) for name, address in result.addresses if name == TAP]
    whole = result.up and result.route and result.neighbour and result.way_back == TAP
    return bool(whole and all(rule.present for rule in result.rules)) and own == [f"{SIDE.ip6}/128"]


def knob(host: OpenvSwitch, name: str) -> str:
    return host.namespace.run(["sysctl", "-n", f"{TAP_KNOB}.{name}"]).stdout.strip()


def examined(agent: Agent) -> dict[str, dict[str, Any]]:
    """Check of doctor → its line, for the checks of IPv6."""
    result = json.loads(agent.ctl("doctor", "--format", "json", check=False).stdout)
    return {line["check"]: line for line in result if line["check"].endswith("ipv6")}


def test_daemon_puts_ipv6_in_place_and_back(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    asks_own(guest)
    assert in_place(host)
    assert (knob(host, "accept_ra"), knob(host, "addr_gen_mode")) == ("0", "1")
    memory = json.loads((agent.state_path / FILE).read_text())["host"]
    assert memory["address6"] == SIDE.ip6
    for change in (f"addr flush dev {TAP}", f"link set {TAP} down", NEIGHBOUR, ROUTE, *RULES):
        ip(host.namespace, change)
        wait_for(lambda: in_place(host), f"IPv6 to be put back after {change}")
    asks_own(guest)
    assert "not served over IPv6" not in agent.log()


def test_ipv6_follows_the_hosts_setting(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    assert over_ipv6(host)
    host.namespace.sysctl(**{f"{TAP_KNOB}.disable_ipv6": 1})
    message = f"Guests are not served over IPv6: {TAP_KNOB}.disable_ipv6 is 1"
    wait_for(lambda: message in agent.log(), "the daemon to say so")
    asks_own(guest)
    wait_for(agent.ready, "the switch to confirm the flows without IPv6")
    result = examined(agent)
    assert result.keys() == {"ipv6"}
    line = result["ipv6"]
    assert line["status"] == "warning"
    assert f"IPv4 only: {TAP_KNOB}.disable_ipv6 is 1" in line["text"]
    wait_for(lambda: not over_ipv6(host), "flows of IPv6 to be removed")
    command = line["remedy"].split("`")[1]
    host.namespace.run(command.split())
    wait_for(lambda: in_place(host), "IPv6 to be put in place")
    wait_for(lambda: "Guests are served over IPv6 as well" in agent.log(), "a line")
    assert agent.log().count(message) == 1
    assert "ipv6" not in examined(agent)
    wait_for(lambda: over_ipv6(host), "flows of IPv6")
    asks_own(guest)


def over_ipv6(host: OpenvSwitch) -> bool:
    """Whether a flow of dfmeta's leads guests to the service over IPv6."""
    mine = "cookie=0x64666d6500000000/0xffffffff00000000"
    return "ipv6_dst=fd00:ec2::254" in host.ofctl("--no-stats", "dump-flows", "br-int", mine)
