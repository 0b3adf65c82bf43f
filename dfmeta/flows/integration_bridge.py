"""The flows of the integration bridge: classification, service, reply, subport, container source.

All classification flows for guests match ``in_port``: ports that do not belong to guests get none
of them. The service table sends known addresses to tap-metadata and first SYNs to the controller.
In the reply table, an answer is sent to the port of its key, and all other frames are dropped.

A tagged subport is an endpoint with a VLAN id, such as a container's behind the port of its virtual
machine. Its frames come in at the parent's port with one 802.1Q tag. ``other_config:vlan-limit``
may make Open vSwitch look behind two tags: a frame with a second tag then matches as well. No match
field shows the second tag, so the tag is taken off, and the subport table drops frames that still
have one. ARP and neighbour discovery need none of this: their answers leave with the tags of their
requests.

The root of a virtual machine sends frames in any VLAN of its trunk, with any addresses. A port that
was made for one attachment of the driver ``local`` therefore passes only frames with the MAC and
the IPv4 address of that attachment as source, in ARP as well (IP source guard, ARP inspection).
Over IPv6, whose addresses a container makes itself, the interface id has to be that of the MAC
(EUI-64; RFC 4291, appendix A). A frame that passes goes back to the classification table with a
mark, so that the flows of other programs and the bridge's own switching do with it what they would
have done without the check.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from os_ken.lib.packet.icmpv6 import MLDV2_LISTENER_REPORT, ND_REDIREC, ND_ROUTER_ADVERT
from os_ken.lib.packet.tcp import TCP_RST, TCP_SYN

from dfmeta.flows import openflow
from dfmeta.flows.family import (
    IPV4,
    IPV6,
    Family,
    bare_request,
    family_of,
    guest_request,
    key_request,
    neighbour_discovery,
    next_hop_request,
)
from dfmeta.flows.pipeline import (
    CONTROLLER_ID,
    METADATA_IP,
    METADATA_PORT,
    Purpose,
    Register,
    Stage,
)
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Binding, Endpoint, GuestAddress, NextHop

_VID_BITS = 12
"""Length of vlan_vid without OFPVID_PRESENT."""
_PASS: Final = (openflow.SetField(Register.CHECKED, 1), openflow.Reclassify())
_INTERFACE_ID: Final = "::ffff:ffff:ffff:ffff"
"""Mask of an IPv6 address."""
_LOCAL: Final = 0x02
_NONE, _NONE6 = str(IPv4Address(0)), str(IPv6Address(0))
"""The addresses of a host that has none yet."""


@dataclass(frozen=True, slots=True)
class Service:
    """The service in one version of IP."""

    family: Family
    ip: str
    """Address of the proxy's listener."""
    guest_ips: tuple[str, ...]
    """Addresses of the service for guests, on TCP port 80."""


@dataclass(frozen=True, slots=True)
class Tap:
    """The port that leads to the proxy."""

    ofport: int
    mac: str
    port: int
    """TCP port of the proxy's listener."""
    ip: str = METADATA_IP
    """IPv4 address of the proxy's listener (``host_ip``)."""
    guest_ip: str = METADATA_IP
    """IPv4 address of the service for guests (``ip``)."""
    ip6: str = ""
    """IPv6 address of the proxy's listener (``host_ip6``)."""
    guest_ip6: tuple[str, ...] = ()
    """IPv6 addresses of the service for guests (``ip6``); empty: no IPv6."""
    keys: Keys = IN_PORT
    """The key scheme, which identifies guests."""

    def services(self) -> Iterator[Service]:
        """Return the service in each version of IP that guests can use."""
        yield from (service for service in map(self.service, (4, 6)) if service.guest_ips)

    def service(self, version: int) -> Service:
        """Return the service in one version of IP; without addresses if guests cannot use it."""
        if version == 4:
            return Service(IPV4, self.ip, (self.guest_ip,))
        return Service(IPV6, self.ip6, self.guest_ip6)


@dataclass(frozen=True, slots=True)
class ServedEndpoint:
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


def fixed_flows(tap: Tap) -> tuple[openflow.Flow, ...]:
    """Return the flows that do not depend on guests."""
    return (
        from_tap(tap.ofport),
        # Frames that are neither SYNs nor from a known address.
        openflow.flow(Purpose.SERVICE_DROP, {}),
        *(probe(tap, service) for service in tap.services()),
        *(neighbour_discovery(tap.mac, tap.guest_ip6) if tap.guest_ip6 else ()),
        *_subport_table(tap.ofport),
        *_source_table(),
        # All other frames from tap-metadata: the host is not reachable through it.
        openflow.flow(Purpose.REPLY_DROP, {}),
    )


def guest_flows(guest: ServedEndpoint, tap: Tap) -> tuple[openflow.Flow, ...]:
    """Return all flows of one guest's endpoint.

    The flows may be added one by one in this order: the classification flows come last, so nothing
    is sent to the proxy before its return path exists.
    """
    flows = [
        address_flow
        for slot, address in sorted(guest.addresses.items())
        if address.service is None or str(address.service) in tap.guest_ip6
        for address_flow in address_flows(guest.endpoint, address, slot=slot, tap=tap)
    ]
    hops = usable_next_hops(guest.next_hops, guest.addresses.values(), tap.guest_ip)
    return (
        *(source_checks(guest.endpoint, guest.binding) if guest.binding is not None else ()),
        *flows,
        *(next_hop_request(guest.endpoint, hop.mac or tap.mac, hop.ip) for hop in hops),
        *(
            address_flow
            for service in tap.services()
            for address_flow in _port_flows(guest, tap, service)
        ),
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
    unusable = {service, *(str(address.ip) for address in addresses)}
    return tuple(hop for hop in hops if hop.ip not in unusable)


def _port_flows(guest: ServedEndpoint, tap: Tap, service: Service) -> Iterator[openflow.Flow]:
    """Return the flows of one version of IP that lead a guest to the service."""
    endpoint, family, first = guest.endpoint, service.family, Purpose.SYN in guest.floods
    yield first_syn(endpoint, family, mac=guest.mac, floods=first)
    if not family.arp:
        yield bare_request(endpoint, floods=first)
    for ip in service.guest_ips:
        yield guest_request(endpoint, family, tap.mac, ip)
        yield guest_fragment(endpoint, ip, family)
        yield guest_http(endpoint, ip, family)
        yield guest_syn(endpoint, ip, family, floods=Purpose.GUEST_SYN in guest.floods)


def address_flows(
    endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap
) -> tuple[openflow.Flow, ...]:
    """Return the flows of one known address: first its return path, then its path to the proxy."""
    key = tap.keys.key_of(endpoint, slot)
    flows = (
        reply(endpoint, address, slot=slot, tap=tap),
        known_address(endpoint, address, slot=slot, tap=tap),
    )
    if tap.keys.label(slot) is not None:
        # A second bridge answers the host's requests for keys.
        return flows
    family, mac = family_of(key.version), address.mac
    return key_request(family, str(key), mac, arp=Purpose.KEY_ARP, nd=Purpose.KEY_ND), *flows


def first_syn(
    endpoint: Endpoint, family: Family = IPV4, *, mac: str = "", floods: bool = False
) -> openflow.Flow:
    """Send the first packet of an unknown address to the controller; drop it if the guest *floods*.

    It may be a segment of a connection that the guest has had with another host, or over another
    port: the host answers it with a reset, and the guest connects again. Resets get no answer.

    :param mac: the only MAC whose SYNs are sent; empty: any MAC.
    """
    match = {
        **openflow.frames_of(endpoint),
        **({"eth_src": mac} if mac else {}),
        **family.tcp,
        "tcp_flags": (0, TCP_RST),
    }
    if floods:
        return openflow.flow(Purpose.SYN, match)
    if endpoint.vid:
        actions = (
            *untag(endpoint),
            openflow.SetField(Register.TAG, openflow.TAGGED | endpoint.vid),
        )
        return openflow.flow(Purpose.SYN, match, actions=actions, goto=Stage.SUBPORT)
    return openflow.flow(Purpose.SYN, match, actions=(openflow.ToController(CONTROLLER_ID),))


def known_address(
    endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap
) -> openflow.Flow:
    """Send all TCP of *address* at *endpoint* to the proxy, with the key of *slot* as its source.

    The flow matches all TCP segments, not only SYNs, so that a connection keeps its slot. It
    matches both MAC and IP, which are under the guest's control: they only select one of the
    endpoint's own slots. An IPv6 flow also matches the address of the service: the answer has to
    come from the address that the guest has asked.
    """
    family = family_of(address.ip.version)
    service_match = (
        {family.destination: str(address.service)} if address.service is not None else {}
    )
    match = {
        **openflow.frames_of(endpoint),
        "eth_src": address.mac,
        **family.tcp,
        family.source: str(address.ip),
        **service_match,
    }
    if endpoint.vid:
        # Another program may have used the register before.
        unmarked = (*untag(endpoint), openflow.SetField(Register.TAG, 0))
        actions = (*unmarked, *_translate(endpoint, slot, tap=tap))
        return openflow.flow(Purpose.ADDRESS, match, actions=actions, goto=Stage.SUBPORT)
    return openflow.flow(Purpose.ADDRESS, match, actions=towards_proxy(endpoint, slot, tap=tap))


def towards_proxy(endpoint: Endpoint, slot: int, *, tap: Tap) -> tuple[openflow.Action, ...]:
    """Return the actions that send a guest's first SYN, with its one VLAN tag, to the proxy.

    The flow of an untagged endpoint has the same.
    """
    translate = _translate(endpoint, slot, tap=tap)
    return *untag(endpoint), *translate, openflow.Output(tap.ofport)


def _translate(endpoint: Endpoint, slot: int, *, tap: Tap) -> tuple[openflow.Action, ...]:
    """Return the actions that set the key of *slot* and the addresses of the proxy.

    They set eth_dst because the kernel drops a frame that is not addressed to tap-metadata's own
    MAC, and a guest may send it to the MAC of its gateway.
    """
    label = tap.keys.label(slot)
    if label is not None:
        # The second bridge does the rest: there the label stands for the address.
        return (openflow.SetField("eth_src", label),)
    key = tap.keys.key_of(endpoint, slot)
    service = tap.service(key.version)
    actions: list[openflow.Action] = [
        openflow.SetField("eth_dst", tap.mac),
        openflow.SetField(service.family.source, str(key)),
    ]
    if service.guest_ips != (service.ip,):
        actions.append(openflow.SetField(service.family.destination, service.ip))
    return (*actions, openflow.SetField("tcp_dst", tap.port))


def reply(endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap) -> openflow.Flow:
    """Restore the guest's addresses in an answer to the key of *slot*; send it to its port only.

    The flow sets eth_dst, because the host's neighbour table may contain the guest's previous MAC.
    """
    service, label = tap.service(address.ip.version), tap.keys.label(slot)
    family, service_ip = service.family, str(address.service or tap.guest_ip)
    actions: list[openflow.Action] = [
        openflow.SetField("eth_dst", address.mac),
        openflow.SetField(family.destination, str(address.ip)),
    ]
    if label is not None:
        # The second bridge has restored the address and the port of the service.
        match: Mapping[str, openflow.Value] = {**family.tcp, "eth_dst": label}
        actions.append(openflow.SetField("eth_src", tap.mac))
    else:
        match = _from_listener(tap, service, str(tap.keys.key_of(endpoint, slot)))
        actions.append(openflow.SetField("tcp_src", METADATA_PORT))
        if service.ip != service_ip:
            actions.append(openflow.SetField(family.source, service_ip))
    return openflow.flow(
        Purpose.REPLY,
        {**untagged(endpoint), **match},
        actions=(*actions, *tag(endpoint), openflow.Output(endpoint.ofport)),
    )


def probe(tap: Tap, service: Service) -> openflow.Flow:
    """Send the answer of the proxy's listener to the daemon's own SYN to the controller."""
    version = service.family.version
    label = tap.keys.probe_label(version)
    return openflow.flow(
        Purpose.PROBE,
        {**service.family.tcp, "eth_dst": label}
        if label is not None
        else _from_listener(tap, service, tap.keys.probe_key(version)),
        actions=(openflow.ToController(CONTROLLER_ID),),
    )


def _from_listener(tap: Tap, service: Service, key: str) -> dict[str, openflow.Value]:
    family = service.family
    return {**family.tcp, family.source: service.ip, family.destination: key, "tcp_src": tap.port}


def guest_http(endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4) -> openflow.Flow:
    """Send TCP to port 80 of *ip* that comes in at *endpoint* to the service table.

    Only TCP port 80 is matched, since other programs may serve other ports of the address
    (Neutron's DNS on UDP/53). SYNs have a separate flow, :func:`guest_syn`: no packet matches both.
    """
    match = _to_service(endpoint, ip, family)
    match |= {"tcp_dst": METADATA_PORT, "tcp_flags": (0, TCP_SYN)}
    return openflow.flow(Purpose.GUEST_HTTP, match, goto=Stage.SERVICE)


def guest_syn(
    endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4, *, floods: bool = False
) -> openflow.Flow:
    """Send SYNs to port 80 of *ip* to the service table; drop them if the guest *floods*."""
    match = _to_service(endpoint, ip, family)
    match |= {"tcp_dst": METADATA_PORT, "tcp_flags": (TCP_SYN, TCP_SYN)}
    return openflow.flow(Purpose.GUEST_SYN, match, goto=None if floods else Stage.SERVICE)


def guest_fragment(
    endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4
) -> openflow.Flow:
    """Drop fragments of TCP to *ip*, whose TCP port Open vSwitch does not see.

    Without this flow, they would reach another host or program that has the address.
    """
    match = _to_service(endpoint, ip, family) | {
        "ip_frag": (openflow.IP_FRAG_ANY, openflow.IP_FRAG_ANY)
    }
    return openflow.flow(Purpose.GUEST_FRAGMENT, match)


def from_tap(tap_ofport: int) -> openflow.Flow:
    """Send all frames from tap-metadata to the reply table, and so nowhere else."""
    return openflow.flow(Purpose.FROM_TAP, {"in_port": tap_ofport}, goto=Stage.REPLY)


def _to_service(endpoint: Endpoint, ip: str, family: Family) -> dict[str, openflow.Value]:
    return {**openflow.frames_of(endpoint), **family.tcp, family.destination: ip}


# Subports


def _subport_table(proxy: int) -> tuple[openflow.Flow, ...]:
    """Return the flows of the subport table.

    :param proxy: OpenFlow number of the port that leads to the proxy.
    """
    back = (openflow.PushVlan(), openflow.Move(Register.TAG, "vlan_vid", _VID_BITS))
    return (
        openflow.flow(
            Purpose.SUBPORT_PROXY,
            {"vlan_vid": openflow.UNTAGGED, Register.TAG: 0},
            actions=(openflow.Output(proxy),),
        ),
        # The controller learns from the tag which subport has sent the SYN.
        openflow.flow(
            Purpose.SUBPORT_SYN,
            {"vlan_vid": openflow.UNTAGGED, Register.TAG: (openflow.TAGGED, openflow.TAGGED)},
            actions=(*back, openflow.ToController(CONTROLLER_ID)),
        ),
        openflow.flow(Purpose.SUBPORT_DROP, {}),
    )


def untag(endpoint: Endpoint) -> tuple[openflow.Action, ...]:
    """Return the actions that take the tag of *endpoint* off; none if its frames have no tag."""
    return (openflow.PopVlan(),) if endpoint.vid else ()


def untagged(endpoint: Endpoint) -> Mapping[str, openflow.Value]:
    """Return the match that :func:`tag` needs, so that no frame gets a second tag."""
    return {"vlan_vid": openflow.UNTAGGED} if endpoint.vid else {}


def tag(endpoint: Endpoint) -> tuple[openflow.Action, ...]:
    """Return the actions that put the tag of *endpoint* on; none if its frames have no tag."""
    return (
        (openflow.PushVlan(), openflow.SetField("vlan_vid", openflow.TAGGED | endpoint.vid))
        if endpoint.vid
        else ()
    )


# Source addresses of containers


def _source_table() -> tuple[openflow.Flow, ...]:
    """Return the flows of the source table that do not depend on containers."""
    return (
        *(
            openflow.flow(Purpose.SOURCE_ROUTER_DROP, _icmpv6(kind))
            for kind in (ND_ROUTER_ADVERT, openflow.ND_NEIGHBOR_ADVERT, ND_REDIREC)
        ),
        openflow.flow(Purpose.SOURCE_DROP, {}),
    )


def source_checks(endpoint: Endpoint, binding: Binding) -> Iterator[openflow.Flow]:
    """Return the flows that pass a container's frames, and then the one that leads to them."""
    frames = {**openflow.frames_of(endpoint), "eth_src": binding.mac}
    address, interface = str(binding.ip), (interface_id(binding.mac), _INTERFACE_ID)
    arp: dict[str, openflow.Value] = {"eth_type": openflow.ETH_TYPE_ARP, "arp_sha": binding.mac}
    unspecified: dict[str, openflow.Value] = {"ipv6_src": _NONE6}
    solicitation = {**_icmpv6(openflow.ND_NEIGHBOR_SOLICIT), **unspecified, "icmpv6_code": 0}
    matches: tuple[dict[str, openflow.Value], ...] = (
        {**arp, "arp_spa": address},
        # A probe, by which a host looks for others with its address (RFC 5227, 2.1.1).
        {**arp, "arp_op": openflow.ARP_REQUEST, "arp_spa": _NONE, "arp_tpa": address},
        {"eth_type": openflow.ETH_TYPE_IP, "ipv4_src": address},
        # The same over IPv6 (RFC 4862, 5.4.2), and the report of groups before it (RFC 3590).
        {**solicitation, "ipv6_nd_target": interface},
        {**_icmpv6(MLDV2_LISTENER_REPORT), **unspecified},
        {
            **_icmpv6(openflow.ND_NEIGHBOR_ADVERT),
            "icmpv6_code": 0,
            "ipv6_src": interface,
            "ipv6_nd_target": interface,
        },
    )
    for match in matches:
        yield openflow.flow(Purpose.SOURCE_OWN, {**frames, **match}, actions=_PASS)
    yield openflow.flow(
        Purpose.SOURCE_OWN6,
        {**frames, "eth_type": openflow.ETH_TYPE_IPV6, "ipv6_src": interface},
        actions=_PASS,
    )
    # Tagged frames as well: no container sends them.
    unchecked = {"in_port": endpoint.ofport, Register.CHECKED: 0}
    yield openflow.flow(Purpose.GUEST_SOURCE, unchecked, goto=Stage.SOURCE)


def interface_id(mac: str) -> str:
    """Return the interface id of a MAC, as an IPv6 address of the prefix ``::/64``."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= _LOCAL
    return str(IPv6Address(int.from_bytes(octets[:3] + b"\xff\xfe" + octets[3:], "big")))


def _icmpv6(kind: int) -> dict[str, openflow.Value]:
    return {
        "eth_type": openflow.ETH_TYPE_IPV6,
        "ip_proto": openflow.IPPROTO_ICMPV6,
        "icmpv6_type": kind,
    }
