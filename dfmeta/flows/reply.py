"""The reply table: an answer is sent to the port of its key, and all other frames are dropped."""

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
    """Restore the guest's addresses in an answer to the key of *slot*; send it to its port only.

    The flow sets eth_dst, because the host's neighbour table may contain the guest's previous MAC.
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
    """Send the answer of the proxy's listener to the daemon's own SYN to the controller."""
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
    """Drop all other frames from tap-metadata: the host is not reachable through it."""
    return flow(Purpose.REPLY_DROP, {})
