"""Classification: what is a guest's metadata traffic, and what comes from tap-metadata."""

from __future__ import annotations

from dfmeta.flows.flow import ETH_IP, PROTO_TCP, UNTAGGED, Flow, flow
from dfmeta.flows.pipeline import METADATA_IP, METADATA_PORT, Purpose, Stage


def guest_http(ofport: int, ip: str = METADATA_IP) -> Flow:
    """Send untagged TCP to port 80 of *ip* that enters at *ofport* to the service table.

    ``in_port`` makes it one flow for each guest: ports that are not guests' have none. Only port
    80 of TCP is taken, since others may answer on other ports of the address (Neutron's DNS on
    UDP/53).
    """
    return flow(
        Purpose.GUEST_HTTP,
        {
            "in_port": ofport,
            "vlan_vid": UNTAGGED,
            "eth_type": ETH_IP,
            "ip_proto": PROTO_TCP,
            "ipv4_dst": ip,
            "tcp_dst": METADATA_PORT,
        },
        goto=Stage.SERVICE,
    )


def from_tap(tap_ofport: int) -> Flow:
    """Send all that tap-metadata emits to the reply table, and so nowhere else."""
    return flow(Purpose.FROM_TAP, {"in_port": tap_ofport}, goto=Stage.REPLY)
