"""Rates: a boot is slowed down at most, and abuse is refused beside other guests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.harness.agent import Agent, Options
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, Reply, Sample
from tests.harness.poll import wait_for
from tests.host.e2e.support import KEY, META_DATA, put, uuid_in

StartBoot = Callable[..., Booting]
PATH = "/latest/meta-data/hostname"
BASE = 10
ALL = "rate_limit_enabled"
RATES: Options = {
    "metadata_rate_limiting": {
        ALL: True,
        "base_query_rate_limit": 20,
        "burst_query_rate_limit": 20,
        "base_window_duration": 20,
        "burst_window_duration": 20,
    }
}


def counts(samples: list[Sample]) -> Counter[int]:
    """How many of each status."""
    return Counter(sample.status for sample in samples)


def delayed(agent: Agent) -> float:
    """How many requests were."""
    return agent.metric("dfmeta_delayed_requests_total")


def refused(agent: Agent) -> float:
    """How many requests were."""
    return agent.metric("dfmeta_refused_requests_total", reason="rate")


def test_a_boot_above_the_rate_is_delayed_and_whole(
    make_agent: MakeAgent, make_guest: MakeGuest, cloud_init: StartBoot
) -> None:
    """At Neutron's own rate it takes 18 s more; here the rate is 20 in 20 s."""
    agent = make_agent(RATES)
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


def test_a_serial_guest_is_delayed_and_an_abusive_guest_is_refused(
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
