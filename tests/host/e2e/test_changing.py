"""Options that change between two starts, and starts that fail and leave nothing."""

import re

from tests.harness.fixtures import MakeAgent
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import holders

_COUNTERS = re.compile(r"\b(duration|n_packets|n_bytes|idle_age|hard_age)=[^ ,]+, ?")


def left(host: OpenvSwitch) -> dict[str, object]:
    """All of dfmeta's that is on the host and its bridges."""
    namespace = host.namespace
    bridges = host.vsctl("list-br").split()
    routes = namespace.ip("route show table all", check=False).splitlines()
    return {
        "ports": {bridge: host.ports(bridge) for bridge in bridges},
        "flows": {
            bridge: sorted(_COUNTERS.sub("", flow) for flow in host.flows(bridge))
            for bridge in bridges
        },
        "rules": namespace.ip("rule"),
        "addresses": namespace.run(["ip", "-o", "-4", "address"]).stdout,
        "links": namespace.run(["ip", "-o", "link"]).stdout.count("tap-"),
        # The kernel's own for link-local addresses come late.
        "routes": [route for route in routes if not re.search(r"\bf[ef][08]0::", route)],
        "arp_ignore": namespace.run(["sysctl", "-n", "net.ipv4.conf.all.arp_ignore"]).stdout,
    }


def test_a_first_start_that_fails_leaves_nothing(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    before = left(host)
    agent = make_agent(start=False)
    with host.namespace.open_socket() as other:
        other.bind(("0.0.0.0", 18080))
        other.listen()
        done = agent.run()
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert line.startswith("dfmeta-agent: "), line
    for word in ("169.254.169.254:18080", "[df_metadata] port", "Address already in use"):
        assert word in line
    assert left(host) == before
    assert holders(host) == []
