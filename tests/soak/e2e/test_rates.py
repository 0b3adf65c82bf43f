"""Rates: a boot is slowed down at most, and abuse is refused beside other guests."""

from collections import Counter
from collections.abc import Callable

from tests.harness.agent import Agent, Options
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Sample
from tests.host.e2e.support import KEY, put

StartBoot = Callable[..., Booting]
PATH = "/latest/meta-data/hostname"
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
