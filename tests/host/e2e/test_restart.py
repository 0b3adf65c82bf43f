"""A start on top of what an earlier one has left, a second daemon, and --cleanup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pytest

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, Attempt, Capture, asks_own, put, uuid_in

pytestmark = pytest.mark.early

_DURATION = re.compile(r"duration=([0-9.]+)s")
_PACKETS = re.compile(r"n_packets=(\d+)")
_COUNTERS = re.compile(r"\b(duration|n_packets|n_bytes|idle_age|hard_age)=[^ ,]+, ?")
FOREIGN = "cookie=0x77,table=0,priority=250,udp,nw_dst=192.0.2.1,actions=drop"


def listed(host: OpenvSwitch) -> dict[str, tuple[float, int]]:
    """Flow without its counters → duration and packets."""
    found = {}
    for flow in host.flows():
        duration, packets = _DURATION.search(flow), _PACKETS.search(flow)
        assert duration is not None
        assert packets is not None
        found[_COUNTERS.sub("", flow)] = (float(duration[1]), int(packets[1]))
    return found


def proxy_port(agent: Agent) -> int:
    return int(re.findall(r"on tap-\w+ port (\d+)", agent.log())[-1])


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_second_start_on_its_own_flows_sends_no_flow_mods(
    host: OpenvSwitch, agent: Agent, guest: Guest, how: str
) -> None:
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


def test_an_idle_connection_of_before_cannot_ask_after_a_restart(
    agent: Agent, guest: Guest
) -> None:
    """What the kernel still has of it is reset; the guest's next connection is served."""
    attempt = Attempt(guest)
    assert attempt.connected_after() is not None
    agent.kill()
    agent.start()
    attempt.close()
    asks_own(guest)


def test_an_instance_that_changed_while_no_daemon_ran_gets_its_own(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    agent.stop()
    before = listed(host)
    guest.set_external_ids(vm_uuid=uuid_of("next"))
    agent.start()
    agent.put(uuid_of("next"), "next")
    addresses = [flow for flow in before if "table=200" in flow and "dl_src" in flow]
    assert [flow for flow in addresses if flow in listed(host)] == []
    reply = guest.curl(META_DATA)
    assert uuid_in(reply.body) == uuid_of("next")
    assert agent.metric("dfmeta_packet_ins_total", outcome="learned") == 1


def test_a_port_that_went_while_no_daemon_ran_has_no_flows(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    number = guest.ofport
    agent.stop()
    guest.del_port()
    agent.start()
    assert [flow for flow in listed(host) if f"in_port={number}," in flow] == []
    assert [flow for flow in listed(host) if f"output:{number}" in flow] == []
    assert "meter=" not in host.ofctl("dump-meters", BRIDGE)


def test_a_remembered_port_that_is_taken_gives_way_to_another(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent({"df_metadata": {"port": 0, "identity_scheme": "in_port"}})
    guest = make_guest()
    put(agent, guest)
    first = proxy_port(agent)
    agent.stop()
    # The listener outlives the daemon, so that nobody can take its port; now it is let go.
    assert agent.run("--cleanup").returncode == 0
    with host.namespace.open_socket() as taken:
        taken.bind(("0.0.0.0", first))
        taken.listen()
        agent.start()
        assert proxy_port(agent) != first
        asks_own(guest)


# --cleanup


def said(host: OpenvSwitch, *words: str) -> str:
    return netns.run(["ip", "-netns", host.namespace.name, *words]).stdout


def names(host: OpenvSwitch) -> list[str]:
    return sorted(line.split(": ")[1] for line in said(host, "-o", "link").splitlines())


class Everything:
    """Bridge and host, as far as dfmeta could have changed them."""

    def __init__(self, host: OpenvSwitch) -> None:
        self.flows = sorted(_COUNTERS.sub("", flow) for flow in host.flows())
        self.meters = host.ofctl("dump-meters", BRIDGE).splitlines()[1:]
        self.groups = host.ofctl("dump-groups", BRIDGE).splitlines()[1:]
        self.bridges = host.records(
            *("Bridge", "name", "ports", "controller", "protocols", "fail_mode"),
            *("other_config", "external_ids"),
        )
        self.ports = host.records(
            *("Port", "name", "tag", "vlan_mode", "cvlans", "external_ids", "other_config"),
        )
        self.interfaces = host.records(
            *("Interface", "name", "type", "ofport", "external_ids", "mac", "options"),
        )
        # OVSDB has no order of rows.
        for rows in (self.bridges, self.ports, self.interfaces):
            rows.sort(key=itemgetter("name"))
        self.links = names(host)
        self.rules = said(host, "rule")
        # Link-local routes come when the kernel has looked for a duplicate, a second or two later.
        routes = said(host, "route", "show", "table", "all").splitlines()
        self.routes = [line for line in routes if not re.search(r"\bf[ef][08]0::", line)]
        self.addresses = said(host, "-4", "addr")
        # sysctl(8) would walk through all settings of the kernel for these.
        with host.namespace.inside():
            self.sysctls = {
                path: path.read_text()
                for device in ("all", "lo", "default", "br-int")
                for path in Path("/proc/sys/net/ipv4/conf", device).iterdir()
            }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Everything) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def check(self, other: Everything, *, but: str = "") -> None:
        """One at a time, so that a difference can be read."""
        for name, value in vars(self).items():
            assert vars(other)[name] == value or name == but, name


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


@pytest.fixture
def furnished(host: OpenvSwitch) -> OpenvSwitch:
    """A furnished host."""
    furnish(host)
    return host


@dataclass(frozen=True)
class Cleaned:
    """A furnished host with a guest, which each cleanup leaves as it was."""

    host: OpenvSwitch
    before: Everything


@pytest.fixture(scope="module")
def cleaned_once() -> Iterator[Cleaned]:
    with OpenvSwitch() as host:
        furnish(host)
        with Guest(host, "one", route="gateway"):
            yield Cleaned(host, Everything(host))


@pytest.fixture
def cleaned(cleaned_once: Cleaned) -> Iterator[Cleaned]:
    """What arp_ignore was before is in the state alone, which some tests remove."""
    arp_ignore = "net/ipv4/conf/all/arp_ignore"
    before = cleaned_once.host.namespace.setting(arp_ignore)
    yield cleaned_once
    cleaned_once.host.namespace.setting(arp_ignore, before)


def test_cleanup_leaves_bridge_and_host_as_they_were(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    furnish(host)
    guest = make_guest("one", route="gateway")
    make_guest("two")
    before = Everything(host)
    agent = make_agent()
    put(agent, guest)
    asks_own(guest)
    assert Everything(host) != before
    agent.kill()
    agent.clean_up()
    before.check(Everything(host))
    agent.clean_up()
    before.check(Everything(host))
    agent.start()
    asks_own(guest)


CHANGES: dict[str, dict[str, object]] = {
    "tables": {"hook_priority": 400, "table_base": 120, "classification_table": 3},
    "host": {
        "metadata_interface": "tap-other",
        "route_table": 9,
        "host_ip": "169.254.1.1",
        "ip": "169.254.1.2",
        "port": 18081,
    },
}
"""Options that say where dfmeta puts what is its own, and other values than their defaults."""


@pytest.mark.parametrize("way", ["made with them", "changed since", "changed for the last start"])
@pytest.mark.parametrize("scope", ["tables", "host"])
def test_cleanup_finds_all_whatever_the_options_were(
    cleaned: Cleaned, scope: str, way: str
) -> None:
    """Without the state, unless that is what knows of two values."""
    host, before = cleaned.host, cleaned.before
    changed = {"df_metadata": CHANGES[scope]}
    with Agent(host, changed if way == "made with them" else None) as agent:
        agent.start()
        assert "meter=131" in host.ofctl("dump-meters", BRIDGE), "a guest's"
        agent.stop()
        agent.configure(changed)
        if way == "changed for the last start":
            agent.start()
            agent.stop()
        else:
            (agent.state_path / "state.json").unlink()
        agent.clean_up()
        # Without the state the value of arp_ignore from before is not known.
        before.check(Everything(host), but="" if way.endswith("start") else "sysctls")


def test_cleanup_beside_a_running_daemon_refuses(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    before = Everything(host)
    done = agent.run("--cleanup")
    assert done.returncode == 1
    assert "another dfmeta-agent already serves br-int" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    before.check(Everything(host))
    assert agent.running
    asks_own(guest)
