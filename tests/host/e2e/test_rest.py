"""A host at rest is quiet: a check of the daemon changes nothing that is right."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import Capture, asks_own

GROUPS = (1 << 31) - 1
"""All multicast groups of rtnetlink(7) that bind(2) takes."""
NEW_RULE, DEL_RULE = 32, 33
ROUNDS = 3
TRACKED = ("dfmeta_dropped_packets_total", 'dfmeta_reconciles_total{result="failed"}')

agent, guest = shared.agent_with(), shared.guest6


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch() as switch:
        # The kernel repeats its reports of the start within a second (RFC 3810, 9.11).
        name = "net/ipv6/conf/default/mldv2_unsolicited_report_interval"
        switch.namespace.setting(name, "1")
        yield switch


class Monitor:
    """Every change of the kernel's network objects from now on, as the number of its message."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)
        sock.bind((0, GROUPS))

    def take(self) -> list[int]:
        result = list[int]()
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._sock.recv(1 << 16)
                while data:
                    length, kind = struct.unpack_from("=IH", data)
                    result.append(kind)
                    data = data[(length + 3) & ~3 :]
        return result


@pytest.fixture
def monitor(host: OpenvSwitch) -> Iterator[Monitor]:
    with host.namespace.inside():
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    with closing(sock):
        yield Monitor(sock)


def rows(host: OpenvSwitch) -> list[str]:
    """What OVSDB has in the columns that somebody sets."""
    columns = {
        "Open_vSwitch": "next_cfg",
        "Bridge": "_uuid,ports,external_ids,other_config,fail_mode",
        "Port": "_uuid,interfaces,tag,vlan_mode,cvlans,external_ids,other_config",
        "Interface": "_uuid,name,type,mac,mtu_request,ofport,external_ids,options",
    }
    return [host.vsctl(f"--columns={names}", "list", table) for table, names in columns.items()]


def is_tcp(frame: bytes) -> bool:
    protocol = {b"\x08\x00": 23, b"\x86\xdd": 20}.get(frame[12:14])
    return protocol is not None and frame[protocol] == socket.IPPROTO_TCP


def failures(agent: Agent) -> dict[str, float]:
    return {name: value for name, value in agent.metrics().items() if name.startswith(TRACKED)}


def one_round(host: OpenvSwitch) -> None:
    """Make the daemon check the whole side of the host: a removed rule comes back with it."""
    for six in (False, True):
        host.namespace.ip("rule del priority 32765", six=six)
        wait_for(lambda: "32765:" in host.namespace.ip("rule", six=six), "the rule")  # noqa: B023


def test_checks_of_a_host_at_rest_change_nothing(
    host: OpenvSwitch, agent: Agent, guest: Guest, monitor: Monitor
) -> None:
    asks_own(guest)
    one_round(host)
    wait_for(lambda: not monitor.take(), "the start to be over")
    before, metrics = rows(host), failures(agent)
    with Capture(host.namespace, SIDE.tap) as capture:
        for _ in range(ROUNDS):
            one_round(host)
        asks_own(guest)
        assert set(monitor.take()) == {NEW_RULE, DEL_RULE}
        assert [data for _, data in capture.frames() if not is_tcp(data)] == []
    assert rows(host) == before
    page = agent.admin("/").body.decode()
    assert "dfmeta_dropped_packets_total" not in page, "multicast of the start is no failure"
    assert failures(agent) == metrics
