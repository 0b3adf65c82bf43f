"""Which flows ought to be on the switch: the one function that adding and deleting go by."""

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
    """An endpoint that gets flows, with the addresses that it is known by."""

    endpoint: Endpoint
    meter: int | None
    """Meter of its first SYNs; None on a switch without meters."""
    addresses: Mapping[int, GuestAddress] = field(default_factory=dict)
    """Slot → address."""
    syn_meter: int | None = None
    """Meter of all its SYNs; None on a switch without meters."""


def fixed_flows(tap: Tap) -> tuple[Flow, ...]:
    """Flows that stand whatever guests there are."""
    return from_tap(tap.ofport), service_drop(), probe(tap), reply_drop()


def has_flows(endpoint: Endpoint) -> bool:
    """Whether frames of *endpoint* are served.

    Those of a VLAN are not: an answer would leave without its tag, to the guest of the port itself.
    """
    return not endpoint.vid


def guest_flows(guest: Guest, tap: Tap) -> tuple[Flow, ...]:
    """All flows of one guest's endpoint, the way in last; none where :func:`has_flows` is false.

    The order is that in which they may be added one by one: nothing is sent to the proxy before
    its way back stands.
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
    """Flows of one known address: its way back, then its way in."""
    return (
        key_arp(str(tap.keys.key_of(endpoint, slot)), address.mac, family=tap.family),
        reply(endpoint, address, slot=slot, tap=tap),
        known_address(endpoint, address, slot=slot, tap=tap),
    )
