"""Ports that go by the dozen, after their devices have: nothing of theirs stays on the switch."""

from __future__ import annotations

from tests.harness.fixtures import MakeAgent
from tests.harness.guest import uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import FIXED_FLOWS

PORTS = 30
LEFT = ("131229", "65693")


def plug(host: OpenvSwitch) -> list[str]:
    """Ports of guests; their names."""
    names = [f"vm{number}" for number in range(PORTS)]
    for name in names:
        peer = f"p{name}"
        # Without a link a port is cut off, and not served.
        host.namespace.ip(f"link add {name} up type veth peer name {peer}", f"link set {peer} up")
    commands = []
    for name in names:
        ids = f"external_ids={{vm-uuid={uuid_of(name)}}}"
        commands += ["--", "add-port", BRIDGE, name, "--", "set", "Interface", name, ids]
    host.vsctl(*commands[1:])
    return names


def meters(host: OpenvSwitch) -> int:
    return host.ofctl("dump-meters", BRIDGE).count("type=drop")


def test_ports_whose_devices_have_vanished_leave_no_meter(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    names = plug(host)
    wait_for(lambda: agent.metric("dfmeta_ports", state="served") == PORTS, "the ports")
    wait_for(lambda: meters(host) == 2 * PORTS, "their meters")
    host.namespace.ip(*(f"link del {name}" for name in names))
    host.vsctl(*[word for name in names for word in ("--", "del-port", BRIDGE, name)][1:])
    wait_for(lambda: meters(host) == 0, "the meters to go")
    assert len(host.flows(match="cookie=0x64666d6500000000/0xffffffff00000000")) == FIXED_FLOWS


def test_meters_that_no_flow_uses_are_named_and_cleaned_up(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    """As a daemon leaves them that is killed between the flows' removal and theirs."""
    agent = make_agent()
    for number, rate in zip(LEFT, (1000, 50), strict=True):
        band = f"band=type=drop,rate={rate},burst_size={rate}"
        host.ofctl("add-meter", BRIDGE, f"meter={number},pktps,burst,{band}")
    host.ofctl("add-meter", BRIDGE, "meter=65694,kbps,burst,band=type=drop,rate=50,burst_size=50")
    (line,) = [one for one in agent.ctl("doctor").stdout.splitlines() if "meters" in one]
    assert line.startswith("ok")
    assert "no flow uses the meters 65693, 131229: " in line
    agent.stop()
    done = agent.clean_up()
    assert f"Removed {FIXED_FLOWS} flows and 2 meters" in done
    assert "meter=65694 kbps" in host.ofctl("dump-meters", BRIDGE)
    assert meters(host) == 1
