"""What an operator changes between two starts, and what a start that fails leaves: nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import nursery
from tests.harness.agent import Agent, program
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    ADDRESS_FLOWS,
    FIXED_FLOWS,
    PORT_FLOWS,
    TWIN_MAC,
    asks_own,
    holders,
    put,
)

TAP, OTHER = "tap-metadata", "br-lan"
VAIN = 3
"""Seconds of a start that waits in vain. It needs a part of them to come to where it waits."""
_COUNTERS = re.compile(r"\b(duration|n_packets|n_bytes|idle_age|hard_age)=[^ ,]+, ?")
_COMMAND = re.compile(r"(OS_DF_METADATA__INTEGRATION_BRIDGE=\S+ dfmeta-agent .*--cleanup)")


def left(host: OpenvSwitch) -> dict[str, object]:
    """All of dfmeta's that is on the host and its bridges."""
    namespace = host.namespace
    bridges = host.vsctl("list-br").split()
    routes = namespace.ip("route show table all", check=False).splitlines()
    return {
        "ports": {one: host.ports(one) for one in bridges},
        "flows": {
            one: sorted(_COUNTERS.sub("", flow) for flow in host.flows(one)) for one in bridges
        },
        "meters": host.ofctl("dump-meters", BRIDGE).splitlines()[1:],
        "rules": namespace.ip("rule"),
        "addresses": namespace.run(["ip", "-o", "-4", "address"]).stdout,
        "links": namespace.run(["ip", "-o", "link"]).stdout.count("tap-"),
        # The kernel's own for link-local addresses come late.
        "routes": [one for one in routes if not re.search(r"\bf[ef][08]0::", one)],
        "arp_ignore": namespace.run(["sysctl", "-n", "net.ipv4.conf.all.arp_ignore"]).stdout,
    }


def fails(agent: Agent, *words: str) -> str:
    """A start that ends with one line; that line."""
    done = agent.run(timeout=30)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("dfmeta-agent: "), line
    for word in words:
        assert word in line
    return line


def types(agent: Agent, line: str) -> subprocess.CompletedProcess[str]:
    """The command of a line, typed as it stands there."""
    found = _COMMAND.search(line)
    assert found is not None, line
    variable, _program, *arguments = shlex.split(found[1])
    command = nursery.in_shell([*program("dfmeta-agent"), *arguments])
    return agent.host.namespace.run(["env", variable, *command], check=False)


@contextmanager
def taken(host: OpenvSwitch, port: int = 18080) -> Iterator[None]:
    """Another program listens there."""
    with host.namespace.open_socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        yield


# The bridge


@pytest.fixture
def moved(host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest) -> tuple[Agent, Guest]:
    """br-int was served, and the configuration names another bridge now."""
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    agent.stop()
    host.add_bridge(OTHER)
    agent.configure({"df_metadata": {"integration_bridge": OTHER}})
    return agent, guest


def test_another_bridge_is_one_line_whose_command_makes_way(
    host: OpenvSwitch, moved: tuple[Agent, Guest]
) -> None:
    agent, guest = moved
    before = left(host)
    line = fails(agent, f"{TAP} is a port of {BRIDGE}, which dfmeta has served before", OTHER)
    assert left(host) == before
    assert len(holders(host)) == 1
    done = types(agent, line)
    assert done.returncode == 0, done.stderr
    count = FIXED_FLOWS + PORT_FLOWS + ADDRESS_FLOWS
    assert f"Removed {count} flows and 2 meters" in done.stderr
    wait_for(lambda: not holders(host), "the holder's end")
    agent.start()
    assert TAP in host.ports(OTHER)
    guest.del_port()
    guest.bridge = OTHER
    guest.plug()
    asks_own(guest)


def test_a_bridge_that_is_gone_needs_no_cleanup(
    host: OpenvSwitch, moved: tuple[Agent, Guest]
) -> None:
    agent, guest = moved
    guest.del_port()
    host.vsctl("del-br", BRIDGE)
    agent.start()
    guest.bridge = OTHER
    guest.plug()
    asks_own(guest)
    assert host.ports(OTHER).count(TAP) == 1
    assert host.namespace.ip("rule").count(TAP) == 1


def test_a_bridge_that_another_daemon_serves_keeps_its_port(
    host: OpenvSwitch, moved: tuple[Agent, Guest], make_agent: MakeAgent
) -> None:
    agent, guest = moved
    first = make_agent()
    agent.configure({"df_metadata": {"admin_listen": "127.0.0.1:9698"}})
    fails(agent, f"{TAP} is a port of {BRIDGE}, which another dfmeta-agent serves")
    assert first.ready()
    put(first, guest)
    asks_own(guest)


def test_a_port_of_that_name_that_dfmeta_has_not_made_is_named(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    host.add_bridge(OTHER)
    host.vsctl("add-port", OTHER, TAP, "--", "set", "Interface", TAP, "type=internal")
    agent = make_agent(start=False)
    before = left(host)
    line = fails(agent, f"{TAP} is a port of {OTHER}, and dfmeta did not create it")
    assert left(host) == before
    command = line.partition("delete the port: ovs-vsctl ")[2].split()[:3]
    host.vsctl(*command)
    agent.start()
    assert TAP in host.ports()


def test_a_start_on_a_bridge_that_is_not_there_leaves_no_holder_in_the_way(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    """The device is there, from a run whose holder has ended."""
    agent = make_agent({"df_metadata": {"listener_keep": 1}})
    agent.kill()
    wait_for(lambda: not holders(host), "the holder's end")
    agent.configure({"df_metadata": {"integration_bridge": "br-none", "startup_timeout": VAIN}})
    before = left(host)
    fails(agent, "there is no bridge br-none")
    assert left(host) == before
    agent.configure({"df_metadata": {"integration_bridge": BRIDGE, "startup_timeout": None}})
    agent.start()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)


# A start that fails


def test_a_first_start_that_fails_leaves_nothing(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    before = left(host)
    agent = make_agent(start=False)
    with taken(host):
        fails(agent, "169.254.169.254:18080", "[df_metadata] port", "Address already in use")
    assert left(host) == before
    assert holders(host) == []


def test_a_start_that_waits_in_vain_for_the_switch_leaves_nothing(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    before = left(host)
    host.vsctl("set", "Bridge", BRIDGE, "protocols=OpenFlow10,OpenFlow11")
    agent = make_agent({"df_metadata": {"startup_timeout": VAIN}}, start=False)
    done = agent.run()
    assert done.returncode == 2
    assert "the switch has not confirmed the flows of br-int" in done.stderr.splitlines()[-1]
    assert done.stderr.count("does not speak OpenFlow 1.3") == 1
    assert "Error in the datapath" not in done.stderr
    host.vsctl("clear", "Bridge", BRIDGE, "protocols")
    assert left(host) == before
    assert holders(host) == []


def test_a_start_that_fails_leaves_what_was_there_before(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    agent.stop()
    before = left(host)
    agent.configure({"df_metadata": {"port": 18081}})
    with taken(host, 18081):
        fails(agent, "169.254.169.254:18081", "Address already in use")
    assert left(host) == before
    agent.configure({"df_metadata": {"port": 18080}})
    agent.start()
    asks_own(guest)
    assert agent.log().count("Took over the listener of an earlier run") == 1


# Where the host's side is


@pytest.mark.parametrize(
    ("option", "value", "gone"),
    [
        ("metadata_interface", "tap-meta2", (f"oif {TAP}",)),
        ("host_ip", "169.254.1.1", ("from 169.254.169.254", "inet 169.254.169.254")),
        ("route_table", 7, ("lookup 2", "table 2")),
    ],
)
def test_a_start_takes_away_what_the_former_configuration_has_made(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    option: str,
    value: object,
    gone: tuple[str, ...],
) -> None:
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    agent.stop()
    agent.configure({"df_metadata": {option: value}})
    agent.start()
    asks_own(guest)
    assert agent.log().count("Removed leftovers of the former configuration: ") == 1
    seen = host.namespace.ip("rule", "address", "route show table all")
    assert str(value) in seen
    assert [one for one in gone if one in seen] == []
    assert [name for name in host.ports() if name.startswith("tap-m")] == [
        str(value) if option == "metadata_interface" else TAP
    ]
    agent.restart()
    asks_own(guest)
    assert agent.log().count("Removed leftovers of the former configuration: ") == 1


# Meta IPs


def of_meta_ips(host: OpenvSwitch) -> str:
    """All that shows the options of Meta IPs: flows, rows of OVSDB, the host's side, listeners."""
    bridges = host.vsctl("list-br").split()
    ip = host.namespace.ip
    return "\n".join(
        [
            *(flow for one in bridges for flow in host.flows(one)),
            *(str(row) for row in host.records("Interface", "name", "mac", "external_ids")),
            ip("address", "route show table all"),
            ip("route show table all", six=True),
            host.namespace.run(["ss", "-Hlnt"]).stdout,
        ]
    )


@pytest.mark.parametrize(
    ("group", "option", "value", "new", "former"),
    [
        ("METADATA", "provider_cidr", "100.100.0.0/16", "100.100.0.1", "240.0."),
        ("METADATA", "provider_base_mac", "fa:16:ef:00:00:00", "fa:16:ef:", "fa:16:ee:"),
        ("METADATA", "host_proxy_listen_port", 8080, "240.0.0.1:8080", "240.0.0.1:80 "),
        ("METADATA", "provider_vlan_id", 7, "dl_vlan=7", "dl_vlan=1,"),
        ("df_metadata", "key_prefix6", "fd00:77::/64", "fd00:77::1", "fd00:a9fe:a9fe:a9fe:"),
        ("df_metadata", "meta_bridge", "br-new", "int-br-new", "int-br-meta"),
    ],
)
def test_a_start_takes_away_what_other_meta_ips_have_left(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    group: str,
    option: str,
    value: object,
    new: str,
    former: str,
) -> None:
    agent = make_agent({"df_metadata": {"identity_scheme": "meta_ip"}})
    twins = [make_guest(name, mac=TWIN_MAC) for name in ("one", "two")]
    for twin in twins:
        put(agent, twin)

    def ask() -> None:
        for twin in twins:
            for service in (METADATA_IP, OPENSTACK6):
                asks_own(twin, host=service)

    ask()
    seen = of_meta_ips(host)
    assert former in seen
    assert new not in seen
    agent.stop()
    agent.configure({group: {option: value}})
    agent.start()
    ask()
    assert new in of_meta_ips(host)
    # OVSDB is written soon after the start.
    wait_for(lambda: former not in of_meta_ips(host), "the last trace of the former value")
    agent.restart()
    ask()
    assert agent.metric("dfmeta_packet_ins_total") == 0
