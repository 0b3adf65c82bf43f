"""The way through the host, proved by a SYN of the daemon's own: each fault that drops guests'
frames behind the switch is named by doctor and by readiness, and the guest's curl shows it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dfmeta.inspect.offload import DRIVER
from tests.core.docs.typed import commands, page
from tests.core.flows.frames import ethernet, ipv4, tcp
from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest, uuid_of
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import PROXY_PORT, put

pytestmark = pytest.mark.early

NFT = UNPACKED / "usr/sbin/nft"
TAP = SIDE.tap
SECONDS = 2
WOKEN = 36
"""Wake-ups of an idle daemon in a second; it has half of them."""
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
"""linux/if_tun.h."""
SYN_RECV = "03"
"""The state in /proc/net/tcp (Linux, tcp_states.h)."""
HOOKS = {
    "prerouting": (
        "add table inet f; add chain inet f c { type filter hook prerouting priority -300; }; "
        f"add rule inet f c tcp dport {PROXY_PORT} drop"
    ),
    "input": (
        "add table inet f; add chain inet f c { type filter hook input priority 0; }; "
        f"add rule inet f c tcp dport {PROXY_PORT} drop"
    ),
    "output": (
        "add table inet f; add chain inet f c { type filter hook output priority 0; }; "
        f"add rule inet f c ip saddr {SIDE.ip} drop"
    ),
    "reject": (
        "add table inet f; add chain inet f c { type filter hook input priority 0; }; "
        f"add rule inet f c tcp dport {PROXY_PORT} reject with tcp reset"
    ),
    "netdev": (
        "add table netdev f; add chain netdev f c { type filter hook ingress device "
        f'"{TAP}" priority 0; policy drop; }}'
    ),
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[OpenvSwitch, Agent, Guest]]:
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host)).start()
        guest = stack.enter_context(Guest(host))
        put(agent, guest)
        yield host, agent, guest


def path_line(agent: Agent) -> dict[str, Any]:
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    (found,) = [line for line in json.loads(done.stdout) if line["check"] == "path"]
    assert (done.returncode == 0) <= (found["status"] == "ok")
    return dict(found)


def reaches(guest: Guest) -> bool:
    try:
        answer = guest.curl("/latest/meta-data/hostname", timeout=1.5)
    except OSError:
        return False
    return answer.status == 200


def down(agent: Agent) -> list[str]:
    document = json.loads(agent.admin("/healthz/readiness").body)
    return list(document.get("missing", ()))


@pytest.mark.parametrize("hook", HOOKS)
def test_a_packet_filter_in_any_hook_is_found(
    served: tuple[OpenvSwitch, Agent, Guest], hook: str
) -> None:
    host, agent, guest = served
    assert reaches(guest)
    host.namespace.run([str(NFT), HOOKS[hook]])
    try:
        line = path_line(agent)
        assert line["status"] == "wrong"
        word = "refuses" if hook == "reject" else "does not answer"
        assert word in line["text"]
        assert "nft list ruleset" in line["remedy"]
        assert not reaches(guest)
        traced = agent.ctl("trace", guest.port, check=False)
        assert (traced.returncode, word in traced.stdout.splitlines()[-1]) == (1, True)
        # One failure may be a packet that was lost; the next one makes it so.
        wait_for(lambda: down(agent) == ["path"], "readiness to say so")
    finally:
        host.namespace.run([str(NFT), "flush ruleset"])
    wait_for(lambda: not down(agent), "readiness to be back")


def test_an_idle_daemon_sleeps(served: tuple[OpenvSwitch, Agent, Guest]) -> None:
    _host, agent, guest = served
    assert reaches(guest)

    def woken() -> int:
        """How often its threads have been woken so far (proc(5), status)."""
        lines = [
            line
            for task in Path(f"/proc/{agent.pid}/task").iterdir()
            for line in (task / "status").read_text().splitlines()
        ]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    def idles() -> bool:
        begun, before = time.monotonic(), woken()
        wait_for(lambda: time.monotonic() > begun + SECONDS, "it to be idle")
        return woken() - before < WOKEN * SECONDS

    # What the tests before have begun may still go on.
    wait_for(idles, f"fewer than {WOKEN} wake-ups a second")


def test_a_path_that_works_is_ok(served: tuple[OpenvSwitch, Agent, Guest]) -> None:
    _host, agent, guest = served
    assert reaches(guest)
    assert path_line(agent)["status"] == "ok"


def test_a_probe_leaves_no_connection_behind(served: tuple[OpenvSwitch, Agent, Guest]) -> None:
    _host, agent, _guest = served

    def half_open() -> list[str]:
        sockets = Path(f"/proc/{agent.pid}/net/tcp").read_text().splitlines()[1:]
        return [line for line in sockets if line.split()[3] == SYN_RECV]

    wait_for(lambda: not half_open(), "SYN-ACKs of the tests before to be given up")
    closed = agent.metric("dfmeta_closed_connections_total")
    for _ in range(3):
        assert json.loads(agent.admin("/probe").body)["answered"]
    # Without the reset they stay for as long as SYN-ACKs are repeated.
    wait_for(lambda: not half_open(), "the resets of the probes")
    assert agent.metric("dfmeta_closed_connections_total") == closed


def test_readiness_is_not_up_before_the_path_is_proved(host: OpenvSwitch) -> None:
    with Agent(host) as agent:
        host.namespace.run([str(NFT), HOOKS["prerouting"]])
        agent.start(wait=False)
        said = "path: guests' SYNs do not reach the proxy: the host does not answer"
        wait_for(lambda: said in agent.stderr.read_text(), "the log")
        assert down(agent) == ["path"]
        host.namespace.run([str(NFT), "flush ruleset"])
        wait_for(lambda: agent.admin("/healthz/readiness").status == 200, "readiness")
        wait_for(lambda: "path is UP again" in agent.stderr.read_text(), "the log")


def no_connection(agent: Agent, port: str) -> str:
    """The state's cause, once there is one; doctor and the status page name it as well."""
    wait_for(lambda: state(agent, port)[0] == "no connection", "the state of the port")
    cause = state(agent, port)[1]
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    lines = [line for line in json.loads(done.stdout) if line["check"] == "ports"]
    assert done.returncode == 1
    assert any(line["status"] == "wrong" and port in line["text"] for line in lines), lines
    traced = agent.ctl("trace", port, check=False)
    assert traced.returncode == 1
    assert "in the state 'no connection'" in traced.stdout.splitlines()[-1]
    assert port in agent.ctl("ports", "--failing").stdout
    assert "no connection" in agent.admin("/").text
    # The metric has the state of the last review, which is at most a second old.
    wait_for(
        lambda: agent.metric("dfmeta_ports", state="no connection") == 1, "the metric to follow"
    )
    return cause


def state(agent: Agent, port: str) -> tuple[str, str]:
    (row,) = [one for one in json.loads(agent.admin("/ports").body) if one["port"] == port]
    return row["state"], row["fault"]


def well_again(agent: Agent, guest: Guest) -> None:
    assert reaches(guest)
    wait_for(lambda: state(agent, guest.port) == ("served", ""), "the port to be served")
    assert (
        f"Port {guest.port} is no longer in the state 'no connection'" in agent.stderr.read_text()
    )


def test_a_guest_that_leaves_out_checksums_is_named(
    served: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    host, agent, _guest = served
    with Guest(host, "web1") as guest:
        put(agent, guest)
        guest.namespace.run(["ethtool", "-K", guest.device, "tx", "on"])
        curl = guest.namespace.spawn(["curl", "-m", "8", f"http://{METADATA_IP}/"])
        try:
            cause = no_connection(agent, guest.port)
            assert "TcpInCsumErrors" in cause
            assert "on its own end of the device" in cause
            assert "<driver" not in cause, "a namespace is behind a veth pair"
            assert path_line(agent)["status"] == "ok", "the host itself is well"
        finally:
            curl.kill()
            curl.wait()
        guest.namespace.run(["ethtool", "-K", guest.device, "tx", "off"])
        well_again(agent, guest)


def test_a_virtio_card_that_leaves_out_checksums_is_named_with_its_element(
    served: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    """As QEMU sends what a guest's kernel has left to the card: by a tap device, unfinished."""
    host, agent, _guest = served
    mac, address = "fa:16:3e:77:00:01", "10.0.0.77"
    packet = ipv4(tcp(dst=METADATA_IP, src=address), dst=METADATA_IP, src=address)
    syn = bytearray(ethernet(packet, dst="ff:ff:ff:ff:ff:ff", src=mac))
    syn[50] ^= 0xFF  # of the TCP checksum
    with host.namespace.inside():
        opened = os.open("/dev/net/tun", os.O_RDWR)
    with os.fdopen(opened, "r+b", buffering=0) as card:
        fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", b"vnet7", IFF_TAP | IFF_NO_PI))
        host.namespace.ip("link set vnet7 up")
        ids = f"external_ids:vm-uuid={uuid_of('vnet7')}"
        host.vsctl("add-port", BRIDGE, "vnet7", "--", "set", "Interface", "vnet7", ids)
        try:
            wait_for(lambda: "vnet7" in agent.admin("/ports").text, "the port")

            def silent() -> bool:
                card.write(bytes(syn))
                return state(agent, "vnet7")[0] == "no connection"

            wait_for(silent, "the state of the port", interval=0.5)
            cause = no_connection(agent, "vnet7")
            assert "TcpInCsumErrors" in cause
            assert "`<driver>` with csum='off'" in cause
            line = doctor_line(agent, "ports")
            assert f"for a virtual machine, `{DRIVER}` in" in line["remedy"]
            assert "ethtool" not in line["remedy"]
            assert ET.fromstring(DRIVER).tag == "driver"
        finally:
            host.vsctl("del-port", BRIDGE, "vnet7")


@pytest.mark.parametrize(("where", "word"), [("host", "behind the switch"), ("guest", "SYN-ACKs")])
def test_a_filter_that_drops_one_guest_is_told_from_others(
    served: tuple[OpenvSwitch, Agent, Guest], where: str, word: str
) -> None:
    host, agent, _guest = served
    with Guest(host, "web2") as guest:
        put(agent, guest)
        assert reaches(guest)
        wait_for(lambda: state(agent, guest.port)[0] == "served", "the port")
        place, rule = {
            "host": (host.namespace, f"ip saddr {key(agent, guest.port)} drop"),
            "guest": (guest.namespace, "tcp sport 80 drop"),
        }[where]
        chain = "add table inet f; add chain inet f c { type filter hook input priority 0; }; "
        place.run([str(NFT), f"{chain}; add rule inet f c {rule}"])
        curl = guest.namespace.spawn(["curl", "-m", "12", f"http://{METADATA_IP}/"])
        try:
            assert word in no_connection(agent, guest.port)
        finally:
            curl.kill()
            curl.wait()
            place.run([str(NFT), "flush ruleset"])
        well_again(agent, guest)


def key(agent: Agent, port: str) -> str:
    (row,) = [one for one in json.loads(agent.admin("/ports").body) if one["port"] == port]
    return str(row["key"])


def doctor_line(agent: Agent, check: str) -> dict[str, Any]:
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    (found,) = [line for line in json.loads(done.stdout) if line["check"] == check]
    return dict(found)


def test_guests_connections_are_tracked_unless_the_operators_rule_leaves_them_out(
    served: tuple[OpenvSwitch, Agent, Guest],
) -> None:
    """As doc/source/doctor.rst has the rule, beside a filter that goes by connections."""
    host, agent, guest = served
    notrack, back = (one for one in commands(page("doctor")) if one.startswith("nft "))
    known = (
        "add table inet f; add chain inet f c { type filter hook input priority 0; policy drop; }; "
        "add rule inet f c ct state established accept; "
        f'add rule inet f c iifname "{TAP}" tcp dport {PROXY_PORT} accept; '
        "add rule inet f c iifname lo accept"
    )

    def types(command: str) -> None:
        host.namespace.run(["sh", "-euc", f"PATH={NFT.parent}:$PATH; {command}"])

    try:
        types(notrack.replace("tap-metadata", TAP))
        host.namespace.run([str(NFT), known])
        assert reaches(guest)
        line = doctor_line(agent, "conntrack")
        assert line["status"] == "ok"
        assert "the host does not track" in line["text"] or ", 0 of them by" in line["text"]
        types(back)
        assert reaches(guest)
        line = doctor_line(agent, "conntrack")
        assert line["status"] == "ok", "its connections stay for two minutes, and that is no fault"
        tracked = re.search(r", (\d+) of them by connections to the proxy", line["text"])
        assert tracked is not None, line
        assert int(tracked[1]) > 0
    finally:
        host.namespace.run([str(NFT), "flush ruleset"])
