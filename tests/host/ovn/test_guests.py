"""Guests of OVN's networks get their own documents; the rest of their traffic is OVN's."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import SILENCE, asks_own, put
from tests.host.ovn.cloud import GATEWAY, METADATA, Network, lease, plug

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


def test_a_source_that_port_security_excludes_is_answered(twins: list[Guest]) -> None:
    """cloud-init asks from such an address before it has a lease."""
    for guest in twins:
        guest.add_address("169.254.7.7/16")
        asks_own(guest, source="169.254.7.7")


def test_guests_with_ovn_s_router_advertisements_reach_ec2_s_address(twins: list[Guest]) -> None:
    for guest in twins:
        # OVN advertises at once when a guest solicits, as it does when its device comes up.
        guest.namespace.ip(f"link set {guest.device} down", f"link set {guest.device} up")

        def configured(guest: Guest = guest) -> bool:
            return "proto ra" in guest.namespace.ip("route show default", six=True)

        wait_for(configured, "an advertisement")
        lease(guest)
        asks_own(guest, host=EC2_6)


def test_the_network_s_acl_still_decides_on_all_else(
    twins: list[Guest], networks: list[Network], make_guest: MakeGuest
) -> None:
    """Of a neighbour it admits ICMP and answers alone."""
    target = twins[0]
    neighbour = plug(make_guest, networks[0], "neighbour", mac=f"{MAC[:-2]}66", address="10.0.0.6")
    assert all(guest.ping(GATEWAY) for guest in twins)
    assert neighbour.ping(target.ip)
    with target.namespace.open_socket() as server:
        server.bind(("", 80))
        server.listen()
        with pytest.raises(TimeoutError):
            neighbour.namespace.connect(target.ip, 80, timeout=SILENCE)
