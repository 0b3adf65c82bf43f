"""A start on top of what an earlier one has left, a second daemon, and --cleanup."""

import re
from operator import itemgetter
from pathlib import Path

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, Capture, asks_own, put, uuid_in

pytestmark = pytest.mark.early

_DURATION = re.compile(r"duration=([0-9.]+)s")
_PACKETS = re.compile(r"n_packets=(\d+)")
_COUNTERS = re.compile(r"\b(duration|n_packets|n_bytes|idle_age|hard_age)=[^ ,]+, ?")
FOREIGN = "cookie=0x77,table=0,priority=250,udp,nw_dst=192.0.2.1,actions=drop"


def listed(host: OpenvSwitch) -> dict[str, tuple[float, int]]:
    """Flow without its counters → duration and packets."""
    result = {}
    for flow in host.flows():
        duration, packets = _DURATION.search(flow), _PACKETS.search(flow)
        assert duration is not None
        assert packets is not None
        result[_COUNTERS.sub("", flow)] = (float(duration[1]), int(packets[1]))
    return result


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_next_start_sends_no_flow(host: OpenvSwitch, agent: Agent, guest: Guest, how: str) -> None:
    memory = agent.state_path / "state.json"
    wait_for(lambda: guest.instance_id in memory.read_text(), "the daemon's memory")
    before = listed(host)
    if how == "stop":
        agent.restart()
    else:
        agent.kill()
        agent.start()
    after = listed(host)
    assert after.keys() == before.keys()
    for flow, (duration, packets) in after.items():
        assert duration > before[flow][0], f"put in anew: {flow}"
        assert packets >= before[flow][1], f"counts anew: {flow}"
    assert agent.metric("dfmeta_flow_mods_total") == 0
    assert "Kept 1 addresses" in agent.log()
    with Capture(host.namespace, guest.port) as capture:
        asks_own(guest)
        assert len(capture.syns()) == 1
    assert agent.metric("dfmeta_packet_ins_total") == 0


@pytest.mark.parametrize("lost", [False, True], ids=["flows stay", "flows deleted"])
def test_an_instance_that_changed_while_no_daemon_ran_gets_its_own(
    host: OpenvSwitch, agent: Agent, guest: Guest, *, lost: bool
) -> None:
    agent.stop()
    before = listed(host)
    if lost:
        host.ofctl("del-flows", BRIDGE)
    guest.set_external_ids(vm_uuid=uuid_of("next"))
    agent.start()
    agent.put(uuid_of("next"), "next")
    addresses = [flow for flow in before if "table=200" in flow and "dl_src" in flow]
    assert [flow for flow in addresses if flow in listed(host)] == []
    reply = guest.curl(META_DATA)
    assert uuid_in(reply.body) == uuid_of("next")
    assert agent.metric("dfmeta_packet_ins_total", outcome="learned") == 1


def test_port_that_went_unseen_has_no_flow(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    number = guest.ofport
    agent.stop()
    guest.del_port()
    agent.start()
    assert [flow for flow in listed(host) if f"in_port={number}," in flow] == []
    assert [flow for flow in listed(host) if f"output:{number}" in flow] == []


# --cleanup


def outline(host: OpenvSwitch) -> dict[str, object]:
    """Return bridge and host, as far as dfmeta could have changed them."""

    def ip(*words: str) -> str:
        return host.namespace.run(["ip", *words]).stdout

    rows = {
        "Bridge": ("ports", "controller", "protocols", "fail_mode", "other_config", "external_ids"),
        "Port": ("tag", "vlan_mode", "cvlans", "external_ids", "other_config"),
        "Interface": ("type", "ofport", "external_ids", "mac", "options"),
    }
    with host.namespace.inside():
        sysctls = {
            path: path.read_text()
            for device in ("all", "lo", "default", "br-int")
            for path in Path("/proc/sys/net/ipv4/conf", device).iterdir()
        }
    return {
        "flows": sorted(_COUNTERS.sub("", flow) for flow in host.flows()),
        "meters": host.ofctl("dump-meters", BRIDGE).splitlines()[1:],
        "groups": host.ofctl("dump-groups", BRIDGE).splitlines()[1:],
        # OVSDB has no order of rows.
        **{
            table: sorted(host.records(table, "name", *columns), key=itemgetter("name"))
            for table, columns in rows.items()
        },
        "links": sorted(line.split(": ")[1] for line in ip("-o", "link").splitlines()),
        "rules": ip("rule"),
        # Link-local routes come when the kernel has looked for a duplicate, a second or two later.
        "routes": [
            line
            for line in ip("route", "show", "table", "all").splitlines()
            if not re.search(r"\bf[ef][08]0::", line)
        ],
        "addresses": ip("-4", "addr"),
        "sysctls": sysctls,
    }


def furnish(host: OpenvSwitch) -> None:
    """Give a host flows, a meter, a rule and a route of somebody else."""
    host.ofctl("add-flow", BRIDGE, FOREIGN)
    host.ofctl("add-flow", BRIDGE, "cookie=0x78,table=200,priority=5,icmp,actions=drop")
    host.ofctl("add-meter", BRIDGE, "meter=65538,pktps,band=type=drop,rate=50")
    host.ofctl("add-flow", BRIDGE, "table=60,udp,actions=meter:65538,normal")
    host.namespace.ip(
        "link set br-int addrgenmode none",
        "link set br-int up",
        "rule add from 192.0.2.0/24 lookup 7 priority 100",
        "route add 198.51.100.0/24 dev br-int table 7",
    )


def test_cleanup_leaves_bridge_and_host_as_they_were(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    furnish(host)
    guest = make_guest("one", route="gateway")
    make_guest("two")
    before = outline(host)
    agent = make_agent()
    put(agent, guest)
    asks_own(guest)
    assert outline(host) != before
    agent.kill()
    agent.clean_up()
    assert outline(host) == before
    agent.clean_up()
    assert outline(host) == before
    agent.start()
    asks_own(guest)


def test_cleanup_beside_a_daemon_refuses(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    before = outline(host)
    done = agent.run("--cleanup")
    assert done.returncode == 1
    assert "another dfmeta-agent already serves br-int" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert outline(host) == before
    assert agent.running
    asks_own(guest)
