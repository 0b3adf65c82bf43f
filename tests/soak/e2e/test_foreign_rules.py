"""Rules of a VPN take no answer to guests with any reverse path filter."""

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import PROXY_PORT
from tests.host.e2e.test_foreign_rules import (
    VPNS,
    apply,
    asks_both,
    leads,
    removal_of,
    tunnel,
)

host, agent, guest = shared.host, shared.agent_with(), shared.guest6


@pytest.mark.parametrize("rp_filter", [0, 1, 2])
@pytest.mark.parametrize("kind", VPNS)
def test_answers_leave_by_tap_metadata_with_any_rp_filter(
    host: OpenvSwitch, agent: Agent, guest: Guest, kind: str, rp_filter: int
) -> None:
    namespace = host.namespace
    asks_both(guest)
    with tunnel(namespace) as capture:
        for device in ("all", SIDE.tap):
            namespace.setting(f"net/ipv4/conf/{device}/rp_filter", str(rp_filter))
        apply(namespace, VPNS[kind])
        wait_for(lambda: leads(namespace), "dfmeta's rules to come first")
        for _ in range(10):
            asks_both(guest)
        assert [one for one in capture.segments() if one.source_port == PROXY_PORT] == []
        apply(namespace, tuple(map(removal_of, VPNS[kind])))
        asks_both(guest)
