"""ARP responders: a guest learns the service's MAC, the host learns a key's."""

from __future__ import annotations

from dfmeta.flows.flow import (
    ARP_REPLY,
    ARP_REQUEST,
    ETH_ARP,
    UNTAGGED,
    Action,
    Flow,
    Move,
    Output,
    SetField,
    flow,
)
from dfmeta.flows.pipeline import PORT_IN_PORT, Purpose

_MAC_BITS = 48
_IPV4_BITS = 32


def guest_arp(ofport: int, mac: str, *, ip: str) -> Flow:
    """Answer an untagged question for *ip* from the guest at *ofport* with *mac*.

    The MAC is hardly used, since the classification flow does not look at it, but the guest's
    network stack needs one (specification, "Proposed Change").
    """
    return flow(
        Purpose.GUEST_ARP,
        {
            "in_port": ofport,
            "vlan_vid": UNTAGGED,
            "eth_type": ETH_ARP,
            "arp_op": ARP_REQUEST,
            "arp_tpa": ip,
        },
        actions=_answer(mac, ip),
    )


def key_arp(key: str, mac: str) -> Flow:
    """Answer the host's question for *key* with the guest's *mac*.

    Stands in the reply table, so that it can only be reached from tap-metadata. *mac* is what the
    guest calls itself: it goes to tap-metadata alone and the reply flow sets its own destination.
    """
    return flow(
        Purpose.KEY_ARP,
        {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST, "arp_tpa": key},
        actions=_answer(mac, key),
    )


def _answer(mac: str, ip: str) -> tuple[Action, ...]:
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
