"""Neighbours: guests resolve the service's address to a MAC, and the host resolves keys."""

from __future__ import annotations

from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.flow import Flow, flow, frames_of
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint


def guest_arp(endpoint: Endpoint, mac: str, *, ip: str, family: Family = IPV4) -> Flow:
    """Answer a request for *ip* from the guest at *endpoint* with *mac*.

    The classification flows do not match on the MAC, but the guest's network stack needs one
    (specification, "Proposed Change").
    """
    match = {**frames_of(endpoint), **family.question(ip)}
    return flow(Purpose.GUEST_ARP, match, actions=family.answer(mac, ip))


def key_arp(key: str, mac: str, *, family: Family = IPV4) -> Flow:
    """Answer the host's request for *key* with the guest's *mac*.

    The flow is in the reply table, which only frames from tap-metadata reach. *mac* is under the
    guest's control: the answer goes to tap-metadata only, and the reply flow sets its own
    destination.
    """
    return flow(Purpose.KEY_ARP, family.question(key), actions=family.answer(mac, key))
