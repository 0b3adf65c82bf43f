"""tap-metadata's IPv6 side should be put back like IPv4's, and a host may be without IPv6."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv6Address
from typing import Any

import pytest

from dfmeta.exceptions import HostError
from dfmeta.flows.family import IPV6
from dfmeta.flows.key import NEXT_HOP6, NEXT_HOP_MAC
from dfmeta.host import ipv6
from dfmeta.host.changes import Changes
from dfmeta.host.host_facts import read_host
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.state import FILE
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, put

DEVICE = "tap-metadata"
HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
KEY = "fd00:a9fe:a9fe:a9fe:1:0:0:7"
ALL = [
    "accept_ra 0",
    "addr_gen_mode 1",
    "up",
    f"address {HOST_IP6}/128",
    f"neighbour {NEXT_HOP6}",
    "IPv6 route in table 2",
    "IPv6 rule 32764",
    "IPv6 rule 32765",
]
KNOB = f"net.ipv6.conf.{DEVICE}"
OF_SWITCH = 5.0
"""Seconds within which the daemon has noticed a change, on a busy machine too."""


@pytest.fixture
def bare() -> Iterator[Namespace]:
    with Namespace("side6") as namespace:
        for name in (DEVICE, "up0"):
            namespace.ip(f"link add {name} type veth peer name of-{name[:9]}")
        namespace.ip("link set up0 up", "link set of-up0 up", "link set of-tap-metad up")
        # A host that sends all unique local addresses elsewhere, the keys among them.
        ip(namespace, "-6 route add fd00::/8 dev up0", "-6 route add default dev up0")
        yield namespace


@pytest.fixture
def side(bare: Namespace) -> HostSide:
    made = HostSide(Wanted(DEVICE, IPv6Address(HOST_IP6), 2, IPV6, NEXT_HOP6))
    assert ensure(bare, made) == ALL
    return made


def ip(bare: Namespace, *lines: str, check: bool = True) -> str:
    """What ip(8) prints for each line; a batch takes no ``-6``."""
    return "".join(bare.run(["ip", *line.split()], check=check).stdout for line in lines)


def ensure(bare: Namespace, side: HostSide) -> list[str]:
    with bare.inside():
        return side.ensure()


def addresses(bare: Namespace) -> list[str]:
    return re.findall(r"inet6 (\S+)", ip(bare, f"-6 address show dev {DEVICE}"))


def test_the_device_has_the_one_address_and_it_is_ready_at_once(
    bare: Namespace, side: HostSide
) -> None:
    del side
    assert addresses(bare) == [f"{HOST_IP6}/128"]
    shown = ip(bare, f"-6 address show dev {DEVICE}")
    assert "nodad noprefixroute" in shown
    assert "tentative" not in shown
    with bare.inside(), socket.create_server((HOST_IP6, 0), family=socket.AF_INET6):
        pass


def test_answers_to_keys_leave_by_it_without_a_neighbour_of_their_own(
    bare: Namespace, side: HostSide
) -> None:
    del side
    with bare.inside():
        found = read_host(DEVICE, HOST_IP6, table=2, family=IPV6)
        assert (found.up, found.route, found.neighbour) == (True, True, True)
        assert found.way_back == DEVICE
        assert all(rule.there for rule in found.rules)
        assert (DEVICE, f"{HOST_IP6}/128") in [(name, str(one)) for name, one in found.addresses]
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((HOST_IP6, 0))
            for slot in range(1, 9):
                sock.sendto(b"", (f"fd00:a9fe:a9fe:a9fe:{slot}:0:0:9", 9))
    entries = ip(bare, f"-6 neighbour show dev {DEVICE}").split("\n")
    assert [line for line in entries if "fd00:" in line] == []
    assert f"{NEXT_HOP6} lladdr {NEXT_HOP_MAC} PERMANENT" in " ".join(entries)


@pytest.mark.parametrize(
    ("removal", "done"),
    [
        (f"addr flush dev {DEVICE}", ALL[3:4]),
        (f"-6 addr del {HOST_IP6}/128 dev {DEVICE}", ALL[3:4]),
        (f"link set {DEVICE} down", ALL[2:6]),
        (f"-6 neigh del {NEXT_HOP6} dev {DEVICE}", ALL[4:5]),
        (f"-6 neigh change {NEXT_HOP6} dev {DEVICE} lladdr 02:00:00:00:00:02", ALL[4:5]),
        ("-6 route flush table 2", ALL[5:6]),
        (f"-6 route replace default dev {DEVICE} table 2 metric 1024", ALL[5:6]),
        ("-6 rule del pref 32764", ALL[6:7]),
        ("-6 rule del pref 32765", ALL[7:8]),
    ],
)
def test_what_others_remove_is_noticed_and_put_back(
    bare: Namespace, side: HostSide, removal: str, done: list[str]
) -> None:
    with closing(Changes(table=2)) as changes:
        with bare.inside():
            index = socket.if_nametoindex(DEVICE)
            assert changes.take(index)
        wait_for(lambda: not changes.take(index), "what the device's start still brings")
        ip(bare, removal)
        assert changes.take(index)
    assert ensure(bare, side) == done
    assert ensure(bare, side) == []
    with bare.inside():
        found = read_host(DEVICE, HOST_IP6, table=2, family=IPV6)
    assert (found.up, found.route, found.neighbour, found.way_back) == (True, True, True, DEVICE)


def test_an_address_that_the_kernel_has_generated_is_removed(bare: Namespace) -> None:
    """The device was up before its settings were made."""
    ip(bare, f"link set {DEVICE} up")
    wait_for(lambda: addresses(bare), "the kernel to generate an address")
    (generated,) = addresses(bare)
    side = HostSide(Wanted(DEVICE, IPv6Address(HOST_IP6), 2, IPV6, NEXT_HOP6))
    done = ensure(bare, side)
    assert f"no address {generated.partition('/')[0]}" in done
    assert addresses(bare) == [f"{HOST_IP6}/128"]
    assert ensure(bare, side) == []


def test_a_setting_that_is_changed_is_put_back(bare: Namespace, side: HostSide) -> None:
    bare.sysctl(**{f"{KNOB}.accept_ra": 2, f"{KNOB}.addr_gen_mode": 0})
    done = ensure(bare, side)
    assert done[:2] == ALL[:2]
    assert [one for one in done[2:] if not one.startswith("no address fe80::")] == []
    assert addresses(bare) == [f"{HOST_IP6}/128"]


@pytest.mark.parametrize("off", [f"{KNOB}.disable_ipv6", "net.ipv6.conf.all.disable_ipv6"])
def test_ipv6_that_is_switched_off_and_on_is_put_back(
    bare: Namespace, side: HostSide, off: str
) -> None:
    bare.sysctl(**{off: 1})
    with bare.inside():
        lack = ipv6.lack_of(DEVICE)
    assert lack is not None
    assert lack.cause == f"{KNOB}.disable_ipv6 is 1"
    with pytest.raises(HostError):
        ensure(bare, side)
    bare.sysctl(**{off: 0})
    with bare.inside():
        assert ipv6.lack_of(DEVICE) is None
    assert ensure(bare, side) == ALL[3:6]


def test_a_small_mtu_is_named_and_ipv6_put_back_after_it(bare: Namespace, side: HostSide) -> None:
    ip(bare, f"link set {DEVICE} mtu 1279")
    with bare.inside():
        lack = ipv6.lack_of(DEVICE)
    assert lack is not None
    assert "is 1279" in lack.cause
    ip(bare, f"link set {DEVICE} mtu 1280")
    with bare.inside():
        assert ipv6.lack_of(DEVICE) is None
    # The kernel has made everything anew, with its defaults.
    done = ensure(bare, side)
    assert [one for one in done if not one.startswith("no address")] == [*ALL[:2], *ALL[3:6]]
    assert addresses(bare) == [f"{HOST_IP6}/128"]


def test_removal_leaves_nothing_of_ipv6(bare: Namespace, side: HostSide) -> None:
    ip(bare, "-6 rule add from 2001:db8::/32 lookup 2 pref 32764")
    # An earlier configuration's address.
    ip(bare, "-6 rule add from fd00::77 lookup 2 pref 32764")
    with bare.inside():
        assert side.remove() == ["IPv6 rule 32764"] * 2 + ["IPv6 rule 32765", ALL[5]]
        assert side.remove(device_stays=True) == [f"neighbour {NEXT_HOP6}", f"address {HOST_IP6}"]
        assert side.remove(device_stays=True) == []
    assert addresses(bare) == []
    left = ip(bare, "-6 rule")
    assert "2001:db8::/32" in left
    assert HOST_IP6 not in left
    assert "fd00::77" not in left


def test_a_failed_start_takes_back_what_it_has_added(bare: Namespace, side: HostSide) -> None:
    with bare.inside():
        side.undo()
    assert addresses(bare) == []
    assert "32764" not in ip(bare, "-6 rule")
    assert ip(bare, "-6 route show table 2", check=False) == ""


def test_the_hosts_addresses_are_those_of_all_its_devices(bare: Namespace, side: HostSide) -> None:
    ip(bare, "link set up0 down", "-6 addr add fd00::5/64 dev lo", f"-6 addr add {KEY}/128 dev lo")
    ensure(bare, side)
    assert {IPv6Address(text) for text in ("::1", "fd00::5", KEY, HOST_IP6)} <= side.addresses()


# With the daemon, on a switch

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
        found = read_host(TAP, SIDE.ip6, table=2, family=IPV6, keys=SIDE.keys, network=network)
    own = [str(one) for name, one in found.addresses if name == TAP]
    whole = found.up and found.route and found.neighbour and found.way_back == TAP
    return bool(whole and all(rule.there for rule in found.rules)) and own == [f"{SIDE.ip6}/128"]


def knob(host: OpenvSwitch, name: str) -> str:
    return host.namespace.run(["sysctl", "-n", f"{TAP_KNOB}.{name}"]).stdout.strip()


def examined(agent: Agent) -> dict[str, dict[str, Any]]:
    """Check of doctor → its line, for the checks of IPv6."""
    found = json.loads(agent.ctl("doctor", "--format", "json", check=False).stdout)
    return {line["check"]: line for line in found if line["check"].endswith("ipv6")}


def test_the_daemon_puts_ipv6_in_place(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    asks_own(guest)
    assert in_place(host)
    assert (knob(host, "accept_ra"), knob(host, "addr_gen_mode")) == ("0", "1")
    memory = json.loads((agent.state_path / FILE).read_text())["host"]
    assert memory["address6"] == SIDE.ip6


@pytest.mark.parametrize(
    "change",
    [f"addr flush dev {TAP}", f"link set {TAP} down", NEIGHBOUR, ROUTE, *RULES],
)
def test_the_daemon_puts_back_what_is_removed(
    host: OpenvSwitch, agent: Agent, guest: Guest, change: str
) -> None:
    ip(host.namespace, change)
    wait_for(lambda: in_place(host), "IPv6 to be put back")
    asks_own(guest)
    assert "not served over IPv6" not in agent.log()


def test_doctor_names_each_fault_of_ipv6_with_its_remedy(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    asks_own(guest)
    found = examined(agent)
    checks = ("address", *(("rule-from", "rule-oif") if SIDE.rules else ()), "route", "neighbour")
    for check in (*checks, "way-back"):
        assert found[f"{check}-ipv6"]["status"] == "ok"
    agent.stop()
    try:
        ip(host.namespace, f"-6 addr del {SIDE.ip6}/128 dev {TAP}", *RULES)
        ip(host.namespace, ROUTE, NEIGHBOUR, check=False)
        found = examined(agent)
        for check in checks:
            line = found[f"{check}-ipv6"]
            assert line["status"] == "wrong", line
            command = line["remedy"].split("`")[1]
            assert command.startswith("ip -6 ")
            host.namespace.run(command.split())
        assert in_place(host)
        found = examined(agent)
        assert [found[f"{check}-ipv6"]["status"] for check in checks] == ["ok"] * len(checks)
    finally:
        agent.start()


def test_ipv6_goes_and_comes_with_the_hosts_setting(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    assert over_ipv6(host)
    host.namespace.sysctl(**{f"{TAP_KNOB}.disable_ipv6": 1})
    told = f"Guests are not served over IPv6: {TAP_KNOB}.disable_ipv6 is 1"
    wait_for(lambda: told in agent.log(), "the daemon to say so")
    asks_own(guest)
    wait_for(agent.ready, "the switch to confirm the flows without IPv6")
    found = examined(agent)
    assert found.keys() == {"ipv6"}
    line = found["ipv6"]
    assert line["status"] == "warning"
    assert f"IPv4 only: {TAP_KNOB}.disable_ipv6 is 1" in line["text"]
    wait_for(lambda: not over_ipv6(host), "flows of IPv6 to be removed")
    command = line["remedy"].split("`")[1]
    host.namespace.run(command.split())
    wait_for(lambda: in_place(host), "IPv6 to be put in place")
    wait_for(lambda: "Guests are served over IPv6 as well" in agent.log(), "a line")
    assert agent.log().count(told) == 1
    assert "ipv6" not in examined(agent)
    wait_for(lambda: over_ipv6(host), "flows of IPv6")
    asks_own(guest)


def over_ipv6(host: OpenvSwitch) -> bool:
    """Whether a flow of dfmeta's leads guests to the service over IPv6."""
    mine = "cookie=0x64666d6500000000/0xffffffff00000000"
    return "ipv6_dst=fd00:ec2::254" in host.ofctl("--no-stats", "dump-flows", "br-int", mine)


def test_a_host_without_ipv6_serves_ipv4_until_it_has_it(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    """From the start on: the device comes without IPv6."""
    agent.stop()
    assert agent.run("--cleanup").returncode == 0
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


def test_a_former_address_goes_and_so_does_all_when_ip6_is_empty(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    other = "fd00:a9fe:a9fe:a9fe::77"
    try:
        agent.configure({"df_metadata": {"host_ip6": other, "route_table": 7}})
        agent.restart()
        wait_for(lambda: HOST_IP6 not in ip(host.namespace, "-6 address"), "removal")
        rules = ip(host.namespace, "-6 rule")
        assert HOST_IP6 not in rules
        assert f"from {other} lookup 7" in rules
        assert ip(host.namespace, "-6 route show table 2", check=False) == ""
        agent.configure({"df_metadata": {"ip6": ""}})
        agent.restart()
        wait_for(lambda: "3276" not in without_main(host), "the rules' removal")
        assert other not in ip(host.namespace, "-6 address")
        assert NEXT_HOP6 not in ip(host.namespace, f"-6 neighbour show dev {DEVICE}")
        assert ip(host.namespace, "-6 route show table 7", check=False) == ""
        assert examined(agent) == {}
        asks_own(guest)
    finally:
        agent.configure({"df_metadata": {"host_ip6": None, "route_table": None, "ip6": None}})
        agent.restart()
    wait_for(lambda: in_place(host), "IPv6 to be put in place")


def without_main(host: OpenvSwitch) -> str:
    return ip(host.namespace, "-6 rule").replace("32766:", "")


def test_cleanup_leaves_nothing_of_ipv6(host: OpenvSwitch, agent: Agent) -> None:
    assert in_place(host)
    agent.stop()
    try:
        done = agent.clean_up()
        for what in (*(f"rule {one}" for one in SIDE.rules), "route in table"):
            assert f"Removed the IPv6 {what}" in done
        assert "3276" not in without_main(host)
        assert SIDE.ip6 not in ip(host.namespace, "-6 address")
        routes = ip(host.namespace, f"-6 route show table {SIDE.table}", check=False)
        assert SIDE.routes[6] not in routes
    finally:
        agent.start()
