"""The desired flows of the switch; both additions and deletions are derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfmeta.flows.classify import from_tap, guest_fragment, guest_http, guest_syn
from dfmeta.flows.flow import Flow
from dfmeta.flows.neighbour import guest_arp, key_arp
from dfmeta.flows.reply import probe, reply, reply_drop
from dfmeta.flows.service import Tap, first_syn, known_address, service_drop
from dfmeta.model import Endpoint, GuestAddress


@dataclass(frozen=True, slots=True)
class Guest:
    """An endpoint that gets flows, with its known addresses."""

    endpoint: Endpoint
    meter: int | None
    """Meter of its first SYNs; None on a switch without meters."""
    addresses: Mapping[int, GuestAddress] = field(default_factory=dict)
    """Slot → address."""
    syn_meter: int | None = None
    """Meter of all its SYNs; None on a switch without meters."""


def fixed_flows(tap: Tap) -> tuple[Flow, ...]:
    """Return the flows that do not depend on guests."""
    return from_tap(tap.ofport), service_drop(), probe(tap), reply_drop()


def has_flows(endpoint: Endpoint) -> bool:
    """Return whether frames of *endpoint* are served.

    Frames of a VLAN are not: an answer would leave without the tag, to the guest of the port
    itself.
    """
    return not endpoint.vid


def guest_flows(guest: Guest, tap: Tap) -> tuple[Flow, ...]:
    """Return all flows of one guest's endpoint; none where :func:`has_flows` is false.

    The flows may be added one by one in this order: the classification flows come last, so nothing
    is sent to the proxy before its return path exists.
    """
    if not has_flows(guest.endpoint):
        return ()
    flows = [
        one
        for slot, address in sorted(guest.addresses.items())
        for one in address_flows(guest.endpoint, address, slot=slot, tap=tap)
    ]
    endpoint, ip, family = guest.endpoint, tap.guest_ip, tap.family
    return (
        *flows,
        first_syn(endpoint, family, meter=guest.meter),
        guest_arp(endpoint, tap.mac, ip=ip, family=family),
        guest_fragment(endpoint, ip, family),
        guest_http(endpoint, ip, family),
        guest_syn(endpoint, ip, family, meter=guest.syn_meter),
    )


def address_flows(
    endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap
) -> tuple[Flow, ...]:
    """Return the flows of one known address: first its return path, then its path to the proxy."""
    return (
        key_arp(str(tap.keys.key_of(endpoint, slot)), address.mac, family=tap.family),
        reply(endpoint, address, slot=slot, tap=tap),
        known_address(endpoint, address, slot=slot, tap=tap),
    )
