"""Open vSwitch's own restart saves and restores the flows of a bridge: all of all programs."""

import contextlib
import re
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from tests.harness import netns
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import BRIDGE, UNPACKED, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, put

OVS_SAVE = UNPACKED / "usr/share/openvswitch/scripts/ovs-save"
OURS = "cookie=0x64666d65"
OTHERS = (
    "cookie=0x77,priority=10,udp,tp_dst=4789,actions=drop",
    "cookie=0x77,table=60,priority=3,arp,actions=normal",
    "cookie=0x77,table=71,priority=95,icmp6,icmp_type=135,actions=drop",
    "cookie=0x77,priority=301,dl_type=0x88cc,actions=drop",
)
"""Flows of another program, as of one that protects against spoofing."""


def flows(host: OpenvSwitch, *, ours: bool) -> Counter[str]:
    """Return dfmeta's flows, or those of all other programs."""
    lines = host.ofctl("--no-stats", "dump-flows", BRIDGE).splitlines()
    return Counter(line.strip() for line in lines if "actions=" in line and (OURS in line) == ours)


def restart_open_vswitch(host: OpenvSwitch, folder: Path) -> None:
    """Restart both daemons in the order of ``ovs-ctl restart``, with the flows saved before."""
    path = f"{UNPACKED / 'usr/bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {**host.environment(), "PATH": path, "TMPDIR": str(folder)}
    with host.namespace.inside():
        saved = netns.run(["sh", str(OVS_SAVE), "save-flows", BRIDGE], env=env).stdout
    assert "replace-flows" in saved
    host.restart("ovsdb-server")
    host.stop("ovs-vswitchd")
    wait = ("Open_vSwitch", ".", "other_config")
    host.vsctl("set", *wait[:2], f"{wait[2]}:flow-restore-wait=true", wait=False)
    host.start("ovs-vswitchd")
    with host.namespace.inside():
        done = netns.run(["sh", "-c", saved], env=env)
    assert "OFP" not in done.stdout + done.stderr, "a refusal of the switch"
    host.vsctl("--if-exists", "remove", *wait, "flow-restore-wait", wait=False)


def drops_first_syns(host: OpenvSwitch, guest: Guest) -> bool:
    """Return whether the flow of a guest's first SYNs drops them."""
    result = host.flows(match=f"table=200,in_port={guest.ofport},tcp")
    return any(re.search(r"priority=100,.*actions=drop", flow) for flow in result)


@pytest.mark.parametrize("state", ["stopped", "flood"])
def test_flows_of_all_programs_survive_the_restart_of_open_vswitch(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    tmp_path: Path,
    state: Literal["stopped", "flood"],
) -> None:
    for flow in OTHERS:
        host.ofctl("add-flow", BRIDGE, flow)
    agent = make_agent()
    guest, other = make_guest("one"), make_guest("two", address="10.0.0.6/24")
    for guest_ in (guest, other):
        put(agent, guest_)
        asks_own(guest_)
    others, ours = flows(host, ours=False), flows(host, ours=True)
    assert len(others) == len(OTHERS) + 1
    with contextlib.ExitStack() as stack:
        if state == "stopped":
            agent.stop()
        if state == "flood":
            stack.enter_context(guest.flood("forged", rate=2000, seconds=600))
            wait_for(lambda: drops_first_syns(host, guest), "the flood to be dropped")
        restart_open_vswitch(host, tmp_path)
        assert flows(host, ours=False) == others
        if state == "stopped":
            assert flows(host, ours=True) == ours
            agent.start()
        asks_own(other)
        assert flows(host, ours=False) == others
    wait_for(agent.ready, "the daemon to be ready")
    asks_own(guest)
    assert flows(host, ours=False) == others
