"""``dfmeta doctor`` where the daemon, a part of Open vSwitch or the bridge is away."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared, test_doctor
from tests.host.e2e.support import end_holders
from tests.host.e2e.test_doctor import apply, examine, faults, named, wrong

host, agent = shared.host, shared.agent_with()
_programs = test_doctor._programs

TAP = "tap-metadata"


def test_a_daemon_that_hangs_or_has_ended_is_named(host: OpenvSwitch, agent: Agent) -> None:
    agent.signal(signal.SIGSTOP)
    words = f"dfmeta-agent, process {agent.pid}, hangs: it does not answer"
    assert "`systemctl restart dfmeta-agent`" in wrong(agent, "daemon", words)
    for command in (["ports"], ["trace", TAP]):
        done = agent.ctl(*command, check=False)
        assert done.returncode
        assert (words in done.stderr) == (command == ["ports"]), done
    agent.signal(signal.SIGCONT)
    agent.stop()
    _, found = examine(agent)
    assert "start dfmeta-agent" in named(found, "daemon", "dfmeta-agent is not running")
    (line,) = [line for line in found if line["check"] == "listener"]
    assert line["status"] == "ok"
    assert "kept open for the next dfmeta-agent" in line["text"]
    end_holders(host)
    assert "start dfmeta-agent" in wrong(agent, "listener", "no process listens on")
    with host.namespace.open_socket() as admin, host.namespace.open_socket() as proxy:
        for other, place in ((admin, ("127.0.0.1", 9697)), (proxy, (METADATA_IP, 18080))):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(place)
            other.listen()
        name = Path("/proc/self/comm").read_text().strip()
        words = f"another program ({name}, pid {os.getpid()}) listens at 127.0.0.1:9697"
        _, found = examine(agent)
        assert "stop that program" in named(found, "daemon", "is not running", words)
        words = "another program listens on 169.254.169.254:18080"
        assert "stop it" in named(found, "listener", words)
    agent.start()
    assert {"daemon", "listener"}.isdisjoint(faults(examine(agent)[1]))


def test_a_part_of_open_vswitch_that_is_away_is_named_alone(
    host: OpenvSwitch, agent: Agent
) -> None:
    host.stop("ovsdb-server")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    _, found = examine(agent)
    assert "start Open vSwitch" in named(found, "ovsdb", f"OVSDB at {host.ovsdb_connection}")
    # Without OVSDB, ovs-vswitchd answers no OpenFlow, and sends no probe to the host.
    unsure = {"bridge", "tap", "foreign-flows", "flows", "path", "path-ipv6"}
    assert unsure < {line["check"] for line in found if line["status"] == "unknown"}
    assert faults(found) == {"daemon", "ovsdb", "openflow"}
    host.start("ovsdb-server")
    wait_for(agent.ready, "the daemon to be ready again")
    host.kill("ovs-vswitchd")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    _, found = examine(agent)
    assert "start Open vSwitch" in named(found, "vswitchd", "ovs-vswitchd at")
    named(found, "socket", "no program accepts connections", "Connection refused")
    named(found, "device", f"{TAP} has no carrier")
    assert faults(found) == {"daemon", "vswitchd", "socket", "device"}
    host.start("ovs-vswitchd")
    wait_for(lambda: examine(agent)[0] == 0, "everything to be ok again")


def test_the_bridge_and_tap_are_gone(host: OpenvSwitch, agent: Agent) -> None:
    agent.stop()
    host.vsctl("del-br", BRIDGE)
    _, found = examine(agent)
    named(found, "tap", f"{TAP} is not a port of {BRIDGE}")
    apply(host, named(found, "bridge", f"there is no bridge {BRIDGE}"))
    host.vsctl("set", "Bridge", BRIDGE, "datapath_type=netdev")
    _, found = examine(agent)
    assert "bridge" not in faults(found)
    assert "start dfmeta-agent" in named(found, "tap", f"{TAP} is not a port of {BRIDGE}")
    agent.start()
    assert examine(agent)[0] == 0
