"""Rates count a port, whatever its addresses are, and begin anew with its next guest."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.guest import Guest, Ids, Sample, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import put

PATH = "/latest/meta-data/hostname"
BASE = 10
ALL = "rate_limit_enabled"


def rates(base: int = BASE, seconds: int = 10, **others: object) -> Options:
    """Both windows the same, as by default."""
    windows = {
        "base_query_rate_limit": base,
        "burst_query_rate_limit": base,
        "base_window_duration": seconds,
        "burst_window_duration": seconds,
    }
    return {"metadata_rate_limiting": {ALL: True, **windows, **others}}


STRICT = rates(seconds=3600, delay_max=0, tolerated_queries=0)


def counts(samples: list[Sample]) -> Counter[int]:
    """How many of each status."""
    return Counter(sample.status for sample in samples)


def reload(agent: Agent, options: Options) -> None:
    """Have those options in force."""
    agent.configure(options)
    before = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > before, "the reload")


@pytest.fixture(scope="module")
def strict() -> Iterator[Agent]:
    """Ten, and then no more for an hour."""
    with OpenvSwitch() as switch, Agent(switch, STRICT) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture
def spent(strict: Agent) -> Iterator[Guest]:
    """A guest that has had its ten."""
    with Guest(strict.host, "spent") as guest:
        put(strict, guest)
        assert counts(guest.http_many(BASE + 5, path=PATH)) == {200: BASE, 429: 5}
        yield guest


@pytest.fixture
def strict_again(strict: Agent) -> Iterator[Agent]:
    """Back to the first rates after the test."""
    yield strict
    reload(strict, STRICT)


def test_another_address_of_the_same_port_has_no_count_of_its_own(spent: Guest) -> None:
    spent.add_address("10.0.0.77/24")
    assert spent.curl(PATH, source="10.0.0.77").status == 429
    spent.set_mac("fa:16:3e:00:77:77")
    assert spent.curl(PATH).status == 429


def test_a_new_guest_on_the_same_port_starts_afresh(strict: Agent, spent: Guest) -> None:
    another = uuid_of("instance another")
    spent.ids = Ids(iface_id=spent.ids.iface_id, vm_uuid=another)
    hostname = put(strict, spent, hostname="another.example.org")
    spent.set_external_ids(vm_uuid=another)
    wait_for(lambda: spent.curl(PATH).text == hostname, "the new guest to be known")
    assert set(counts(spent.http_many(BASE, path=PATH))) == {200, 429}


def test_sighup_changes_the_rates(strict_again: Agent, spent: Guest) -> None:
    reload(strict_again, rates(1000, 3600, delay_max=0, tolerated_queries=0))
    assert counts(spent.http_many(2 * BASE, path=PATH)) == {200: 2 * BASE}
    reload(strict_again, STRICT)
    assert spent.curl(PATH).status == 429
    reload(strict_again, {"metadata_rate_limiting": {ALL: False}})
    assert counts(spent.http_many(2 * BASE, path=PATH)) == {200: 2 * BASE}
