"""IPv6: a guest gets its own metadata, whatever addresses it has, and from the address it asked."""

from ipaddress import ip_address
from typing import Any

import pytest

from dfmeta.model import Endpoint
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import EC2_6, OPENSTACK6, Guest, Reply
from tests.harness.nova import RecordingNova
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import project_ids, put_nova

LOCAL_IPV4 = "/latest/meta-data/local-ipv4"
"""The recording Nova answers it with X-Forwarded-For."""
ULA = "fd12:3456::5"
STABLE = "fe80::1d2c:3b4a:5968:7786"
"""A stable-privacy address (RFC 7217): not derived from any MAC."""


host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    guest = make_guest("one", address6=[f"{ULA}/64", f"{STABLE}/64"], ids=project_ids("one"))
    put_nova(nova, guest)
    return guest


def asks_from(guest: Guest, source: str, host: str) -> None:
    if host == OPENSTACK6:
        # A program cannot bind to a link-local address of its own without the device's index.
        guest.namespace.ip(f"route replace fe80::a9fe:a9fe/128 dev eth0 src {source}")
        source_option = ""
    else:
        source_option = source
    reply: Reply = guest.curl(LOCAL_IPV4, host=host, source=source_option)
    assert (reply.status, reply.text) == (200, source), reply


def known_addresses(agent: Agent, guest: Guest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = agent.admin("/ports").json()
    (row,) = [row for row in rows if row["port"] == guest.port]
    result: list[dict[str, Any]] = row["addresses"]
    return result


def slots(agent: Agent, guest: Guest) -> list[tuple[str, str]]:
    return [
        (known_address["key"], known_address["ip"])
        for known_address in known_addresses(agent, guest)
    ]


def packet_ins(agent: Agent, **labels: str) -> float:
    return agent.metric("dfmeta_packet_ins_total", **labels)


def test_a_guest_asks_either_service_from_any_of_its_addresses(agent: Agent, guest: Guest) -> None:
    before = packet_ins(agent, outcome="learned")
    for _ in range(2):
        for source in (guest.link_local, STABLE):
            asks_from(guest, source, OPENSTACK6)
        asks_from(guest, ULA, EC2_6)
    assert packet_ins(agent, outcome="learned") - before == 3
    keys = [ip_address(key) for key, _ip in slots(agent, guest)]
    assert [ip for _key, ip in slots(agent, guest)] == [guest.link_local, STABLE, ULA]
    assert len(set(keys)) == len(keys)
    for key in keys:
        slot = SIDE.keys.number_of(key)
        assert slot is not None
        assert SIDE.keys.key_of(Endpoint(guest.ofport), slot) == key
