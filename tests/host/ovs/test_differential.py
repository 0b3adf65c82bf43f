"""The model of :mod:`tests.flowsim` and Open vSwitch do the same with the same frames.

Both are fed the same bytes. What the model sends out is shown to ``ofproto/trace`` again, so that
Open vSwitch's own reading of the frame is compared with the fields that it would have sent.
"""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from dfmeta.flows.flow import Flow
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.pipeline import BR_INT, METADATA_IP, RATES, Purpose
from dfmeta.identity.key import SLOTS6
from dfmeta.model import Endpoint, GuestAddress, NextHop
from tests.core.flows.frames import ethernet, ipv4, tcp
from tests.core.flows.world import SERVICE6
from tests.host.ovs import made_up4, made_up6
from tests.host.ovs.made_up import MACS, TAP_MAC, cases
from tests.host.ovs.made_up4 import HOST_IP, IPS
from tests.host.ovs.pair import Pair, bare_flow, own_pair
from tests.host.ovs.switch import GUESTS, TAP_PORT

# tools/soak runs them with more frames.
pytestmark = pytest.mark.hypothesis
pair = own_pair
BEHIND = Endpoint(2, 100)


@pytest.mark.parametrize("kind", [made_up4, made_up6], ids=["IPv4", "IPv6"])
def test_model_and_open_vswitch_agree_on_frames_in_every_state(pair: Pair, kind: Any) -> None:
    pair.agree_on(cases(kind.states(), kind.likely, kind.frames))


# Messages


def test_they_refuse_the_same_messages_with_the_same_errors(pair: Pair) -> None:
    wire, bundle = pair.wire, pair.wire.bundle
    tap = Tap(TAP_PORT, TAP_MAC, 9775)
    flows = guest_flows(ServedEndpoint(Endpoint(1)), tap)

    def refused() -> Any:
        return bare_flow(wire, [parser.OFPActionGroup(3)], match={"in_port": 2})

    (error, _barrier) = pair.feed(refused())
    assert error[1] == ofp.OFPT_ERROR
    answers = pair.feed(*bundle(0xFFFF, [*map(wire.add, flows), refused()]))
    assert sum(answer[1] == ofp.OFPT_ERROR for answer in answers) == 2
    assert len(pair.model.flows) == 1, "that of the bridge"
    pair.feed(*wire.count_tables())


def test_replaced_flow_keeps_its_counters(pair: Pair) -> None:
    """A guest begins to flood, and ends: the counters of its SYNs go on."""
    guest, wire = ServedEndpoint(Endpoint(1)), pair.wire
    tap = Tap(TAP_PORT, TAP_MAC, 9775)
    packet = ipv4(tcp(dst=METADATA_IP, src="10.1.1.1"), dst=METADATA_IP, src="10.1.1.1")
    syn = ethernet(packet, dst=TAP_MAC, src=MACS[0])
    pair.install([*fixed_flows(tap), *guest_flows(guest, tap)])
    for number, floods in enumerate((frozenset(RATES), frozenset[Purpose](), frozenset(RATES)), 1):
        assert pair.packets(Purpose.GUEST_SYN, guest.endpoint) == number - 1
        pair.inject(1, syn)
        assert pair.packets(Purpose.GUEST_SYN, guest.endpoint) == number
        pair.feed(*map(wire.add, guest_flows(replace(guest, floods=floods), tap)))


def test_requests_of_each_table_and_purpose_are_answered_alike(pair: Pair) -> None:
    pair.install(three_guests())
    wire = pair.wire
    pair.feed(*wire.count_tables())
    for purpose in BR_INT.purposes:
        pair.feed(
            wire.count(purpose), wire.count(purpose, Endpoint(2)), wire.count(purpose, BEHIND)
        )


def test_flows_are_read_back_as_they_were_put_in(pair: Pair) -> None:
    pair.read_alike(three_guests())
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip6=made_up6.HOST_IP6, guest_ip6=tuple(SERVICE6))
    guest_address = GuestAddress(MACS[0], IPv6Address("fd12:3456::5"), IPv6Address(SERVICE6[0]))
    guest = ServedEndpoint(BEHIND, {SLOTS6[0]: guest_address}, floods=tuple(RATES))
    pair.read_alike([*fixed_flows(tap), *guest_flows(guest, tap)])


def test_deletions_take_the_same_flows_away(pair: Pair) -> None:
    flows, wire = three_guests(), pair.wire
    pair.install(flows)
    pair.feed(bare_flow(wire, [], match={"in_port": 1}, cookie=5, table_id=200))
    for flow in flows[::2]:
        pair.feed(wire.remove(flow), *wire.count_tables())
    loose = {"command": ofp.OFPFC_DELETE, "out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY}
    before = len(pair.model.flows)
    pair.feed(
        bare_flow(wire, [], match={"in_port": 1}, table_id=200, **loose), *wire.count_tables()
    )
    assert 1 < len(pair.model.flows) < before
    pair.feed(wire.remove_all(), *wire.count_tables())
    assert [flow.cookie for flow in pair.model.flows] == [0]


def three_guests() -> list[Flow]:
    """Three guests with the same two addresses."""
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=HOST_IP)
    known = {slot: GuestAddress(MACS[0], IPv4Address(IPS[slot])) for slot in (0, 1)}
    hops = (NextHop("10.0.0.2", MACS[1]), NextHop("192.0.2.2"))
    guests = [ServedEndpoint(Endpoint(ofport), known, next_hops=hops) for ofport in GUESTS]
    return [
        *fixed_flows(tap),
        *(guest_flow for guest in guests for guest_flow in guest_flows(guest, tap)),
    ]
