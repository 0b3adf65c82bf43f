"""Neighbour discovery (RFC 4861) in flows: solicitations become advertisements, and go back.

A solicitation of a guest for the service takes three flows: classification sends it to the service
table, where its type, its flags and the type of its option change, and the neighbour discovery
table fills in the addresses. Open vSwitch needs two of them: a flow may set nd_tll only if it
matches the type of an advertisement (ovs-fields(7)).

The flags and the type of the option are moved from registers: datapaths of the kernel refuse to set
these two fields, and accept a move.

A solicitation from the unspecified address is duplicate address detection (RFC 4862, 5.4.2). It is
dropped: an answer would take the address away from the guest. A solicitation without a source
link-layer address has no option that could become the target's; the controller answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address

from dfmeta.flows.flow import (
    ETH_IPV6,
    ND_ADVERTISEMENT,
    ND_SOLICITATION,
    PROTO_ICMPV6,
    Action,
    Flow,
    Move,
    Output,
    SetField,
    ToController,
    Value,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import CONTROLLER_ID, PORT_IN_PORT, Purpose, Register, Stage
from dfmeta.model import Endpoint

SOLICITED_OVERRIDE = 0x60000000
"""The first word of an advertisement's body: the flags S and O (RFC 4861, 4.4)."""
TARGET_LINK_LAYER = 2
"""Type of the option with the target's MAC (RFC 4861, 4.6.1)."""
NO_MAC = "00:00:00:00:00:00"
"""Value of nd_sll in a solicitation without that option."""
UNSPECIFIED = "::"
_SOLICITED_NODE = int(IPv6Address("ff02::1:ff00:0"))
_LOW_BITS = 0xFFFFFF
_MAC_BITS = 48
_IPV6_BITS = 128


def solicited_node(target: IPv6Address) -> IPv6Address:
    """Return the multicast address of solicitations for *target* (RFC 4291, 2.7.1)."""
    return IPv6Address(_SOLICITED_NODE | int(target) & _LOW_BITS)


def guest_request(endpoint: Endpoint, _mac: str, ip: str) -> Flow:
    """Send a solicitation for *ip* from the guest at *endpoint* to the service table."""
    match = {**frames_of(endpoint), **message(ND_SOLICITATION), "ipv6_nd_target": ip}
    return flow(Purpose.GUEST_ND, match, goto=Stage.SERVICE)


def bare_request(endpoint: Endpoint, *, floods: bool = False) -> Flow:
    """Send a solicitation without a MAC of its sender to the controller; drop it if the guest
    *floods*."""
    match = {**frames_of(endpoint), **message(ND_SOLICITATION), "ipv6_nd_sll": NO_MAC}
    actions = () if floods else (ToController(CONTROLLER_ID),)
    return flow(Purpose.GUEST_ND_BARE, match, actions=actions)


def fixed(mac: str, ips: tuple[str, ...]) -> tuple[Flow, ...]:
    """Return the flows that do not depend on guests; *mac* is the answer for each of *ips*."""
    solicitation = message(ND_SOLICITATION)
    return (
        flow(Purpose.GUEST_DAD, {**solicitation, "ipv6_src": UNSPECIFIED}),
        flow(Purpose.GUEST_ND_ANSWER, solicitation, actions=PREPARE, goto=Stage.ND),
        flow(Purpose.KEY_ND_ANSWER, solicitation, actions=PREPARE, goto=Stage.ND),
        *(_target(Purpose.SERVICE_ND, ip, mac) for ip in ips),
        flow(Purpose.ND_DROP, {}),
    )


def key_request(key: str, mac: str) -> Flow:
    """Answer the host's solicitation for *key* with the guest's *mac*; see :func:`fixed`.

    Only frames from tap-metadata have a key as their target here: classification sends guests'
    solicitations for the service's addresses only.
    """
    return _target(Purpose.KEY_ND, key, mac)


PREPARE = (
    SetField("icmpv6_type", ND_ADVERTISEMENT),
    SetField(Register.ND_FLAGS, SOLICITED_OVERRIDE),
    SetField(Register.ND_OPTION, TARGET_LINK_LAYER),
    Move(Register.ND_FLAGS, "nd_reserved", 32),
    Move(Register.ND_OPTION, "nd_options_type", 8),
)
"""Actions that turn a solicitation into an advertisement, but for its addresses."""


def message(kind: int) -> Mapping[str, Value]:
    """Return the match of messages of that ICMPv6 type."""
    return {
        "eth_type": ETH_IPV6,
        "ip_proto": PROTO_ICMPV6,
        "icmpv6_type": kind,
        "icmpv6_code": 0,
    }


def advertisement(ip: str) -> Mapping[str, Value]:
    """Return the match of advertisements of *ip*."""
    return {**message(ND_ADVERTISEMENT), "ipv6_nd_target": ip}


def _target(purpose: Purpose, ip: str, mac: str) -> Flow:
    return flow(purpose, advertisement(ip), actions=answer(ip, mac))


def answer(ip: str, mac: str) -> tuple[Action, ...]:
    """Return actions that complete the advertisement "*ip* is at *mac*", and send it back."""
    return (
        Move("eth_src", "eth_dst", _MAC_BITS),
        SetField("eth_src", mac),
        Move("ipv6_src", "ipv6_dst", _IPV6_BITS),
        SetField("ipv6_src", ip),
        SetField("ipv6_nd_tll", mac),
        Output(PORT_IN_PORT),
    )
