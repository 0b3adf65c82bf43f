"""Rates: a boot is slowed down at most, abuse is refused, and other guests do not notice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Ids, Reply, Sample, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import KEY, META_DATA, put, uuid_in

StartBoot = Callable[..., Booting]
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


def delayed(agent: Agent) -> float:
    """How many requests were."""
    return agent.metric("dfmeta_delayed_requests_total")


def refused(agent: Agent) -> float:
    """How many requests were."""
    return agent.metric("dfmeta_refused_requests_total", reason="rate")


def reload(agent: Agent, options: Options) -> None:
    """Have those options in force."""
    agent.configure(options)
    before = agent.log().count("Reloaded")
    agent.signal(signal.SIGHUP)
    wait_for(lambda: agent.log().count("Reloaded") > before, "the reload")


def test_a_boot_above_the_rate_is_delayed_and_whole(
    make_agent: MakeAgent, make_guest: MakeGuest, cloud_init: StartBoot
) -> None:
    """At Neutron's own rate it takes 18 s more; here the rate is 20 in 5 s."""
    agent = make_agent(rates(20, 5))
    guest = make_guest("web")
    user_data = agent.folder / "user-data"
    user_data.write_text("#!/bin/sh\nhostname > /run/ran-on\n")
    put(agent, guest, "--ssh-key", KEY, "--user-data", str(user_data))
    # As a first try that failed would leave it: the boot begins with nothing to spare.
    assert counts(guest.http_many(20, path=PATH)) == {200: 20}
    boot = cloud_init(guest, files=["/run/ran-on"]).finish()
    assert boot.errors == []
    assert boot.datasource == "OpenStack"
    assert boot.authorized_keys.splitlines()[0] == KEY
    assert boot.user_data == user_data.read_bytes()
    assert boot.files["/run/ran-on"].strip().partition(".")[0] == guest.name
    assert delayed(agent) > 0
    assert refused(agent) == 0
    assert agent.metric("dfmeta_requests_total", status="5xx") == 0


def test_who_asks_serially_is_delayed_and_who_does_not_care_is_refused(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    """Neutron's own rates; fewer are tolerated above them than by default, so that it is quick."""
    agent = make_agent({"metadata_rate_limiting": {ALL: True, "tolerated_queries": 4}})
    abuser, serial, other = (make_guest(name) for name in ("abuser", "serial", "other"))
    for guest in (abuser, serial, other):
        put(agent, guest)
    abuse = abuser.start_many(100_000, 16, path=PATH)
    try:
        assert counts(serial.http_many(BASE + 2, path=META_DATA)) == {200: BASE + 2}
        assert delayed(agent) > 0
        reply = wait_for(lambda: refusal(abuser), "the abuser to be refused")
        # Below the rate, at the same time.
        samples = other.http_many(BASE, path=META_DATA)
        assert counts(samples) == {200: BASE}
        assert {uuid_in(sample.body) for sample in samples} == {other.instance_id}
    finally:
        taken = abuse.finish()
    assert reply.text == "429 Too Many Requests\n"
    assert int(reply.header("Retry-After")) >= 1
    assert set(counts(taken)) == {200, 429}
    assert {sample.body for sample in taken if sample.status == 200} == {b"abuser.example.org"}
    assert refused(agent) > counts(taken)[429]
    # Once a minute, however many there were.
    assert agent.log().count("refused with 429") == 1


def refusal(guest: Guest) -> Reply | None:
    """An answer of a guest that is refused."""
    reply = guest.curl(PATH)
    return reply if reply.status == 429 else None


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


def test_every_method_and_path_counts(spent: Guest) -> None:
    for method, path in (("PUT", "/latest/api/token"), ("POST", "/"), ("GET", "/metrics")):
        assert spent.curl(path, "-X", method).status == 429


def test_sighup_changes_the_rates(strict_again: Agent, spent: Guest) -> None:
    reload(strict_again, rates(1000, 3600, delay_max=0, tolerated_queries=0))
    assert counts(spent.http_many(2 * BASE, path=PATH)) == {200: 2 * BASE}
    reload(strict_again, STRICT)
    assert spent.curl(PATH).status == 429
    reload(strict_again, {"metadata_rate_limiting": {ALL: False}})
    assert counts(spent.http_many(2 * BASE, path=PATH)) == {200: 2 * BASE}
