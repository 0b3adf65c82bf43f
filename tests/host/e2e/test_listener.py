"""The guests' listener without systemd: every start finds it, and its holder ends by itself."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dfmeta.proxy import holder
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import (
    META_DATA,
    PROXY_PORT,
    Attempt,
    Capture,
    asks_own,
    holders,
    open_connection,
    read_all,
)

REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode()
ELSEWHERE = {"integration_bridge": "br-other", "metadata_interface": "tap-other"}
TAKEN = "Took over the listener of an earlier run"
FORMER = """
import array, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("\\0dfmeta-listener " + sys.argv[1])
server.listen(4)
while True:
    connection, _ = server.accept()
    while message := connection.recv(16):
        if message == b"take":
            rights = array.array("i", [int(sys.argv[2])])
            connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        elif message == b"drop":
            sys.exit()
        else:
            break
    connection.close()
"""
"""The holder of the release before, as far as the daemons after it need it."""


def named(host: OpenvSwitch) -> set[str]:
    """Names of the holders in the abstract namespace."""
    return set(re.findall(r"@(dfmeta-listener \w+)", host.namespace.run(["ss", "-xlH"]).stdout))


def spelt(agent: Agent, how: str) -> str:
    """OVSDB's socket by another name."""
    path = Path(agent.host.ovsdb_connection.removeprefix("unix:"))
    link = agent.folder / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(path.parent)
    return {
        "symlink": f"unix:{link}/{path.name}",
        "parent": f"unix:{path.parent}/../{path.parent.name}/{path.name}",
        "slashes": f"unix:/{path.parent}//{path.name}",
    }[how]


@contextmanager
def kept_waiting(agent: Agent, guest: Guest) -> Iterator[None]:
    """A guest connects while no daemon runs; it is answered by the one that starts inside."""
    with open_connection(guest) as waiting:
        waiting.sendall(REQUEST)
        yield
        assert guest.instance_id.encode() in read_all(waiting)
    asks_own(guest)
    assert agent.log().count(TAKEN) == 1


@pytest.mark.parametrize("how", ["symlink", "parent", "slashes"])
def test_a_start_by_another_name_of_the_database_takes_the_listener_over(
    host: OpenvSwitch, agent: Agent, guest: Guest, how: str
) -> None:
    agent.stop()
    (before,) = holders(host)
    agent.configure({"df_metadata": {"ovsdb_connection": spelt(agent, how)}})
    with kept_waiting(agent, guest):
        agent.start()
    assert holders(host) == [before]


@pytest.mark.parametrize("change", ["symlink", "bridge", "state"])
def test_cleanup_ends_the_holder_whatever_has_changed_since(
    host: OpenvSwitch, agent: Agent, guest: Guest, change: str
) -> None:
    agent.stop()
    if change == "symlink":
        agent.configure({"df_metadata": {"ovsdb_connection": spelt(agent, change)}})
    else:
        host.add_bridge("br-other")
        agent.configure({"df_metadata": ELSEWHERE})
    if change == "state":
        (agent.state_path / "state.json").unlink()
    agent.clean_up()
    wait_for(lambda: not holders(host), "the holder's end")
    with host.namespace.open_socket() as free:
        free.bind(("0.0.0.0", PROXY_PORT))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_start_on_another_bridge_takes_the_listener_over(
    host: OpenvSwitch, agent: Agent, guest: Guest, end: str
) -> None:
    agent.stop() if end == "stop" else agent.kill()
    host.add_bridge("br-other")
    guest.del_port()
    guest.bridge = "br-other"
    guest.plug()
    (before,) = named(host)
    agent.configure({"df_metadata": ELSEWHERE})
    agent.start()
    asks_own(guest)
    assert agent.log().count(TAKEN) == 1
    wait_for(lambda: len(holders(host)) == 1, "the end of the holder of before")
    assert named(host) != {before}


def test_a_listener_that_stands_elsewhere_now_is_let_go(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    agent.stop()
    group, option = SIDE.port_option
    agent.configure({group: {option: 18081}})
    agent.start()
    asks_own(guest)
    lines = [
        one for one in agent.log().splitlines() if "Closed the listener of an earlier run" in one
    ]
    for line, place in zip(lines, (SIDE.ip, f"[{SIDE.ip6}]"), strict=True):
        assert f"{place}:{PROXY_PORT}" in line
    with host.namespace.open_socket() as free:
        free.bind(("0.0.0.0", PROXY_PORT))
    assert len(holders(host)) == 1


def test_a_holder_of_the_release_before_gives_the_listener(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    """Its name was a hash of the option as it was spelt."""
    agent.stop()
    spelling = f"{host.ovsdb_connection} br-int"
    former = hashlib.sha256(spelling.encode()).hexdigest()[:32]
    (today,) = named(host)
    with host.namespace.open_socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.connect(f"\0{today}")
        daemon.send(holder.TAKE)
        _message, (fd,) = holder.receive(daemon)
        before = host.namespace.spawn(
            [sys.executable, "-c", FORMER, former, str(fd)], pass_fds=(fd,)
        )
        daemon.send(holder.DROP)
    os.close(fd)
    wait_for(lambda: named(host) == {f"dfmeta-listener {former}"}, "the holder of before")
    with kept_waiting(agent, guest):
        agent.start()
    assert before.wait(5) == 0
    assert named(host) == {today}


def test_two_daemons_on_two_bridges_leave_each_other_the_listener(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_agent: MakeAgent
) -> None:
    host.add_bridge("br-other")
    second = make_agent(
        {
            "df_metadata": {
                **ELSEWHERE,
                "host_ip": "169.254.1.1",
                "host_ip6": "fd00:a9fe:a9fe:a9fe::101",
                "route_table": 3,
                "admin_listen": "127.0.0.1:9698",
            }
        },
        start=False,
    )
    second.admin_port = 9698
    second.start()
    both = set(holders(host))
    assert len(both) == 2
    agent.stop()
    second.restart()
    with kept_waiting(agent, guest):
        agent.start()
    assert set(holders(host)) == both
    second.stop()
    assert agent.run("--cleanup").returncode == 1
    second.clean_up()
    wait_for(lambda: len(holders(host)) == 1, "the second one's end")
    asks_own(guest)
    agent.restart()
    asks_own(guest)


# Its end


@pytest.fixture
def short(agent: Agent, guest: Guest) -> Guest:
    """A guest of a daemon whose holder waits for a second."""
    agent.configure({"df_metadata": {"listener_keep": 1}})
    agent.restart()
    asks_own(guest)
    return guest


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_holder_ends_and_guests_wait_for_the_next_start(
    host: OpenvSwitch, agent: Agent, short: Guest, end: str
) -> None:
    agent.stop() if end == "stop" else agent.kill()
    wait_for(lambda: not holders(host), "the holder's end")
    with Capture(short.namespace, short.device) as capture, Attempt(short) as attempt:
        wait_for(lambda: len(capture.syns()) > 1, "the guest to repeat its SYN")
        assert not [one for one in capture.segments() if one.is_reset]
        agent.start()
        assert attempt.connected_after(30) is not None
        assert not [one for one in capture.segments() if one.is_reset]
    asks_own(short)
    assert len(holders(host)) == 1
    assert agent.metric("dfmeta_packet_ins_total") == 0


def test_starts_about_the_time_of_the_holders_end_all_succeed(
    host: OpenvSwitch, agent: Agent, short: Guest
) -> None:
    """A start takes about as long as that holder waits: either may be first."""
    for _ in range(4):
        agent.kill()
        agent.start()
        asks_own(short)
    wait_for(lambda: len(holders(host)) == 1, "the end of the holder of before")
