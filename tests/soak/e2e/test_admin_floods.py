"""A flood of the admin listener should cost no guest its answer, and not the host's memory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import netns
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.netns import ROOT
from tests.host.e2e.support import META_DATA, asks_own, put, resident, uuid_in
from tests.host.store.admin_flood import KINDS

ASKED = 20
"""Requests of a known guest meanwhile."""
MEBIBYTE = 1024
"""In KiB."""
GROWN = 150 * MEBIBYTE
"""What connections, bodies and answers may take in all, and what Python does not give back."""


@contextmanager
def flooded(agent: Agent, kind: str) -> Iterator[None]:
    """Flood the admin listener as user nobody until the block ends."""
    command = [sys.executable, "-m", "tests.host.store.admin_flood", kind, "9697"]
    process = agent.host.namespace.spawn(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"begun\n"
        yield
        assert process.poll() is None, "it has ended by itself"
    finally:
        process.stdout.close()
        netns.end(process)


@pytest.mark.parametrize("kind", KINDS)
def test_no_guest_notices_a_flood_of_the_admin_listener(
    make_agent: MakeAgent, make_guest: MakeGuest, kind: str
) -> None:
    agent = make_agent()
    known, new = make_guest("known"), make_guest("new", address="10.0.0.6/24")
    for guest in (known, new):
        put(agent, guest)
    asks_own(known)
    before = resident(agent)
    with flooded(agent, kind):
        samples = known.http_many(ASKED, path=META_DATA)
        assert {(sample.status, uuid_in(sample.body)) for sample in samples} == {
            (200, known.instance_id)
        }
        assert len(samples) == ASKED
        # Its address is learnt meanwhile.
        asks_own(new)
        assert agent.admin("/healthz").json() == {"status": "UP"}
        assert resident(agent) - before < GROWN
    assert agent.admin("/healthz/readiness").status == 200
    assert "Traceback" not in agent.log()
