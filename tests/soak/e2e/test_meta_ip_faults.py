"""What breaks on a host with Meta IPs, while guests ask: a pause at worst, never another's data."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import failures
from tests.host.e2e.test_faults import Busy, twins
from tests.host.e2e.test_meta_ip import OPTIONS, row

COOKIE = "cookie=0x64666d65"
META = "br-meta"

Fault = Callable[[OpenvSwitch], object]


host, agent = shared.host, shared.agent_with(OPTIONS)


@pytest.fixture(scope="module")
def busy(host: OpenvSwitch, agent: Agent) -> Iterator[Busy]:
    with ExitStack() as guests:
        yield Busy(agent, twins(MakeGuest(host, guests)))


def ours(host: OpenvSwitch) -> int:
    """How many flows of dfmeta both bridges have."""
    names = {row["name"] for row in host.ovsdb.select("Bridge", "name")}
    bridges = [bridge for bridge in ("br-int", META) if bridge in names]
    return sum(host.ofctl("dump-flows", bridge).count(COOKIE) for bridge in bridges)


def rows(host: OpenvSwitch) -> list[dict[str, Any]]:
    """What dfmeta writes of its bridges and ports, apart from the guests' Meta addresses."""
    return sorted(
        (
            *host.records("Bridge", "name", "fail_mode"),
            *host.records("Port", "name", "tag", "vlan_mode", "cvlans"),
        ),
        key=str,
    )


def change_the_patch(host: OpenvSwitch) -> None:
    host.vsctl("clear", "Port", "int-br-meta", "tag", "vlan_mode", "cvlans")
    host.vsctl("set-fail-mode", META, "standalone")


# tools/soak runs test_faults.py of the host with Meta IPs too, for device, routes and daemons.
FAULTS: dict[str, Fault] = {
    "flows": lambda host: host.ofctl("del-flows", META),
    "bridge": lambda host: host.vsctl("del-br", META),
    "patch": lambda host: host.vsctl("del-port", "br-int", "int-br-meta"),
    "rows of the patch": change_the_patch,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_guests_see_a_pause_at_worst(
    host: OpenvSwitch, agent: Agent, busy: Busy, fault: str
) -> None:
    flows, written = ours(host), rows(host)

    def is_repaired() -> bool:
        return rows(host) == written and agent.ready() and ours(host) == flows

    def through() -> None:
        FAULTS[fault](host)
        wait_for(is_repaired, "rows and flows to be back")

    assert failures(busy.through(through)) == Counter()


def test_forged_meta_ips_are_put_back(host: OpenvSwitch, agent: Agent, busy: Busy) -> None:
    first, second = busy.guests

    def ids(port: str) -> dict[str, str]:
        (result,) = [record for record in host.records("Interface") if record["name"] == port]
        return {k: v for k, v in result["external_ids"].items() if k.startswith("dfmeta-meta")}

    before = [ids(guest.port) for guest in busy.guests]
    assert all(before)

    def forge() -> None:
        for key in before[0]:
            host.vsctl("remove", "Interface", first.port, "external_ids", key)
        for key, value in before[0].items():
            host.vsctl("set", "Interface", second.port, f'external_ids:{key}="{value}"')
        wait_for(lambda: [ids(guest.port) for guest in busy.guests] == before, "the keys")

    samples = busy.through(forge)
    assert failures(samples) == Counter()
    assert [row(agent, guest)["port"] for guest in busy.guests] == [
        guest.port for guest in busy.guests
    ]
