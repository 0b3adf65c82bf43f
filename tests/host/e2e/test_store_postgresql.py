"""A host whose store is in PostgreSQL should serve its guests, and say when it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres
from tests.host.e2e.support import META_DATA, put, uuid_in


@pytest.fixture
def server(host: OpenvSwitch) -> Iterator[Postgres]:
    with Postgres(address="127.0.0.1", namespace=host.namespace) as started:
        yield started


@pytest.fixture
def agent(server: Postgres, make_agent: MakeAgent) -> Agent:
    return make_agent({"store": {"connection": server.create_database()}})


@pytest.fixture
def guest(agent: Agent, make_guest: MakeGuest) -> Guest:
    made = make_guest()
    put(agent, made)
    return made


def test_a_lost_database_is_missing_in_readiness_until_it_is_back(
    agent: Agent, guest: Guest, server: Postgres
) -> None:
    assert guest.curl(META_DATA).status == 200
    server.kill()
    answer = agent.admin("/healthz/readiness")
    assert (answer.status, answer.json()) == (503, {"status": "DOWN", "missing": ["store"]})
    assert guest.curl("/latest/meta-data/instance-id").status == 503
    server.start()
    wait_for(lambda: agent.admin("/healthz/readiness").status == 200, "the store to be back")
    assert uuid_in(guest.curl(META_DATA).body) == guest.instance_id


def test_a_daemon_whose_database_is_away_at_the_start_waits_for_it(
    server: Postgres, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    url = server.create_database()
    server.stop()
    agent = make_agent({"store": {"connection": url}}, start=False)
    agent.start(wait=False)
    wait_for(lambda: _missing(agent) == ["store"], "nothing but the store to be missing")
    server.start()
    wait_for(lambda: _missing(agent) == [], "the store to be there")
    guest = make_guest()
    put(agent, guest)
    assert uuid_in(guest.curl(META_DATA).body) == guest.instance_id


def _missing(agent: Agent) -> list[str] | None:
    try:
        answer = agent.admin("/healthz/readiness").json()
    except OSError:
        return None
    missing: list[str] = answer.get("missing", [])
    return missing
