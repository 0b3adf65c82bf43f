"""A start on what another release has left should cost no guest its answer."""

import re

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.e2e.support import META_DATA, asks_own, open_connection, read_all, uuid_in

COOKIE = re.compile(r"cookie=0x64666d65([0-9a-f]{2})([0-9a-f]{6})")
VERSIONS = {"older": 0, "newer": 2}
REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode()


def versions(host: OpenvSwitch) -> set[int]:
    """Format versions in the cookies of our flows."""
    return {int(match[1], 16) for flow in host.flows() if (match := COOKIE.search(flow))}


def rewrite(host: OpenvSwitch, version: int) -> None:
    """Have our flows be those of a release with another format."""
    saved = host.ofctl("dump-flows", "--no-stats", BRIDGE).splitlines()
    ours = [line.strip() for line in saved if COOKIE.search(line)]
    assert ours
    new = [COOKIE.sub(rf"cookie=0x64666d65{version:02x}\2", line) for line in ours]
    # A flow at the same place is replaced, and its cookie with it.
    host.ofctl("add-flows", BRIDGE, "-", stdin="".join(f"{line}\n" for line in new))
    assert versions(host) == {version}


@pytest.mark.parametrize("which", VERSIONS)
def test_flows_of_another_format_are_replaced_and_guests_that_keep_asking_are_answered(
    host: OpenvSwitch, agent: Agent, guest: Guest, which: str
) -> None:
    agent.stop()
    before = len(host.flows())
    rewrite(host, VERSIONS[which])
    with open_connection(guest) as waiting:
        waiting.sendall(REQUEST)
        batch = guest.start_many(200, 2)
        agent.start()
        answer = read_all(waiting)
    asks_own(guest)
    samples = batch.samples()
    assert {(s.status, uuid_in(s.body)) for s in samples} == {(200, guest.instance_id)}
    assert versions(host) == {1}
    assert len(host.flows()) == before
    assert guest.instance_id.encode() in answer
    assert agent.metric("dfmeta_packet_ins_total") == 0, "its address was known"
