"""The second bridge of ``identity_scheme = meta_ip`` (specification 001, "Metadata data
pipelines").

A frame of a guest comes over the patch with a Meta MAC as its source, which the integration bridge
has set for one address of that guest. The number of the Meta MAC gives the Meta IP, the source by
which the proxy knows the guest. An answer to a Meta IP goes back with the Meta MAC of the same
number as its destination. So no field that a guest can write identifies it.

Within the bridge, answers have the VLAN tag ``provider_vlan_id``, as the specification has it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dfmeta.flows import integration_bridge, openflow
from dfmeta.flows.family import (
    ADVERTISE,
    IPV4,
    IPV6,
    Family,
    family_of,
    icmpv6_message,
    key_request,
)
from dfmeta.flows.pipeline import METADATA_PORT, Purpose, Stage
from dfmeta.identity.key import MetaKeys
from dfmeta.model import Endpoint, GuestAddress


@dataclass(frozen=True, slots=True)
class MetaTap:
    """The ports of the second bridge, and the proxy behind it."""

    ofport: int
    """Port tap-meta, which leads to the proxy."""
    patch: int
    """Patch port to the integration bridge."""
    mac: str
    """MAC of tap-meta."""
    port: int
    """TCP port of the proxy's listeners, which have the gateway's addresses."""
    vlan: int
    """``provider_vlan_id``."""
    guest_ip: str
    """IPv4 address of the service for guests (``ip``)."""
    keys: MetaKeys
    guest_ip6: tuple[str, ...] = ()
    """IPv6 addresses of the service for guests (``ip6``); empty: no IPv6."""

    def services(self) -> Iterator[tuple[Family, tuple[str, ...]]]:
        """Return the versions of IP that guests can use, with the service's addresses."""
        yield IPV4, (self.guest_ip,)
        if self.guest_ip6:
            yield IPV6, self.guest_ip6


def fixed_flows(tap: MetaTap) -> tuple[openflow.Flow, ...]:
    """Return the flows that do not depend on guests."""
    from_tap = openflow.frames_of(Endpoint(tap.ofport))
    request: Mapping[str, openflow.Value] = {
        "eth_type": openflow.ETH_TYPE_ARP,
        "arp_op": openflow.ARP_REQUEST,
    }
    flows = [
        openflow.flow(
            Purpose.META_FROM_TAP_ARP, {**from_tap, **request}, goto=Stage.META_NEIGHBOURS
        ),
        openflow.flow(Purpose.META_OTHER_DROP, {"in_port": tap.patch}),
        openflow.flow(Purpose.META_OTHER_DROP, {"in_port": tap.ofport}),
        openflow.flow(Purpose.META_SOURCE_DROP, {}),
        openflow.flow(Purpose.META_PROXY_DROP, {}),
        openflow.flow(Purpose.META_NEIGHBOURS_DROP, {}),
        openflow.flow(Purpose.META_REPLY_DROP, {}),
    ]
    for family, services in tap.services():
        flows += _of_version(tap, family, services)
    if tap.guest_ip6:
        match, goto = (
            {**from_tap, **icmpv6_message(openflow.ND_NEIGHBOR_SOLICIT)},
            Stage.META_NEIGHBOURS,
        )
        flows.append(openflow.flow(Purpose.META_FROM_TAP_ND, match, actions=ADVERTISE, goto=goto))
    return tuple(flows)


def _of_version(tap: MetaTap, family: Family, services: tuple[str, ...]) -> Iterator[openflow.Flow]:
    tag = (openflow.PushVlan(), openflow.SetField("vlan_vid", openflow.TAGGED | tap.vlan))
    # The integration bridge sends no tagged frame here; one that had a tag would not be a guest's.
    from_patch = {**openflow.frames_of(Endpoint(tap.patch)), **family.tcp}
    yield openflow.flow(Purpose.META_FROM_PATCH, from_patch, goto=Stage.META_SOURCE)
    # A second tag would hide the first: Open vSwitch goes on matching the packet behind it.
    from_tap = {**openflow.frames_of(Endpoint(tap.ofport)), **family.tcp}
    yield openflow.flow(Purpose.META_FROM_TAP, from_tap, actions=tag, goto=Stage.META_REPLY)
    gateway = tap.keys.gateway(family.version)
    for ip in services:
        yield openflow.flow(
            Purpose.META_TO_PROXY,
            {**family.tcp, family.destination: ip, "tcp_dst": METADATA_PORT},
            actions=(
                openflow.SetField("eth_dst", tap.mac),
                openflow.SetField(family.destination, gateway),
                openflow.SetField("tcp_dst", tap.port),
                openflow.Output(tap.ofport),
            ),
        )
    version = family.version
    number, key = tap.keys.probe_number(version), tap.keys.probe_key(version)
    yield _source(family, tap.keys.label(number), key)
    yield _reply(family, tap.keys.label(number), key, service=services[0], tap=tap)


def guest_flows(
    guest: integration_bridge.ServedEndpoint, tap: MetaTap
) -> tuple[openflow.Flow, ...]:
    """Return the flows of all addresses of a guest."""
    return tuple(
        address_flow
        for slot, address in sorted(guest.addresses.items())
        if address.service is None or str(address.service) in tap.guest_ip6
        for address_flow in address_flows(guest.endpoint, address, slot=slot, tap=tap)
    )


def address_flows(
    endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: MetaTap
) -> tuple[openflow.Flow, ...]:
    """Return the flows of one address: first its return path, then its path to the proxy."""
    family = family_of(address.ip.version)
    key, label = str(tap.keys.key_of(endpoint, slot)), tap.keys.label(slot)
    service = str(address.service) if address.service is not None else tap.guest_ip
    return (
        key_request(family, key, label, arp=Purpose.META_KEY_ARP, nd=Purpose.META_KEY_ND),
        _reply(family, label, key, service=service, tap=tap),
        _source(family, label, key),
    )


def _source(family: Family, label: str, key: str) -> openflow.Flow:
    return openflow.flow(
        Purpose.META_SOURCE,
        {**family.tcp, "eth_src": label},
        actions=(openflow.SetField(family.source, key),),
        goto=Stage.META_PROXY,
    )


def _reply(family: Family, label: str, key: str, *, service: str, tap: MetaTap) -> openflow.Flow:
    return openflow.flow(
        Purpose.META_REPLY,
        {
            "vlan_vid": openflow.TAGGED | tap.vlan,
            **family.tcp,
            family.source: tap.keys.gateway(family.version),
            family.destination: key,
            "tcp_src": tap.port,
        },
        actions=(
            openflow.PopVlan(),
            openflow.SetField("eth_dst", label),
            openflow.SetField(family.source, service),
            openflow.SetField("tcp_src", METADATA_PORT),
            openflow.Output(tap.patch),
        ),
    )
