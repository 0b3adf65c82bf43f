"""Guest next hops: a route through a DHCP port that is gone leads to the service all the same."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import neutron as neutron_harness
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids, uuid_of
from tests.harness.neutron import Neutron
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, put, uuid_in

HOP, HOP_MAC = "10.0.0.2", "fa:16:3e:dd:00:02"
OTHER_HOP, OTHER_MAC = "10.0.0.3", "fa:16:3e:dd:00:03"
NETWORK = uuid_of("network")
KEY = "dfmeta-next-hops"
SOON = 1.5
"""Seconds: a guest without an answer to ARP gives up after three."""


def with_neutron(**more: object) -> dict[str, dict[str, object]]:
    return {
        "df_metadata": {"identity_sources": "ovsdb,neutron"},
        "neutron": neutron_harness.options(**more),
    }


@pytest.fixture
def neutron(host: OpenvSwitch) -> Iterator[Neutron]:
    """Keystone and Neutron on the host."""
    with Neutron(host.namespace) as server:
        yield server


def routed(make_guest: MakeGuest, hops: str = "", *, name: str = "guest", via: str = HOP) -> Guest:
    """A guest whose route to the service goes through *via*; no port has that address."""
    ids = Ids(
        iface_id=uuid_of(f"port of {name}"),
        vm_uuid=uuid_of(f"of {name}"),
        extra={KEY: hops} if hops else {},
    )
    guest = make_guest(name, route="none", ids=ids)
    guest.add_route(f"{METADATA_IP}/32 via {via} dev {guest.device}")
    return guest


def reaches(guest: Guest) -> bool:
    guest.forget_neighbours()
    reply = guest.curl(META_DATA, timeout=SOON)
    assert reply.status in (0, 200), reply
    return bool(reply.status) and uuid_in(reply.body) == guest.instance_id


def neighbour(guest: Guest, ip: str = HOP) -> str:
    """The MAC that the guest has for *ip*; empty: none."""
    found = json.loads(guest.namespace.run(["ip", "-j", "neigh", "show", ip]).stdout or "[]")
    return next((one["lladdr"] for one in found if "lladdr" in one), "")


def has_flow(guest: Guest, hop: str = HOP) -> bool:
    return any(f"arp_tpa={hop}," in flow for flow in guest.host.flows())


def row(agent: Agent, guest: Guest) -> dict[str, Any]:
    (found,) = [one for one in agent.admin("/ports").json() if one["port"] == guest.port]
    return dict(found)


def test_a_route_through_an_address_that_no_port_has_leads_to_the_service(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    guest = routed(make_guest)
    agent = make_agent()
    put(agent, guest)
    assert not reaches(guest)
    assert (neighbour(guest), has_flow(guest)) == ("", False)
    guest.set_external_ids(dfmeta_next_hops=f"{HOP}={HOP_MAC}")
    wait_for(lambda: has_flow(guest), "the flow of the next hop")
    assert reaches(guest)
    assert neighbour(guest) == HOP_MAC
    traced = agent.ctl("trace", guest.port).stdout
    assert "finds  classification: guest-next-hop" in traced


def known_to(neutron: Neutron, guest: Guest) -> None:
    neutron.put(
        neutron_harness.port(
            guest.ids.iface_id, guest.instance_id, "p", network=NETWORK, ips=[guest.ip]
        )
    )


def dhcp_port(neutron: Neutron, mac: str = HOP_MAC) -> str:
    port_id = uuid_of("dhcp port")
    neutron.put(
        neutron_harness.port(
            port_id,
            "dhcp-agent",
            "p",
            owner="network:dhcp",
            host="elsewhere",
            network=NETWORK,
            mac=mac,
            ips=[HOP, "2001:db8::2"],
        )
    )
    return port_id


def test_neutron_names_the_dhcp_ports_of_a_network(
    make_agent: MakeAgent, make_guest: MakeGuest, neutron: Neutron
) -> None:
    dhcp_port(neutron)
    guest = routed(make_guest)
    known_to(neutron, guest)
    own = routed(make_guest, f"{OTHER_HOP}={OTHER_MAC}", name="own", via=OTHER_HOP)
    own.set_address("10.0.0.6/24")
    own.add_route(f"{METADATA_IP}/32 via {OTHER_HOP} dev {own.device}")
    known_to(neutron, own)
    agent = make_agent(with_neutron())
    put(agent, guest)
    put(agent, own)
    wait_for(lambda: has_flow(guest), "Neutron's answer")
    assert reaches(guest)
    assert neighbour(guest) == HOP_MAC
    assert row(agent, guest)["next_hops"] == [{"ip": HOP, "mac": HOP_MAC, "source": "neutron"}]
    # The key of a port comes first.
    assert reaches(own)
    assert row(agent, own)["next_hops"] == [{"ip": OTHER_HOP, "mac": OTHER_MAC, "source": "ovsdb"}]
    # Both ports are of one network, and one of them needs no question.
    assert len([one for one in neutron.requests() if "network%3Adhcp" in one]) == 1
