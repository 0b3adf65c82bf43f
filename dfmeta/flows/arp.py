"""ARP (RFC 826) in flows: requests are answered by the flow that they match."""

from __future__ import annotations

from collections.abc import Mapping

from dfmeta.flows.flow import (
    ARP_REPLY,
    ARP_REQUEST,
    ETH_ARP,
    Action,
    Flow,
    Move,
    Output,
    SetField,
    Value,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import PORT_IN_PORT, Purpose
from dfmeta.model import Endpoint

_MAC_BITS = 48
_IPV4_BITS = 32


def guest_request(endpoint: Endpoint, mac: str, ip: str) -> Flow:
    """Answer a request for *ip* from the guest at *endpoint* with *mac*.

    The classification flows do not match on the MAC, but the guest's network stack needs one
    (specification, "Proposed Change").
    """
    match = {**frames_of(endpoint), **question(ip)}
    return flow(Purpose.GUEST_ARP, match, actions=answer(mac, ip))


def key_request(key: str, mac: str) -> Flow:
    """Answer the host's request for *key* with the guest's *mac*.

    The flow is in the reply table, which only frames from tap-metadata reach. *mac* is under the
    guest's control: the answer goes to tap-metadata only, and the reply flow sets its own
    destination.
    """
    return flow(Purpose.KEY_ARP, question(key), actions=answer(mac, key))


def question(ip: str) -> Mapping[str, Value]:
    """Return the match of requests for *ip*."""
    return {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST, "arp_tpa": ip}


def answer(mac: str, ip: str) -> tuple[Action, ...]:
    """Return actions that turn a request into the reply "*ip* is at *mac*", and send it back."""
    return (
        Move("eth_src", "eth_dst", _MAC_BITS),
        SetField("eth_src", mac),
        SetField("arp_op", ARP_REPLY),
        Move("arp_sha", "arp_tha", _MAC_BITS),
        Move("arp_spa", "arp_tpa", _IPV4_BITS),
        SetField("arp_sha", mac),
        SetField("arp_spa", ip),
        Output(PORT_IN_PORT),
    )
