"""Guest next hops: a route through a DHCP port that is gone leads to the service all the same."""

import json

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, put, uuid_in

HOP, HOP_MAC = "10.0.0.2", "fa:16:3e:dd:00:02"
SOON = 1.5
"""Seconds: a guest without an answer to ARP gives up after three."""


def reaches(guest: Guest) -> bool:
    guest.forget_neighbours()
    reply = guest.curl(META_DATA, timeout=SOON)
    assert reply.status in (0, 200), reply
    return bool(reply.status) and uuid_in(reply.body) == guest.instance_id


def neighbour(guest: Guest) -> str:
    """The MAC that the guest has for the next hop; empty: none."""
    result = json.loads(guest.namespace.run(["ip", "-j", "neigh", "show", HOP]).stdout or "[]")
    return next((neighbour["lladdr"] for neighbour in result if "lladdr" in neighbour), "")


def has_flow(guest: Guest) -> bool:
    return any(f"arp_tpa={HOP}," in flow for flow in guest.host.flows())


def test_route_through_a_lost_port_is_served(make_agent: MakeAgent, make_guest: MakeGuest) -> None:
    guest = make_guest(route="none")
    guest.add_route(f"{METADATA_IP}/32 via {HOP} dev {guest.device}")
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
