"""Another bridge in the configuration should be one line with its command."""

import re
import shlex
import subprocess

from tests.harness.agent import Agent, program
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import ADDRESS_FLOWS, FIXED_FLOWS, PORT_FLOWS, asks_own, holders, put
from tests.host.e2e.test_changing import OTHER, TAP, fails, left

_COMMAND = re.compile(r"(OS_DF_METADATA__INTEGRATION_BRIDGE=\S+ dfmeta-agent .*--cleanup)")


def types(agent: Agent, line: str) -> subprocess.CompletedProcess[str]:
    """The command of a line, typed as it stands there."""
    found = _COMMAND.search(line)
    assert found is not None, line
    variable, _program, *arguments = shlex.split(found[1])
    command = ["env", variable, *program("dfmeta-agent"), *arguments]
    return agent.host.namespace.run(command, check=False)


def test_another_bridge_is_one_line_whose_command_makes_way(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    agent.stop()
    host.add_bridge(OTHER)
    agent.configure({"df_metadata": {"integration_bridge": OTHER}})
    before = left(host)
    line = fails(agent, f"{TAP} is a port of {BRIDGE}, which dfmeta has served before", OTHER)
    assert left(host) == before
    assert len(holders(host)) == 1
    done = types(agent, line)
    assert done.returncode == 0, done.stderr
    count = FIXED_FLOWS + PORT_FLOWS + ADDRESS_FLOWS
    assert f"Removed {count} flows" in done.stderr
    wait_for(lambda: not holders(host), "the holder's end")
    agent.start()
    assert TAP in host.ports(OTHER)
    guest.del_port()
    guest.bridge = OTHER
    guest.plug()
    asks_own(guest)


CHANGES: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    ("metadata_interface", "tap-meta2", (f"oif {TAP}",)),
    ("host_ip", "169.254.1.1", ("from 169.254.169.254", "inet 169.254.169.254")),
    ("host_ip6", "fd00:a9fe:a9fe:a9fe::77", ("a9fe::a9fe/128",)),
    ("route_table", 7, ("lookup 2", "table 2")),
)


def test_a_start_removes_what_the_former_configuration_has_made(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    for count, (option, value, gone) in enumerate(CHANGES, 1):
        agent.stop()
        agent.configure({"df_metadata": {option: value}})
        agent.start()
        asks_own(guest)
        removed = "Removed leftovers of the former configuration: "
        assert agent.log().count(removed) == count, option
        seen = host.namespace.ip("rule", "address", "route show table all")
        assert str(value) in seen
        assert [one for one in gone if one in seen] == []
        assert [name for name in host.ports() if name.startswith("tap-m")] == ["tap-meta2"]
    agent.restart()
    asks_own(guest)
    assert agent.log().count(removed) == len(CHANGES)
