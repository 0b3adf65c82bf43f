"""A claimed instance should become a known one without a pause, and never the other way round."""

from __future__ import annotations

from dataclasses import replace

from dfmeta.model import Endpoint, Port
from dfmeta.registry import Registry
from tests.core.unit.support import claim_of

CLAIMED = Port(
    name="tap0", row="r", ofport=3, iface_id="p", instance_id="i", project_id="x", unverified=True
)


def test_a_claim_that_the_host_confirms_keeps_its_connections() -> None:
    registry = Registry()
    registry.set_port(CLAIMED)
    claim = claim_of(registry, Endpoint(3))
    assert claim.identity.unverified
    registry.set_port(replace(CLAIMED, unverified=False))
    now = registry.current(claim)
    assert now is not None
    assert not now.unverified


def test_what_was_known_and_is_only_claimed_now_starts_anew() -> None:
    registry = Registry()
    registry.set_port(replace(CLAIMED, unverified=False))
    claim = claim_of(registry, Endpoint(3))
    registry.set_port(CLAIMED)
    assert not registry.holds(claim)
