"""Cleanup and IPv6 that is switched on later."""

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, put
from tests.host.e2e.test_host_side import ip
from tests.host.e2e.test_host_side6 import TAP_KNOB, examined, in_place, knob

host, agent, guest = shared.host, shared.agent_with(), shared.guest


def test_a_cleanup_leaves_nothing_and_a_host_without_ipv6_serves_ipv4_until_it_has_it(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    """From the start on: the device comes without IPv6."""
    assert in_place(host)
    agent.stop()
    done = agent.clean_up()
    for what in (*(f"rule {one}" for one in SIDE.rules), "route in table"):
        assert f"Removed the IPv6 {what}" in done
    assert "3276" not in without_main(host)
    assert SIDE.ip6 not in ip(host.namespace, "-6 address")
    routes = ip(host.namespace, f"-6 route show table {SIDE.table}", check=False)
    assert SIDE.routes[6] not in routes
    default = "net.ipv6.conf.default.disable_ipv6"
    host.namespace.sysctl(**{default: 1})
    try:
        agent.start()
        one = make_guest("without")
        put(agent, one)
        asks_own(one)
        assert knob(host, "disable_ipv6") == "1"
        assert SIDE.ip6 not in ip(host.namespace, "-6 address")
        assert examined(agent)["ipv6"]["status"] == "warning"
    finally:
        host.namespace.sysctl(**{default: 0})
    host.namespace.sysctl(**{f"{TAP_KNOB}.disable_ipv6": 0})
    wait_for(lambda: in_place(host), "IPv6 to be put in place")
    assert (knob(host, "accept_ra"), knob(host, "addr_gen_mode")) == ("0", "1")
    asks_own(one)


def without_main(host: OpenvSwitch) -> str:
    return ip(host.namespace, "-6 rule").replace("32766:", "")
