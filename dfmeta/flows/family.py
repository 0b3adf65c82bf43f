"""One version of IP for flows and the kernel: names, numbers, and how neighbours are found.

Builders of flows, the host's side and doctor's checks take a family as a parameter, as faucet's
IPv4 and IPv6 routing tables do.

ARP requests (RFC 826) are answered by the flow that they match. In neighbour discovery (RFC 4861),
a solicitation of a guest for the service takes three flows: classification sends it to the service
table, where its type, its flags and the type of its option change, and the neighbour discovery
table fills in the addresses. Open vSwitch needs two of them: a flow may set nd_tll only if it
matches the type of an advertisement (ovs-fields(7)). The flags and the type of the option are moved
from registers: datapaths of the kernel refuse to set these two fields, and accept a move.

A solicitation from the unspecified address is duplicate address detection (RFC 4862, 5.4.2). It is
dropped: an answer would take the address away from the guest. A solicitation without a source
link-layer address has no option that could become the target's; the controller answers it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

from os_ken.lib.packet.icmpv6 import ND_OPTION_TLA

from dfmeta.flows import openflow
from dfmeta.flows.pipeline import CONTROLLER_ID, Purpose, Register, Stage
from dfmeta.model import Endpoint

SOLICITED_OVERRIDE = 0x60000000
"""The first word of an advertisement's body: the flags S and O (RFC 4861, 4.4)."""
NO_MAC = "00:00:00:00:00:00"
"""Value of nd_sll in a solicitation without that option."""
UNSPECIFIED = "::"
_SOLICITED_NODE = IPv6Network("ff02::1:ff00:0/104")
_MAC_BITS = 48


def solicited_node(target: IPv6Address) -> IPv6Address:
    """Return the multicast address of solicitations for *target* (RFC 4291, 2.7.1)."""
    return _SOLICITED_NODE[int(target) & int(_SOLICITED_NODE.hostmask)]


def bare_request(endpoint: Endpoint, *, floods: bool = False) -> openflow.Flow:
    """Send a solicitation without a MAC of its sender to the controller; drop it if the guest
    *floods*."""
    match = {
        **openflow.frames_of(endpoint),
        **icmpv6_message(openflow.ND_NEIGHBOR_SOLICIT),
        "ipv6_nd_sll": NO_MAC,
    }
    actions = () if floods else (openflow.ToController(CONTROLLER_ID),)
    return openflow.flow(Purpose.GUEST_ND_BARE, match, actions=actions)


def neighbour_discovery(mac: str, ips: tuple[str, ...]) -> tuple[openflow.Flow, ...]:
    """Return the flows that do not depend on guests; *mac* is the answer for each of *ips*."""
    solicitation = icmpv6_message(openflow.ND_NEIGHBOR_SOLICIT)
    return (
        openflow.flow(Purpose.GUEST_DAD, {**solicitation, "ipv6_src": UNSPECIFIED}),
        openflow.flow(Purpose.GUEST_ND_ANSWER, solicitation, actions=ADVERTISE, goto=Stage.ND),
        openflow.flow(Purpose.KEY_ND_ANSWER, solicitation, actions=ADVERTISE, goto=Stage.ND),
        *(
            openflow.flow(Purpose.SERVICE_ND, nd_advertisement(ip), actions=nd_reply(ip, mac))
            for ip in ips
        ),
        openflow.flow(Purpose.ND_DROP, {}),
    )


ADVERTISE = (
    openflow.SetField("icmpv6_type", openflow.ND_NEIGHBOR_ADVERT),
    openflow.SetField(Register.ND_FLAGS, SOLICITED_OVERRIDE),
    openflow.SetField(Register.ND_OPTION, ND_OPTION_TLA),
    openflow.Move(Register.ND_FLAGS, "nd_reserved", 32),
    openflow.Move(Register.ND_OPTION, "nd_options_type", 8),
)
"""Actions that turn a solicitation into an advertisement, but for its addresses."""


def icmpv6_message(kind: int) -> Mapping[str, openflow.Value]:
    """Return the match of messages of that ICMPv6 type."""
    return {
        "eth_type": openflow.ETH_TYPE_IPV6,
        "ip_proto": openflow.IPPROTO_ICMPV6,
        "icmpv6_type": kind,
        "icmpv6_code": 0,
    }


def nd_advertisement(ip: str) -> Mapping[str, openflow.Value]:
    """Return the match of advertisements of *ip*."""
    return {**icmpv6_message(openflow.ND_NEIGHBOR_ADVERT), "ipv6_nd_target": ip}


def nd_reply(ip: str, mac: str) -> tuple[openflow.Action, ...]:
    """Return actions that complete the advertisement "*ip* is at *mac*", and send it back."""
    return (
        openflow.Move("eth_src", "eth_dst", _MAC_BITS),
        openflow.SetField("eth_src", mac),
        openflow.Move("ipv6_src", "ipv6_dst", IPV6.bits),
        openflow.SetField("ipv6_src", ip),
        openflow.SetField("ipv6_nd_tll", mac),
        openflow.Output(openflow.PORT_IN_PORT),
    )


def next_hop_request(endpoint: Endpoint, mac: str, ip: str) -> openflow.Flow:
    """Answer a request for the guest next hop *ip* from the guest at *endpoint* with *mac*.

    The flow matches on the sender's address as well, see :func:`senders_of`: a probe for a
    duplicate address (RFC 5227, 2.1.1), whose sender is 0.0.0.0, is left to the bridge's owner. An
    answer to it would forbid a guest the address that it has got from DHCP.
    """
    match = {**openflow.frames_of(endpoint), **arp_request(ip), "arp_spa": senders_of(ip)}
    return openflow.flow(Purpose.GUEST_NEXT_HOP, match, actions=arp_reply(mac, ip))


def senders_of(ip: str) -> tuple[str, str]:
    """Return address and mask of the senders whose requests for *ip* are answered.

    A match cannot exclude 0.0.0.0. So it consists of the leading bits of *ip* up to the first one
    that is set: 10.0.0.2 gives 8.0.0.0/5, and 192.0.2.2 gives 128.0.0.0/1. A guest on the same
    network as *ip* has these bits as well, and 0.0.0.0 has not.

    :param ip: not 0.0.0.0.
    """
    number = int(IPv4Address(ip))
    first = number.bit_length() - 1
    bits = number >> first << first
    mask = (1 << IPV4.bits) - (1 << first)
    return str(IPv4Address(bits)), str(IPv4Address(mask))


def arp_request(ip: str) -> Mapping[str, openflow.Value]:
    """Return the match of requests for *ip*."""
    return {"eth_type": openflow.ETH_TYPE_ARP, "arp_op": openflow.ARP_REQUEST, "arp_tpa": ip}


def arp_reply(mac: str, ip: str) -> tuple[openflow.Action, ...]:
    """Return actions that turn a request into the reply "*ip* is at *mac*", and send it back."""
    return (
        openflow.Move("eth_src", "eth_dst", _MAC_BITS),
        openflow.SetField("eth_src", mac),
        openflow.SetField("arp_op", openflow.ARP_REPLY),
        openflow.Move("arp_sha", "arp_tha", _MAC_BITS),
        openflow.Move("arp_spa", "arp_tpa", IPV4.bits),
        openflow.SetField("arp_sha", mac),
        openflow.SetField("arp_spa", ip),
        openflow.Output(openflow.PORT_IN_PORT),
    )


@dataclass(frozen=True, slots=True)
class Family:
    """A version of IP. Field names are OpenFlow's (OpenFlow 1.3.5, 7.2.3.7)."""

    version: int
    af: int
    """Number of the address family in the kernel (address_families(7))."""
    arp: bool
    """Whether neighbours are found with ARP (RFC 826), and not with ICMPv6 (RFC 4861)."""
    eth_type: int
    bits: int
    """Length of an address, which is also the prefix length of a single address."""
    source: str
    """Field with a packet's source address."""
    destination: str
    target: str
    """Field with the address that a neighbour request asks for."""

    @property
    def tcp(self) -> Mapping[str, openflow.Value]:
        """The match of TCP packets of this version."""
        return {"eth_type": self.eth_type, "ip_proto": openflow.IPPROTO_TCP}


IPV4: Final = Family(
    version=4,
    af=2,
    arp=True,
    eth_type=openflow.ETH_TYPE_IP,
    bits=32,
    source="ipv4_src",
    destination="ipv4_dst",
    target="arp_tpa",
)
IPV6: Final = Family(
    version=6,
    af=10,
    arp=False,
    eth_type=openflow.ETH_TYPE_IPV6,
    bits=128,
    source="ipv6_src",
    destination="ipv6_dst",
    target="ipv6_nd_target",
)
FAMILIES: Final = (IPV4, IPV6)


def family_of(version: int) -> Family:
    """Return the family of an address's ``version``, 4 or 6."""
    return IPV4 if version == 4 else IPV6


def guest_request(endpoint: Endpoint, family: Family, mac: str, ip: str) -> openflow.Flow:
    """Answer an ARP request for *ip* from the guest at *endpoint* with *mac*, or send a
    solicitation to the service table.

    The classification flows do not match on the MAC, but the guest's network stack needs one
    (specification, "Proposed Change").
    """
    if family.arp:
        match = {**openflow.frames_of(endpoint), **arp_request(ip)}
        return openflow.flow(Purpose.GUEST_ARP, match, actions=arp_reply(mac, ip))
    match = {
        **openflow.frames_of(endpoint),
        **icmpv6_message(openflow.ND_NEIGHBOR_SOLICIT),
        "ipv6_nd_target": ip,
    }
    return openflow.flow(Purpose.GUEST_ND, match, goto=Stage.SERVICE)


def key_request(family: Family, key: str, mac: str, *, arp: Purpose, nd: Purpose) -> openflow.Flow:
    """Answer the host's request for *key* with *mac*; see :func:`neighbour_discovery`.

    Only frames from the port that leads to the proxy reach the flow. *mac* may be under the guest's
    control: the answer goes to that port only, and the reply flow sets its own destination.

    :param arp, nd: the purpose of the flow, by the way in which neighbours are found.
    """
    if family.arp:
        return openflow.flow(arp, arp_request(key), actions=arp_reply(mac, key))
    return openflow.flow(nd, nd_advertisement(key), actions=nd_reply(key, mac))
