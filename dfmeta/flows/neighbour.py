"""Neighbours: a guest learns the service's MAC, the host learns a key's."""

from __future__ import annotations

from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.flow import Flow, flow, frames_of
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint


def guest_arp(endpoint: Endpoint, mac: str, *, ip: str, family: Family = IPV4) -> Flow:
    """Answer a question for *ip* from the guest at *endpoint* with *mac*.

    The MAC is hardly used, since the classification flow does not look at it, but the guest's
    network stack needs one (specification, "Proposed Change").
    """
    match = {**frames_of(endpoint), **family.question(ip)}
    return flow(Purpose.GUEST_ARP, match, actions=family.answer(mac, ip))


def key_arp(key: str, mac: str, *, family: Family = IPV4) -> Flow:
    """Answer the host's question for *key* with the guest's *mac*.

    Stands in the reply table, so that it can only be reached from tap-metadata. *mac* is what the
    guest calls itself: it goes to tap-metadata alone and the reply flow sets its own destination.
    """
    return flow(Purpose.KEY_ARP, family.question(key), actions=family.answer(mac, key))
