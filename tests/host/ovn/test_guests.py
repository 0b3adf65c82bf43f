"""Guests of OVN's networks get their own documents; the rest of their traffic is OVN's."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import asks_own, put
from tests.host.ovn.cloud import GATEWAY, METADATA, Network, plug

MAC = "fa:16:3e:00:00:55"


@pytest.fixture(scope="module")
def twins(agent: Agent, host: OpenvSwitch, networks: list[Network]) -> Iterator[list[Guest]]:
    """Provide a guest of each network, with the same MAC and address."""
    with ExitStack() as stack:
        make_guest = MakeGuest(host, stack)
        guests = [plug(make_guest, network, network.name, mac=MAC) for network in networks]
        for guest in guests:
            put(agent, guest)
        yield guests


def test_guests_with_one_mac_and_address_get_their_own(twins: list[Guest]) -> None:
    for guest in twins:
        assert f"{METADATA_IP} via {METADATA}" in guest.namespace.ip("route")
        for service in (METADATA_IP, OPENSTACK6):
            asks_own(guest, host=service)


def test_all_else_is_still_forwarded_by_ovn(twins: list[Guest]) -> None:
    assert all(guest.ping(GATEWAY) for guest in twins)
