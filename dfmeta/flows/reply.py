"""The reply table: an answer is sent to the port of its key, and all other frames are dropped."""

from __future__ import annotations

from dfmeta.flows import subport
from dfmeta.flows.family import Family
from dfmeta.flows.flow import (
    Action,
    Flow,
    Output,
    SetField,
    ToController,
    Value,
    flow,
)
from dfmeta.flows.pipeline import CONTROLLER_ID, METADATA_PORT, Purpose
from dfmeta.flows.service import Service, Tap
from dfmeta.model import Endpoint, GuestAddress


def reply(endpoint: Endpoint, address: GuestAddress, *, slot: int, tap: Tap) -> Flow:
    """Restore the guest's addresses in an answer to the key of *slot*; send it to its port only.

    The flow sets eth_dst, because the host's neighbour table may contain the guest's previous MAC.
    """
    service = tap.service(address.ip.version)
    label = tap.keys.label(slot)
    if label is not None:
        return _behind_the_patch(endpoint, address, label, tap=tap, family=service.family)
    family, asked = service.family, str(address.service or tap.guest_ip)
    actions: list[Action] = [
        SetField("eth_dst", address.mac),
        SetField(family.destination, str(address.ip)),
        SetField("tcp_src", METADATA_PORT),
    ]
    if service.ip != asked:
        actions.append(SetField(family.source, asked))
    return flow(
        Purpose.REPLY,
        {
            **subport.untagged(endpoint),
            **_from_listener(tap, service, str(tap.keys.key_of(endpoint, slot))),
        },
        actions=(*actions, *subport.tag(endpoint), Output(endpoint.ofport)),
    )


def _behind_the_patch(
    endpoint: Endpoint, address: GuestAddress, label: str, *, tap: Tap, family: Family
) -> Flow:
    """Return the reply flow for frames of the second bridge, which have *label* as destination.

    The second bridge has restored the address and the port of the service.
    """
    return flow(
        Purpose.REPLY,
        {**subport.untagged(endpoint), **family.tcp, "eth_dst": label},
        actions=(
            SetField("eth_dst", address.mac),
            SetField("eth_src", tap.mac),
            SetField(family.destination, str(address.ip)),
            *subport.tag(endpoint),
            Output(endpoint.ofport),
        ),
    )


def probe(tap: Tap, service: Service) -> Flow:
    """Send the answer of the proxy's listener to the daemon's own SYN to the controller."""
    version = service.family.version
    label = tap.keys.probe_label(version)
    return flow(
        Purpose.PROBE,
        {**service.family.tcp, "eth_dst": label}
        if label is not None
        else _from_listener(tap, service, tap.keys.probe_key(version)),
        actions=(ToController(CONTROLLER_ID),),
    )


def reply_drop() -> Flow:
    """Drop all other frames from tap-metadata: the host is not reachable through it."""
    return flow(Purpose.REPLY_DROP, {})


def _from_listener(tap: Tap, service: Service, key: str) -> dict[str, Value]:
    family = service.family
    return {
        **family.tcp,
        family.source: service.ip,
        family.destination: key,
        "tcp_src": tap.port,
    }
