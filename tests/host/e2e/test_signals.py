"""SIGTERM and SIGHUP."""

from __future__ import annotations

import signal

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    META_DATA,
    NOVA_OPTIONS,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_all,
)

REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n".encode()


@pytest.fixture
def guest(nova_agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    one = make_guest("one", ids=project_ids("one"))
    put_nova(nova, one)
    asks_own(one)
    nova.clear()
    return one


def test_a_running_request_is_answered_before_the_end(
    nova_agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.fault(delay=1.0)
    batch = guest.start_many(1)
    wait_for(nova.requests, "the request to reach Nova")
    nova_agent.signal(signal.SIGTERM)
    (sample,) = batch.samples()
    assert (sample.status, sample.error) == (200, "")
    assert nova_agent.wait(5) == 0


def test_a_held_request_is_closed_and_the_daemon_ends_within_five_seconds(
    nova_agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova_agent.configure({"df_metadata": {"hold_timeout": 30}})
    nova_agent.signal(signal.SIGHUP)
    wait_for(lambda: "Reloaded" in nova_agent.log(), "the new hold_timeout")
    nova.fault(delay=20)
    batch = guest.start_many(1, timeout=20)
    wait_for(nova.requests, "the request to reach Nova")
    nova_agent.stop(5)
    (sample,) = batch.samples()
    assert sample.status == 0
    assert "timed out" not in sample.error


def test_an_idle_connection_is_closed_and_does_not_delay_the_end(
    nova_agent: Agent, guest: Guest
) -> None:
    with open_connection(guest) as kept:
        kept.sendall(REQUEST)
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        nova_agent.stop(3)
        assert read_all(kept) == b""


def test_a_connection_that_was_open_before_sigterm_is_still_answered(
    nova_agent: Agent, guest: Guest
) -> None:
    with open_connection(guest) as fresh:
        wait_for(lambda: connections(nova_agent) == 1, "the connection to be accepted")
        nova_agent.signal(signal.SIGTERM)
        wait_for(lambda: "dfmeta-agent ends" in nova_agent.log(), "the end to begin")
        fresh.sendall(REQUEST)
        assert read_all(fresh).startswith(b"HTTP/1.1 200")
        assert nova_agent.wait(3) == 0


def connections(agent: Agent) -> int:
    rows = agent.admin("/ports").json()
    return sum(one["connections"] for row in rows for one in row["addresses"])


def test_sigint_ends_it_too(nova_agent: Agent) -> None:
    nova_agent.signal(signal.SIGINT)
    assert nova_agent.wait(5) == 0


def test_sigterm_before_it_is_ready_ends_it_with_0(make_agent: MakeAgent) -> None:
    agent = make_agent({"df_metadata": {"integration_bridge": "br-none"}}, start=False)
    agent.start(wait=False)
    wait_for(lambda: "starts" in agent.log(), "the daemon to start")
    agent.stop()


def test_sighup_reloads_and_keeps_what_is_in_force_when_a_value_is_wrong(
    make_agent: MakeAgent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    agent = make_agent(
        {**NOVA_OPTIONS, "DEFAULT": {"metadata_proxy_shared_secret": "another secret"}}
    )
    guest = make_guest("one", ids=project_ids("one"))
    put_nova(nova, guest)
    assert guest.curl(META_DATA).status == 403

    agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": SECRET}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: guest.curl(META_DATA).status == 200, "the new secret to be used")

    agent.configure(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": "wrong again"},
            "df_metadata": {"hold_timeout": "soon"},
        }
    )
    agent.signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded" in agent.log(), "the daemon to refuse")
    line = next(line for line in agent.log().splitlines() if "Not reloaded" in line)
    assert "[df_metadata] hold_timeout" in line
    assert "'soon'" in line
    asks_own(guest)

    agent.configure(
        {
            "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
            "df_metadata": {"hold_timeout": 0.3},
        }
    )
    reloads = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > reloads, "the new hold_timeout")
    nova.away()
    # The default would hold it for 8 s.
    assert guest.curl("/", timeout=4).status == 503
    assert SECRET not in agent.log()
    assert "Traceback" not in agent.log()
