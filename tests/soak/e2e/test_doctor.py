"""``dfmeta doctor`` where Open vSwitch itself forwards nothing, or not what it should."""

import json

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared, test_doctor
from tests.host.e2e.support import asks_own, is_unanswered, put, served
from tests.host.e2e.test_doctor import apply, examine, named

host, agent = shared.host, shared.agent_with()
_programs = test_doctor._programs

FAIL_OPEN = "priority 15790320"


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
    _, result = examine(agent)
    remedy = named(result, "fail-mode", "takes all packets", "tcp:127.0.0.1:1")
    path = next(line for line in result if line["check"] == "path")
    assert (path["status"], "fail-mode" in path["text"]) == ("unknown", True)
    command = f"set-fail-mode {BRIDGE} secure"
    wait_for(lambda: command in agent.log(), "the log to name the remedy")
    apply(host, remedy)
    wait_for(lambda: served(guest), "the guest to be served again")
    wait_for(lambda: agent.ready() and examine(agent)[0] == 0, "everything to be ok")
    host.vsctl("del-controller", BRIDGE)


def test_full_table_is_named(host: OpenvSwitch, agent: Agent, make_guest: MakeGuest) -> None:
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


def test_endless_restore_is_named(host: OpenvSwitch, agent: Agent, make_guest: MakeGuest) -> None:
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
    _, result = examine(agent)
    remedy = named(result, "flow-restore-wait", "ovs-vswitchd forwards nothing")
    path = next(line for line in result if line["check"] == "path")
    assert (path["status"], "flow-restore-wait" in path["text"]) == ("unknown", True)
    end = agent.ctl("trace", guest.port, check=False).stdout.splitlines()[-1]
    assert end.startswith("Stops at the switch: ovs-vswitchd forwards nothing")
    apply(host, remedy)
    wait_for(lambda: served(guest), "the guest to be served again")
    wait_for(agent.ready, "readiness")
    assert examine(agent)[0] == 0
