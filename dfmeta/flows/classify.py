"""Classification: finds guests' metadata traffic and the traffic from tap-metadata.

All flows for guests match ``in_port``: ports that do not belong to guests get none of them.
"""

from __future__ import annotations

from dfmeta.flows.family import IPV4, Family
from dfmeta.flows.flow import IP_FRAG_ANY, TCP_SYN, Flow, Value, flow, frames_of
from dfmeta.flows.pipeline import METADATA_IP, METADATA_PORT, Purpose, Stage
from dfmeta.model import Endpoint


def guest_http(endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4) -> Flow:
    """Send TCP to port 80 of *ip* that comes in at *endpoint* to the service table.

    Only TCP port 80 is matched, since other programs may serve other ports of the address
    (Neutron's DNS on UDP/53). SYNs have a separate flow, :func:`guest_syn`: no packet matches both.
    """
    match = _to_service(endpoint, ip, family)
    match |= {"tcp_dst": METADATA_PORT, "tcp_flags": (0, TCP_SYN)}
    return flow(Purpose.GUEST_HTTP, match, goto=Stage.SERVICE)


def guest_syn(
    endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4, *, floods: bool = False
) -> Flow:
    """Send SYNs to port 80 of *ip* to the service table; drop them if the guest *floods*."""
    match = _to_service(endpoint, ip, family)
    match |= {"tcp_dst": METADATA_PORT, "tcp_flags": (TCP_SYN, TCP_SYN)}
    return flow(Purpose.GUEST_SYN, match, goto=None if floods else Stage.SERVICE)


def guest_fragment(endpoint: Endpoint, ip: str = METADATA_IP, family: Family = IPV4) -> Flow:
    """Drop fragments of TCP to *ip*, whose TCP port Open vSwitch does not see.

    Without this flow, they would reach another host or program that has the address.
    """
    match = _to_service(endpoint, ip, family) | {"ip_frag": (IP_FRAG_ANY, IP_FRAG_ANY)}
    return flow(Purpose.GUEST_FRAGMENT, match)


def from_tap(tap_ofport: int) -> Flow:
    """Send all frames from tap-metadata to the reply table, and so nowhere else."""
    return flow(Purpose.FROM_TAP, {"in_port": tap_ofport}, goto=Stage.REPLY)


def _to_service(endpoint: Endpoint, ip: str, family: Family) -> dict[str, Value]:
    return {**frames_of(endpoint), **family.tcp, family.destination: ip}
