"""Frames with two VLAN tags on a switch that looks behind both: they reach nothing of dfmeta's."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.identity.key import SLOTS6
from dfmeta.model import Endpoint, GuestAddress
from tests.core.flows.world import SERVICE6, Host, Host6
from tests.harness.ovs import OpenvSwitch
from tests.host.ovs.pair import Pair, shared_pair
from tests.host.ovs.switch import ELSEWHERE, TAP_PORT

pair = shared_pair
RST = 0x04
TAP = Tap(TAP_PORT, "02:00:00:00:00:09", 9775, ip6="fd00::1", guest_ip6=SERVICE6)
HOSTS = (Host(1), Host6(1))
ADDRESSES = {
    0: GuestAddress(HOSTS[0].mac, IPv4Address(HOSTS[0].ip)),
    SLOTS6[0]: GuestAddress(HOSTS[1].mac, IPv6Address(HOSTS[1].ip), IPv6Address(SERVICE6[0])),
}


@pytest.mark.parametrize("limit", ["1", "2"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("flags", [0x02, 0x10, 0x04])
def test_a_second_tag_reaches_neither_the_proxy_nor_the_controller(
    shared_host: OpenvSwitch, pair: Pair, limit: str, known: bool, flags: int
) -> None:
    """The outer tag is that of a subport, and the inner one that of another or of none."""
    guests = [ServedEndpoint(Endpoint(1, vid), ADDRESSES if known else {}) for vid in (0, 100, 200)]
    pair.install(
        [
            *fixed_flows(TAP),
            *(guest_flow for guest in guests for guest_flow in guest_flows(guest, TAP)),
        ]
    )
    shared_host.vsctl("set", "Open_vSwitch", ".", f"other_config:vlan-limit={limit}")
    try:
        for host in HOSTS:
            (single,) = pair.tracer.trace([(1, host.segment(flags=flags, tags=[100]))])
            reached = single.ports == (TAP_PORT,) or bool(single.controllers)
            assert reached == (known or flags != RST)
            for inner in (200, 100, 5, 0):
                frame = host.segment(flags=flags, tags=[100, inner])
                (traced,) = pair.tracer.trace([(1, frame)])
                assert traced.controllers == ()
                # With a limit of 1, the switch sees no TCP in the frame.
                assert traced.ports == (() if limit == "2" else (ELSEWHERE,)), traced.text
    finally:
        shared_host.vsctl("remove", "Open_vSwitch", ".", "other_config", "vlan-limit")
