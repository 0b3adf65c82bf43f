"""The desired flows of the switch; both additions and deletions are derived from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dfmeta.flows.family import bare_request, family_of, neighbour_discovery, next_hop_request
from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.service import (
    Service,
    Tap,
    first_syn,
    from_tap,
    guest_fragment,
    guest_http,
    guest_syn,
    known_address,
    probe,
    reply,
    reply_drop,
    service_drop,
    subport_flows,
)
from dfmeta.flows.source import source_checks, source_table
from dfmeta.model import Binding, Endpoint, GuestAddress, NextHop


@dataclass(frozen=True, slots=True)
class Guest:
    """An endpoint that gets flows, with its known addresses."""

    endpoint: Endpoint
    addresses: Mapping[int, GuestAddress] = field(default_factory=dict)
    """Slot → address."""
    next_hops: tuple[NextHop, ...] = ()
    """The addresses through which it has a route to the service; see :func:`usable_next_hops`."""
    mac: str = ""
    """The only MAC that is served at the endpoint; empty: any MAC."""
    binding: Binding | None = None
    """The source addresses that its frames have to have; None: any."""
    floods: Collection[Purpose] = ()
    """The purposes whose packets it sends at too high a rate: its flows drop them."""


def fixed_flows(tap: Tap) -> tuple[Flow, ...]:
    """Return the flows that do not depend on guests."""
    return (
        from_tap(tap.ofport),
        service_drop(),
        *(probe(tap, service) for service in tap.services()),
        *(neighbour_discovery(tap.mac, tap.guest_ip6) if tap.guest_ip6 else ()),
        *subport_flows(tap.ofport),
        *source_table(),
        reply_drop(),
    )


def guest_flows(guest: Guest, tap: Tap) -> tuple[Flow, ...]:
    """Return all flows of one guest's endpoint.

    The flows may be added one by one in this order: the classification flows come last, so nothing
    is sent to the proxy before its return path exists.
    """
    flows = [
        one
        for slot, address in sorted(guest.addresses.items())
        if address.service is None or str(address.service) in tap.guest_ip6
        for one in address_flows(guest.endpoint, address, slot=slot, tap=tap)
    ]
    hops = usable_next_hops(guest.next_hops, guest.addresses.values(), tap.guest_ip)
    return (
        *(source_checks(guest.endpoint, guest.binding) if guest.binding is not None else ()),
        *flows,
        *(next_hop_request(guest.endpoint, hop.mac or tap.mac, hop.ip) for hop in hops),
        *(one for service in tap.services() for one in _port_flows(guest, tap, service)),
    )


def usable_next_hops(
    hops: Iterable[NextHop], addresses: Iterable[GuestAddress], service: str
) -> tuple[NextHop, ...]:
    """Return the guest next hops that get a flow.

    The service's own address has a flow already. An address of the guest itself gets none: an
    answer would tell the guest that another host has its address (RFC 5227, 2.4).

    :param addresses: the addresses that the guest has used. They are untrusted; a guest that uses
        the address of a next hop only loses its own flow.
    :param service: IPv4 address of the service for guests.
    """
    own = {service, *(str(one.ip) for one in addresses)}
    return tuple(hop for hop in hops if hop.ip not in own)


def _port_flows(guest: Guest, tap: Tap, service: Service) -> Iterator[Flow]:
    """Return the flows of one version of IP that lead a guest to the service."""
    endpoint, family, first = guest.endpoint, service.family, Purpose.SYN in guest.floods
    yield first_syn(endpoint, family, mac=guest.mac, floods=first)
    if not family.arp:
        yield bare_request(endpoint, floods=first)
    for ip in service.guest_ips:
        yield family.guest_request(endpoint, tap.mac, ip)
        yield guest_fragment(endpoint, ip, family)
        yield guest_http(endpoint, ip, family)
        yield guest_syn(endpoint, ip, family, floods=Purpose.GUEST_SYN in guest.floods)


def address_flows(
    endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap
) -> tuple[Flow, ...]:
    """Return the flows of one known address: first its return path, then its path to the proxy."""
    key = tap.keys.key_of(endpoint, slot)
    # A second bridge answers the host's requests for keys.
    is_near = tap.keys.label(slot) is None
    return (
        *((family_of(key.version).key_request(str(key), address.mac),) if is_near else ()),
        reply(endpoint, address, slot=slot, tap=tap),
        known_address(endpoint, address, slot=slot, tap=tap),
    )
