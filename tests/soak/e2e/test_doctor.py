"""``dfmeta doctor`` where the daemon, a part of Open vSwitch or the bridge is away or in trouble.

tests/core/unit/inspect has the judgements on facts.
"""

import json
import os
import re
import shlex
import signal
import socket
from pathlib import Path

from dfmeta.proxy.tokens import TOKEN_HEADER
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared, test_doctor
from tests.host.e2e.support import asks_own, end_holders, is_unanswered, put, served
from tests.host.e2e.test_doctor import apply, examine, faults, lines, named, wrong

host, agent = shared.host, shared.agent_with()
_programs = test_doctor._programs

TAP = "tap-metadata"
FAIL_OPEN = "priority 15790320"


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


def missing(agent: Agent) -> list[str]:
    """The parts that readiness names."""
    return list(json.loads(agent.admin("/healthz/readiness").text).get("missing", ()))


def causes(agent: Agent, *checks: str) -> dict[str, str]:
    """The status of each of these checks."""
    return {line["check"]: line["status"] for line in examine(agent)[1] if line["check"] in checks}


def test_flow_of_a_bridge_that_has_lost_its_controller_is_named(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    put(agent, guest)
    asks_own(guest)
    host.vsctl("set-fail-mode", BRIDGE, "standalone")
    host.vsctl("set-controller", BRIDGE, "tcp:127.0.0.1:1")
    wait_for(lambda: FAIL_OPEN in host.trace("in_port=LOCAL"), "the switch to fail open")
    wait_for(lambda: missing(agent) == ["path"], "the daemon to notice")
    assert is_unanswered(guest)
    _, found = examine(agent)
    remedy = named(found, "fail-mode", "takes all packets", "tcp:127.0.0.1:1")
    path = next(line for line in found if line["check"] == "path")
    assert (path["status"], "fail-mode" in path["text"]) == ("unknown", True)
    command = f"set-fail-mode {BRIDGE} secure"
    wait_for(lambda: command in agent.log(), "the log to name the remedy")
    apply(host, remedy)
    wait_for(lambda: served(guest), "the guest to be served again")
    wait_for(lambda: agent.ready() and examine(agent)[0] == 0, "everything to be ok")
    host.vsctl("del-controller", BRIDGE)


def test_full_table_is_not_the_guests_fault(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    before = make_guest()
    put(agent, before)
    asks_own(before)
    used = len(host.flows(match="table=200"))
    limit = f"flow_limit={used}"
    create = ("--", "--id=@limit", "create", "Flow_Table", limit, "overflow_policy=refuse")
    host.vsctl(*create, "--", "set", "Bridge", BRIDGE, "flow_tables:200=@limit")
    guest = make_guest()
    put(agent, guest)

    def fault() -> str:
        rows = json.loads(agent.ctl("ports", "--format", "json").stdout)
        return next(str(row["fault"]) for row in rows if row["port"] == guest.port)

    wait_for(fault, "the daemon to notice")
    assert is_unanswered(guest)
    assert "the switch refuses flows of the port" in fault()
    assert "TABLE_FULL" in fault()
    named(examine(agent)[1], "flows", "are missing")
    host.vsctl("clear", "Bridge", BRIDGE, "flow_tables")
    wait_for(lambda: served(guest), "the guest to be served")


def test_restoration_that_never_ends_is_named_at_once(
    host: OpenvSwitch, agent: Agent, make_guest: MakeGuest
) -> None:
    guest = make_guest()
    put(agent, guest)
    asks_own(guest)
    host.vsctl("set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
    checks = ("flow-restore-wait", "path")
    assert causes(agent, *checks) == {"flow-restore-wait": "warning", "path": "ok"}
    assert agent.ready(), "only a start of ovs-vswitchd reads it"
    host.restart("ovs-vswitchd")
    wait_for(lambda: missing(agent) == ["flow-restore-wait"], "the flows to be on the switch")
    assert is_unanswered(guest)
    assert missing(agent) == ["flow-restore-wait"]
    _, found = examine(agent)
    remedy = named(found, "flow-restore-wait", "ovs-vswitchd forwards nothing")
    path = next(line for line in found if line["check"] == "path")
    assert (path["status"], "flow-restore-wait" in path["text"]) == ("unknown", True)
    end = agent.ctl("trace", guest.port, check=False).stdout.splitlines()[-1]
    assert end.startswith("Stops at the switch: ovs-vswitchd forwards nothing")
    apply(host, remedy)
    wait_for(lambda: served(guest), "the guest to be served again")
    wait_for(agent.ready, "readiness")
    assert examine(agent)[0] == 0


def is_ok(agent: Agent, check: str) -> bool:
    """Whether all the lines of that check are ok."""
    found = lines(agent, check)
    return bool(found) and all(line["status"] == "ok" for line in found)


def run_dfmeta(agent: Agent, remedy: str, **placeholders: str) -> None:
    """Run the remedy's first command, which is one of dfmeta's own."""
    found = re.search(r"`dfmeta ([^`]+)`", remedy)
    assert found, remedy
    command = found[1]
    for name, value in placeholders.items():
        command = re.sub(f"<{name}[^>]*>", value, command)
    agent.ctl(*shlex.split(command))


def test_a_guest_that_fails_is_named_until_the_remedy_has_it_served(
    agent: Agent, make_guest: MakeGuest
) -> None:
    served, failing = make_guest("served"), make_guest("failing")
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
    assert len(table) == 3
    assert f"`dfmeta store put {failing.instance_id} " in table[2]
    assert re.search(r"served +fails since [0-9:]+ UTC: 404, 2 times: no record$", table[1])
    run_dfmeta(agent, remedy, name="failing.example.org")
    assert failing.curl("/latest/meta-data/hostname").text == "failing.example.org"
    assert is_ok(agent, "guests")
    assert len(agent.ctl("ports", "--failing").stdout.splitlines()) == 1
    assert re.search(r"  200, \d+ (s|min) ago$", agent.ctl("ports").stdout, re.MULTILINE)

    assert re.search(
        r"^\d+ ok, \d+ warnings?, 0 wrong", agent.ctl("doctor").stdout.splitlines()[-1]
    )
    agent.ctl("store", "delete", served.instance_id)
    assert served.curl("/openstack/latest/user_data").status == 404
    assert f"store put {served.instance_id} " in wrong(agent, "guests", "(no record)", served.port)
    assert served.port in agent.ctl("ports", "--failing").stdout
    *found, last = agent.ctl("doctor", "--failing", check=False).stdout.splitlines()
    assert [line.split()[0] for line in found if not line.startswith(("STATUS", "unknown"))] == [
        *["warning"] * sum(line.startswith("warning") for line in found),
        "wrong",
    ]
    assert ", 1 wrong" in last
