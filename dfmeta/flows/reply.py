"""The reply table: an answer leaves on the port of its key, and nothing else leaves at all."""

from __future__ import annotations

from dfmeta.flows.flow import (
    Action,
    Flow,
    Output,
    SetField,
    ToController,
    flow,
)
from dfmeta.flows.key import PROBE_KEY
from dfmeta.flows.pipeline import CONTROLLER_ID, METADATA_PORT, Purpose
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint, GuestAddress


def reply(endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap) -> Flow:
    """Give an answer to the key of *slot* the guest's own addresses and send it to its port alone.

    eth_dst is set here and not left to the host's neighbour table, which may hold the MAC that
    the guest had before.
    """
    actions: list[Action] = [
        SetField("eth_dst", address.mac),
        SetField(tap.family.destination, str(address.ip)),
        SetField("tcp_src", METADATA_PORT),
    ]
    if tap.ip != tap.guest_ip:
        actions.append(SetField(tap.family.source, tap.guest_ip))
    return flow(
        Purpose.REPLY,
        {
            **tap.family.tcp,
            tap.family.source: tap.ip,
            tap.family.destination: str(tap.keys.key_of(endpoint, slot)),
            "tcp_src": tap.port,
        },
        actions=(*actions, Output(endpoint.ofport)),
    )


def probe(tap: Tap) -> Flow:
    """Send what the proxy's listener answers to the daemon's own SYN to the controller."""
    return flow(
        Purpose.PROBE,
        {
            **tap.family.tcp,
            tap.family.source: tap.ip,
            tap.family.destination: PROBE_KEY,
            "tcp_src": tap.port,
        },
        actions=(ToController(CONTROLLER_ID),),
    )


def reply_drop() -> Flow:
    """Drop everything else that tap-metadata emits: the host is not reachable through it."""
    return flow(Purpose.REPLY_DROP, {})
