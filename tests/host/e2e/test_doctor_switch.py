"""What ovs-vswitchd itself does to all packets should be named, with the command that ends it.

tests/core/unit/inspect has the judgements on facts; those that Open vSwitch takes half a minute for
are in tests/soak.
"""

from __future__ import annotations

import json

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, is_unanswered, put, served
from tests.host.e2e.test_doctor import apply, examine, named

host, agent = shared.host, shared.agent_with()


def missing(agent: Agent) -> list[str]:
    """The parts that readiness names."""
    return list(json.loads(agent.admin("/healthz/readiness").text).get("missing", ()))


def causes(agent: Agent, *checks: str) -> dict[str, str]:
    """The status of each of these checks."""
    return {line["check"]: line["status"] for line in examine(agent)[1] if line["check"] in checks}


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
