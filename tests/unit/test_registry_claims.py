"""A claimed instance should become a known one without a pause, and never the other way round."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from dfmeta.flows.key import IN_PORT
from dfmeta.model import Endpoint, GuestAddress, Port
from dfmeta.registry import Registry

ENDPOINT = Endpoint(3)
ADDRESS = GuestAddress("fa:16:3e:00:00:01", IPv4Address("10.0.0.5"))
CLAIMED = Port(
    name="tap0", row="r", ofport=3, iface_id="p", instance_id="i", project_id="x", unverified=True
)


def test_a_claim_that_the_host_confirms_keeps_its_connections() -> None:
    registry = Registry()
    registry.set_port(CLAIMED)
    registry.learn(ENDPOINT, ADDRESS, 0.0)
    claim = registry.claim(IN_PORT.key_of(ENDPOINT, 0))
    assert claim is not None
    assert claim.identity.unverified
    registry.set_port(replace(CLAIMED, unverified=False))
    now = registry.current(claim)
    assert now is not None
    assert not now.unverified


def test_what_was_known_and_is_only_claimed_now_starts_anew() -> None:
    registry = Registry()
    registry.set_port(replace(CLAIMED, unverified=False))
    registry.learn(ENDPOINT, ADDRESS, 0.0)
    claim = registry.claim(IN_PORT.key_of(ENDPOINT, 0))
    assert claim is not None
    registry.set_port(CLAIMED)
    assert not registry.holds(claim)
