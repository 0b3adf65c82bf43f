"""``dfmeta doctor`` on hosts broken one way each: the line, its remedy, the remedy applied.

Remedies are applied as they are printed: the first command between backticks is what runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dfmeta.proxy.tokens import TOKEN_HEADER
from tests.harness.agent import Agent, program
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest, uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, end_holders, put

pytestmark = pytest.mark.early

TAP = "tap-metadata"
CHECKS = {
    "user",
    "daemon",
    "configuration",
    "state_path",
    "secret-files",
    "disk",
    "ovsdb",
    "vswitchd",
    "version",
    "ovs-version",
    "packages",
    "permissions",
    "sockets",
    "open-files",
    "bridge",
    "tap",
    "tap-vlan",
    "socket",
    "openflow",
    "foreign-flows",
    "flows",
    "meters",
    "device",
    "address",
    "rule-from",
    "rule-oif",
    "route",
    "way-back",
    "neighbour",
    "rp_filter",
    "arp_ignore",
    "checksum",
    "listener",
    "path",
    "path-ipv6",
    "somaxconn",
    "syncookies",
    "conntrack",
    "neighbours",
    "firewall",
    "networkd",
    "socket-units",
    "cloud",
    "source-libvirt",
    "store",
    "store-schema",
    "store-files",
    "clock",
    "guests",
    "ports",
    "address-ipv6",
    "rule-from-ipv6",
    "rule-oif-ipv6",
    "route-ipv6",
    "way-back-ipv6",
    "neighbour-ipv6",
    "listener-ipv6",
    "firewall-ipv6",
}

Line = dict[str, Any]


@pytest.fixture(autouse=True)
def _filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an empty packet filter, whatever the test machine has."""
    pretend_nft(tmp_path, {"nftables": []})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


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
    return done.returncode, json.loads(done.stdout)


def lines(agent: Agent, check: str) -> list[Line]:
    """The lines of one check; when one is wrong the exit status says so."""
    status, found = examine(agent)
    assert status == int(any(line["status"] == "wrong" for line in found))
    return [line for line in found if line["check"] == check]


def wrong(agent: Agent, check: str, *words: str) -> str:
    """The check fails, in these words; gives the remedy."""
    return named(lines(agent, check), check, *words)


def named(found: list[Line], check: str, *words: str) -> str:
    """As :func:`wrong`, in lines that were read already."""
    of_check = [line for line in found if line["check"] == check]
    failing = [line for line in of_check if line["status"] == "wrong"]
    assert failing, of_check
    for word in words:
        assert word in failing[0]["text"]
    assert failing[0]["remedy"]
    return str(failing[0]["remedy"])


def is_ok(agent: Agent, check: str) -> bool:
    """Whether all the lines of that check are ok."""
    found = lines(agent, check)
    return bool(found) and all(line["status"] == "ok" for line in found)


def apply(host: OpenvSwitch, remedy: str, **placeholders: str) -> None:
    """Run the remedy's first command on the host."""
    found = re.search(r"`([^`]+)`", remedy)
    assert found, remedy
    command = found[1]
    for name, value in placeholders.items():
        command = re.sub(f"<{name}[^>]*>", value, command)
    program, *arguments = shlex.split(command)
    if program == "ovs-vsctl":
        host.vsctl(*arguments)
    elif program == "ovs-ofctl":
        host.ofctl(*arguments)
    else:
        host.namespace.run([program, *arguments])


def run_dfmeta(agent: Agent, remedy: str, **placeholders: str) -> None:
    """Run the remedy's first command, which is one of dfmeta's own."""
    found = re.search(r"`dfmeta ([^`]+)`", remedy)
    assert found, remedy
    command = found[1]
    for name, value in placeholders.items():
        command = re.sub(f"<{name}[^>]*>", value, command)
    agent.ctl(*shlex.split(command))


def test_a_working_host_has_a_line_for_each_check_and_all_are_ok(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    put(agent, guest)
    asks_own(guest)
    status, found = examine(agent)
    assert [line for line in found if line["status"] != "ok"] == []
    assert status == 0
    assert {line["check"] for line in found} == CHECKS
    table = agent.ctl("doctor", "--root", str(agent.folder)).stdout.splitlines()
    assert len(table) == len(found) + 1
    assert all(line.startswith("ok ") for line in table[1:])


BREAKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no mark": (
        "vsctl remove Interface tap-metadata external_ids dfmeta",
        "tap",
        ("lacks dfmeta's mark",),
    ),
    "flooded": (
        "vsctl clear Port tap-metadata vlan_mode",
        "tap-vlan",
        ("tag=4095 vlan_mode=[]", "flooded"),
    ),
    "untagged": ("vsctl clear Port tap-metadata tag", "tap-vlan", ("tag=None",)),
    "down": ("ip link set tap-metadata down", "device", ("tap-metadata is down",)),
    "no address": (
        "ip addr del 169.254.169.254/32 dev tap-metadata",
        "address",
        ("does not have 169.254.169.254/32",),
    ),
    "no from rule": (
        "ip rule del from 169.254.169.254",
        "rule-from",
        ("no rule from 169.254.169.254 table 2",),
    ),
    "no oif rule": ("ip rule del priority 32765", "rule-oif", ("no rule oif tap-metadata",)),
    "no route": ("ip route flush table 2", "route", ("no default route via 128.0.0.0",)),
    "a route of its link": (
        "ip route replace default dev tap-metadata scope link table 2",
        "route",
        ("no default route via 128.0.0.0 through tap-metadata",),
    ),
    "no neighbour": (
        "ip neigh del 128.0.0.0 dev tap-metadata",
        "neighbour",
        ("no permanent MAC on tap-metadata",),
    ),
    "arp_ignore": (
        "sysctl -q -w net.ipv4.conf.all.arp_ignore=0",
        "arp_ignore",
        ("answers ARP for 169.254.169.254",),
    ),
    "a short queue": (
        "sysctl -q -w net.core.somaxconn=128",
        "somaxconn",
        ("net.core.somaxconn is 128",),
    ),
    "no SYN cookies": (
        "sysctl -q -w net.ipv4.tcp_syncookies=0",
        "syncookies",
        ("tcp_syncookies is 0",),
    ),
    "OpenFlow 1.0": (
        "vsctl set Bridge br-int protocols=OpenFlow10",
        "openflow",
        ("does not speak OpenFlow 1.3",),
    ),
    "OpenFlow 1.5": (
        "vsctl set Bridge br-int protocols=OpenFlow15",
        "openflow",
        ("does not speak OpenFlow 1.3",),
    ),
    "somebody before us": (
        "ofctl add-flow br-int cookie=0xbad,priority=300,ip,nw_dst=169.254.0.0/16,actions=drop",
        "foreign-flows",
        ("takes packets of guests", "cookie 0xbad", "priority 300", "actions=drop"),
    ),
}


@pytest.mark.parametrize(
    ("thing", "what", "instead"),
    [
        ("rule", "priority 50 to 128.0.0.0/8 prohibit", "Permission denied"),
        ("addr", "128.0.0.77/16 dev lo", "lo"),
    ],
)
def test_answers_that_take_another_way_than_ours(
    stopped: tuple[OpenvSwitch, Agent, Guest], thing: str, what: str, instead: str
) -> None:
    host, agent, _ = stopped
    host.namespace.ip(f"{thing} add {what}")
    assert wrong(agent, "way-back", f"do not leave by tap-metadata but: {instead}")
    host.namespace.ip(f"{thing} del {what}")
    assert is_ok(agent, "way-back")


def test_the_address_on_another_device_is_wrong_where_answers_take_another_way(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest, agent = make_guest(), make_agent()
    host.namespace.ip(f"addr add {METADATA_IP}/32 dev lo")
    assert guest.curl("/").status == 404
    (line,) = lines(agent, "address")
    assert line["status"] == "ok"
    assert "lo has it as well, and the host answers for it there too; this does" in line["text"]
    agent.stop()
    host.namespace.ip("rule add priority 50 to 128.0.0.0/8 prohibit")
    apply(host, wrong(agent, "address", "is on lo as well", "do not leave by tap-metadata but:"))
    assert is_ok(agent, "address")


@pytest.mark.parametrize("name", BREAKS)
def test_the_remedy_of_a_failing_line_mends_it(
    stopped: tuple[OpenvSwitch, Agent, Guest], name: str
) -> None:
    host, agent, _ = stopped
    command, check, words = BREAKS[name]
    program, *arguments = command.split()
    if program == "vsctl":
        host.vsctl(*arguments)
    elif program == "ofctl":
        host.ofctl(*arguments)
    else:
        host.namespace.run([program, *arguments])
    apply(host, wrong(agent, check, *words))
    assert is_ok(agent, check)
    if name in ("down", "no address"):  # which take these along, lines of their own
        apply(host, wrong(agent, "route"))
        apply(host, wrong(agent, "neighbour"))


def test_rp_filter_harms_only_without_the_from_rule(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _ = stopped
    host.namespace.sysctl(**{f"net.ipv4.conf.{TAP}.rp_filter": 1})
    (line,) = lines(agent, "rp_filter")
    assert line["status"] == "ok"
    assert "rp_filter is 1 on tap-metadata (all 0, its own 1), which does no harm" in line["text"]
    host.namespace.ip(f"rule del from {METADATA_IP}")
    remedy = wrong(agent, "rp_filter", "drops guests' packets", f"rule from {METADATA_IP}")
    apply(host, remedy)
    assert is_ok(agent, "rp_filter")
    host.namespace.sysctl(**{f"net.ipv4.conf.{TAP}.rp_filter": 0})


def test_a_flow_of_somebody_in_a_guests_way_is_named_with_its_port(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, guest = stopped
    flow = f"cookie=0xbad,priority=400,in_port={guest.ofport},ip,actions=NORMAL"
    host.ofctl("add-flow", BRIDGE, flow)
    words = (f"packets of {guest.port} to", "0xbad", "priority 400", "actions=NORMAL")
    apply(host, wrong(agent, "foreign-flows", *words))
    assert is_ok(agent, "foreign-flows")


def test_a_foreign_flow_is_taken_away_without_those_that_share_its_cookie(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _ = stopped
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad,priority=1,arp,actions=NORMAL")
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad,priority=400,ip,actions=drop")
    remedy = wrong(agent, "foreign-flows", "cookie 0xbad", "priority 400")
    assert "other flows have the same cookie" in remedy
    apply(host, remedy.replace("MATCH", "ip", 1))
    assert is_ok(agent, "foreign-flows")
    assert "cookie=0xbad" in host.ofctl("dump-flows", BRIDGE, "cookie=0xbad/-1")
    host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")


@pytest.mark.parametrize(
    "flow",
    [
        "priority=65535,dl_vlan=4095,actions=drop",
        "priority=400,in_port=LOCAL,actions=drop",
        "priority=400,udp,nw_dst=169.254.169.254,tp_dst=53,actions=drop",
        "priority=400,udp6,ipv6_dst=fd00:ec2::254,tp_dst=53,actions=drop",
        "priority=400,icmp6,icmp_type=134,actions=drop",
        "priority=400,icmp6,icmp_type=135,nd_target=fe80::1,actions=NORMAL",
        "priority=400,ct_state=+trk,ip,actions=drop",
        "priority=400,ip,reg2=0,actions=load:55->NXM_NX_REG2[0..5],resubmit(,0)",
        "priority=400,ipv6,reg2=0,actions=load:55->NXM_NX_REG2[0..5],resubmit(,0)",
        "priority=200,ip,actions=drop",
        "priority=200,ipv6,actions=drop",
        "table=1,priority=400,ip,actions=drop",
    ],
)
def test_a_flow_that_leaves_guests_to_us_is_no_fault(
    stopped: tuple[OpenvSwitch, Agent, Guest], flow: str
) -> None:
    host, agent, _ = stopped
    host.ofctl("add-flow", BRIDGE, f"cookie=0xbad,{flow}")
    try:
        assert is_ok(agent, "foreign-flows")
    finally:  # other tests use the same bridge
        host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")


@pytest.mark.parametrize(
    ("flow", "ip"),
    [
        ("ipv6,actions=drop", "fe80::a9fe:a9fe"),
        ("ipv6,ipv6_dst=fd00:ec2::/32,actions=NORMAL", "fd00:ec2::254"),
        ("tcp6,tp_dst=80,actions=drop", "fe80::a9fe:a9fe"),
        ("icmp6,icmp_type=135,actions=NORMAL", "fe80::a9fe:a9fe"),
        ("icmp6,icmp_type=135,nd_target=fd00:ec2::254,actions=drop", "fd00:ec2::254"),
    ],
)
def test_a_flow_in_the_way_of_ipv6_is_named_with_the_address(
    stopped: tuple[OpenvSwitch, Agent, Guest], flow: str, ip: str
) -> None:
    host, agent, _ = stopped
    host.ofctl("add-flow", BRIDGE, f"cookie=0xbad,priority=400,{flow}")
    try:
        apply(host, wrong(agent, "foreign-flows", f"packets of guests to {ip}:", "priority 400"))
        assert is_ok(agent, "foreign-flows")
    finally:
        host.ofctl("del-flows", BRIDGE, "cookie=0xbad/-1")


def test_a_host_without_ipv6_has_no_faults_of_ipv6_while_no_daemon_runs(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    make_guest()
    agent = make_agent()
    agent.stop()
    host.ofctl("add-flow", BRIDGE, "cookie=0xbad,priority=400,ipv6,actions=drop")
    wrong(agent, "foreign-flows", "packets of guests to fe80::a9fe:a9fe:")
    assert [line["status"] for line in lines(agent, "path-ipv6")] == ["unknown"]
    host.namespace.sysctl(**{f"net.ipv6.conf.{TAP}.disable_ipv6": 1})
    assert is_ok(agent, "foreign-flows")
    assert [line["status"] for line in lines(agent, "ipv6")] == ["warning"]
    assert lines(agent, "path-ipv6") == []


def test_a_state_path_that_others_may_read_or_that_is_gone(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _ = stopped
    agent.state_path.chmod(0o755)
    apply(host, wrong(agent, "state_path", "has mode 0755"))
    assert is_ok(agent, "state_path")
    aside = agent.state_path.rename(agent.folder / "aside")
    apply(host, wrong(agent, "state_path", "does not exist"))
    assert is_ok(agent, "state_path")
    agent.state_path.rmdir()
    agent.state_path.write_text("")
    assert "a directory" in wrong(agent, "state_path", "cannot be read")
    agent.state_path.unlink()
    aside.rename(agent.state_path)
    assert is_ok(agent, "state_path")


def test_a_state_path_or_a_file_in_it_that_the_user_of_workers_has(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    store = agent.state_path / "store.db"
    nobody = 65534
    for path in (agent.state_path, store):
        os.chown(path, nobody, nobody)
    _, found = examine(agent)
    words = (f"{agent.state_path} (user {nobody}), {store} (user {nobody})", "another user than")
    remedy = named(found, "state_path", *words)
    named(found, "store-files", f"{store} belongs to another user than the daemon's")
    agent.stop()
    wrong(agent, "state_path", *words)
    apply(host, remedy)
    assert is_ok(agent, "state_path")
    assert is_ok(agent, "store-files")


def test_a_key_of_tokens_with_which_the_daemon_does_not_start(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    agent.stop()
    key = agent.state_path / "token.key"
    key.write_bytes(b"short")
    agent.start(wait=False)
    assert agent.wait(20) == 2
    words = ("dfmeta-agent does not start", str(key), "it is not 32 bytes long")
    apply(host, wrong(agent, "state_path", *words))
    assert is_ok(agent, "state_path")
    agent.start()


def test_a_user_who_may_not_look_is_told_to_run_it_as_root(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _ = stopped
    # It may read, since Python may be in a folder of root's, and still not connect to a socket.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    command = [*program("dfmeta"), "doctor", "--format", "json"]
    done = host.namespace.run(
        [*drop, *command, "--config-file", str(agent.config_file)], check=False
    )
    found: list[Line] = json.loads(done.stdout)
    assert (done.returncode, found[0]["check"]) == (1, "user")
    assert "run it as root first" in named(found, "user", "doctor runs as user 65534")
    for check in ("ovsdb", "vswitchd", "socket"):
        assert named(found, check, "Permission denied").startswith("run doctor as root")


def test_ports_that_cannot_be_served_are_named(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, guest = stopped
    instance = guest.instance_id
    guest.set_external_ids(vm_uuid="")
    words = (f"no instance is known for {guest.port}", "external_ids:vm-uuid is missing")
    apply(host, wrong(agent, "ports", *words), instance=instance)
    assert is_ok(agent, "ports")
    guest.set_external_ids(vm_uuid="none-of-these")
    words = (f"broken: {guest.port}", "'none-of-these' is not a UUID")
    apply(host, wrong(agent, "ports", *words), instance=instance)
    assert is_ok(agent, "ports")
    host.vsctl("set", "Port", guest.port, "tag=4095")
    (line,) = lines(agent, "ports")
    assert line["status"] == "ok"
    assert f"switched off by their owner: {guest.port}" in line["text"]
    host.vsctl("clear", "Port", guest.port, "tag")


def test_a_port_without_a_device_has_no_number(
    stopped: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _ = stopped
    ids = ["external_ids:iface-id=a", "external_ids:attached-mac=fa:16:3e:00:11:22"]
    ids.append(f"external_ids:vm-uuid={uuid_of('late')}")
    host.vsctl("add-port", BRIDGE, "late0", "--", "set", "Interface", "late0", *ids)
    remedy = wrong(agent, "ports", "given no port number to late0")
    apply(host, remedy)
    assert "device may be missing" in remedy
    host.namespace.ip("link add late0 type veth peer name late1")
    host.namespace.ip("link set late0 up", "link set late1 up")
    wait_for(lambda: is_ok(agent, "ports"), "the port to have a number")
    host.vsctl("del-port", "late0")
    host.namespace.ip("link del late0")


def test_a_guest_that_fails_is_named_until_the_remedy_has_it_served(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent, served, failing = make_agent(), make_guest("served"), make_guest("failing")
    make_guest("quiet")
    put(agent, served)
    asks_own(served)
    # What it does on the side is its own affair: it has what it needs.
    assert served.curl("/latest/meta-data/", headers=[(TOKEN_HEADER, "bogus")]).status == 401
    assert served.curl(f"/{'x' * 9000}").status == 414
    (line,) = lines(agent, "guests")
    assert line["status"] == "ok"
    assert line["text"].startswith("no guest fails, of 1 that have sent requests")
    assert line["text"].endswith("; 2 of 3 guests have sent none")

    for _ in range(2):
        assert failing.curl("/latest/meta-data/").status == 404
    words = ("1 of 2 guests that have sent requests get 404 (no record)", f"{failing.port} (since ")
    remedy = wrong(agent, "guests", *words, ", 2 times)")
    assert f"dfmeta store put {failing.instance_id} " in remedy
    table = agent.ctl("ports", "--failing").stdout.splitlines()
    assert len(table) == 2
    assert re.search(r"served +fails since [0-9:]+ UTC: 404, 2 times: no record$", table[1])
    run_dfmeta(agent, remedy, name="failing.example.org")
    assert failing.curl("/latest/meta-data/hostname").text == "failing.example.org"
    assert is_ok(agent, "guests")
    assert len(agent.ctl("ports", "--failing").stdout.splitlines()) == 1
    assert re.search(r"  200, \d+ (s|min) ago$", agent.ctl("ports").stdout, re.MULTILINE)


def test_no_daemon(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.stop()
    assert "start dfmeta-agent" in wrong(agent, "daemon", "dfmeta-agent is not running")
    (line,) = lines(agent, "listener")
    assert line["status"] == "ok"
    assert "kept open for the next dfmeta-agent" in line["text"]
    agent.start()
    assert is_ok(agent, "daemon")


def test_a_daemon_that_hangs_counts_as_not_running(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.signal(signal.SIGSTOP)
    wrong(agent, "daemon", "timed out")
    agent.signal(signal.SIGCONT)
    assert is_ok(agent, "daemon")


def test_another_program_at_the_admin_listener(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent(start=False)
    with host.namespace.open_socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 9697))
        other.listen()
        name = Path("/proc/self/comm").read_text().strip()
        words = (f"another program ({name}, pid {os.getpid()}) listens at 127.0.0.1:9697",)
        assert "stop that program" in wrong(agent, "daemon", "is not running", *words)
    agent.start()
    assert is_ok(agent, "daemon")


def test_nobody_and_then_somebody_else_listens(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.stop()
    end_holders(host)
    assert "start dfmeta-agent" in wrong(agent, "listener", "no process listens on")
    with host.namespace.open_socket() as other:
        other.bind((METADATA_IP, 18080))
        other.listen()
        remedy = wrong(agent, "listener", "another program listens on 169.254.169.254:18080")
        assert "stop it" in remedy
    agent.start()
    assert is_ok(agent, "listener")


def test_the_port_is_not_known_before_the_first_start(make_agent: MakeAgent) -> None:
    agent = make_agent({"df_metadata": {"port": 0}}, start=False)
    assert [line["status"] for line in lines(agent, "listener")] == ["unknown"]
    assert [line["status"] for line in lines(agent, "firewall")] == ["unknown"]
    agent.start()
    wait_for(lambda: is_ok(agent, "listener"), "the port to be remembered")


def test_flows_that_are_gone_or_strange_while_the_daemon_has_no_connection(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    agent = make_agent(
        {"df_metadata": {"openflow_connection": "listen:127.0.0.1:6655"}}, start=False
    )
    agent.start(wait=False)
    host.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:6655")
    agent.wait_ready()
    host.vsctl("del-controller", BRIDGE)
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    words = ("of dfmeta's flows are missing", f"guest-http of port {guest.ofport}")
    _, found = examine(agent)
    assert "openflow_connection" in named(found, "flows", *words)
    named(found, "daemon", "runs and is not ready", "has not confirmed its flows")
    host.ofctl("add-flow", BRIDGE, "table=200,cookie=0x64666d65ff000001,actions=drop")
    strange = [line for line in lines(agent, "flows") if "stray flows" in line["text"]]
    assert len(strange) == 1
    # Guests may be served by flows of that cookie: no command takes them away.
    assert "`" not in strange[0]["remedy"]
    assert "openflow_connection" in strange[0]["remedy"]
    host.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:6655")
    agent.wait_ready()
    assert examine(agent)[0] == 0


def test_ovsdb_is_away(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    host.stop("ovsdb-server")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    status, found = examine(agent)
    assert status == 1
    remedy = named(found, "ovsdb", f"OVSDB at {host.ovsdb_connection}")
    assert "start Open vSwitch" in remedy
    # Without OVSDB, ovs-vswitchd answers no OpenFlow, and sends no probe to the host.
    unsure = {"bridge", "tap", "foreign-flows", "flows", "path", "path-ipv6"}
    assert unsure < {line["check"] for line in found if line["status"] == "unknown"}
    # Open vSwitch is at fault, and not the host or its IPv6.
    faults = {line["check"] for line in found if line["status"] == "wrong"}
    assert faults == {"daemon", "ovsdb", "openflow"}
    host.start("ovsdb-server")
    wait_for(agent.ready, "the daemon to be ready again")
    wait_for(lambda: examine(agent)[0] == 0, "everything to be ok again")


def test_vswitchd_is_away(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    host.kill("ovs-vswitchd")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    _, found = examine(agent)
    assert "start Open vSwitch" in named(found, "vswitchd", "ovs-vswitchd at")
    named(found, "socket", "no program accepts connections", "Connection refused")
    named(found, "device", f"{TAP} has no carrier")
    faults = {line["check"] for line in found if line["status"] == "wrong"}
    assert faults == {"daemon", "vswitchd", "socket", "device"}
    host.start("ovs-vswitchd")
    wait_for(lambda: examine(agent)[0] == 0, "everything to be ok again")


def test_the_management_socket_is_gone(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    host.mgmt_socket().unlink()
    remedy = wrong(agent, "socket", "no program accepts connections", "No such file")
    assert "restart ovs-vswitchd" in remedy
    host.restart("ovs-vswitchd")
    wait_for(lambda: examine(agent)[0] == 0, "everything to be ok again")


def test_the_bridge_and_tap_are_gone(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.stop()
    host.vsctl("del-br", BRIDGE)
    wrong(agent, "tap", f"{TAP} is not a port of {BRIDGE}")
    apply(host, wrong(agent, "bridge", f"there is no bridge {BRIDGE}"))
    assert is_ok(agent, "bridge")
    host.vsctl("set", "Bridge", BRIDGE, "datapath_type=netdev")
    assert "start dfmeta-agent" in wrong(agent, "tap", f"{TAP} is not a port of {BRIDGE}")
    agent.start()
    assert examine(agent)[0] == 0


def test_tap_is_on_another_bridge(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    agent = make_agent(start=False)
    host.add_bridge("br-other")
    host.vsctl("add-port", "br-other", TAP, "--", "set", "Interface", TAP, "type=internal")
    apply(host, wrong(agent, "tap", f"{TAP} is a port of br-other, not of {BRIDGE}"))
    agent.start()
    assert is_ok(agent, "tap")


def test_something_has_the_name_of_tap(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    host.namespace.ip(f"link add {TAP} type veth peer name other0")
    # A start that has given up takes the port away again.
    options = {"df_metadata": {"startup_timeout": 120}}
    agent = make_agent(options, start=False).start(wait=False)
    wait_for(lambda: TAP in host.ports(), "the port in OVSDB")
    remedy = wrong(agent, "tap", f"given {TAP} no port number", "could not open")
    apply(host, remedy)
    host.vsctl("del-port", BRIDGE, TAP)
    agent.wait_ready()
    assert is_ok(agent, "tap")


def test_checksums_that_are_left_to_a_card(host: OpenvSwitch, make_agent: MakeAgent) -> None:
    host.vsctl("set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true", wait=False)
    host.restart("ovs-vswitchd")
    agent = make_agent()
    agent.stop()
    host.namespace.run(["ethtool", "-K", TAP, "tx", "on"])
    apply(host, wrong(agent, "checksum", "leaves TCP checksums to a network interface"))
    assert is_ok(agent, "checksum")


def test_a_host_firewall_that_drops(
    stopped: tuple[OpenvSwitch, Agent, Guest], tmp_path: Path
) -> None:
    # tests/core/unit/inspect holds what a real nft prints for rules such as these
    _, agent, _ = stopped
    where = {"family": "inet", "table": "filter"}
    chain = where | {"name": "input", "type": "filter", "hook": "input", "policy": "drop"}
    pretend_nft(tmp_path, {"nftables": [{"chain": chain}]})
    remedy = wrong(agent, "firewall", "chain inet filter input drops", "TCP to port 18080")
    command = "nft insert rule inet filter input iifname tap-metadata tcp dport 18080 accept"
    assert f"`{command}`" in remedy
    payload = {"payload": {"protocol": "tcp", "field": "dport"}}
    expression = [
        {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": TAP}},
        {"match": {"op": "==", "left": payload, "right": 18080}},
        {"accept": None},
    ]
    rule = where | {"chain": "input", "expr": expression}
    pretend_nft(tmp_path, {"nftables": [{"chain": chain}, {"rule": rule}]})
    assert is_ok(agent, "firewall")


def test_no_firewall_program_is_no_fault(
    stopped: tuple[OpenvSwitch, Agent, Guest], tmp_path: Path
) -> None:
    _, agent, _ = stopped
    (tmp_path / "nft").unlink()
    (line,) = lines(agent, "firewall")
    assert line["status"] in ("unknown", "ok")


def test_a_wrong_configuration_is_one_line(stopped: tuple[OpenvSwitch, Agent, Guest]) -> None:
    host, _, _ = stopped
    with Agent(host, {"df_metadata": {"port": "none"}}) as other:
        done = other.ctl("doctor", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dfmeta: option [df_metadata] port = 'none' is wrong")
