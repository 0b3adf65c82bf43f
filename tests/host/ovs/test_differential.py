"""The model of :mod:`tests.flowsim` and Open vSwitch do the same with the same frames.

Both are fed the same bytes. What the model sends out is shown to ``ofproto/trace`` again, so that
Open vSwitch's own reading of the frame is compared with the fields that it would have sent.
"""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import BR_INT, METADATA_IP, RATES, Purpose
from dfmeta.identity.key import IN_PORT, SLOT6, SLOTS6
from dfmeta.model import Endpoint, GuestAddress, NextHop
from tests.core.flows.frames import (
    ATOMIC,
    AUTHENTICATION,
    DESTINATION,
    HOP_BY_HOP,
    ethernet,
    ipv4,
    link_layer,
    option,
    part,
    routing,
    tcp,
)
from tests.core.flows.world import SERVICE6, TAP6, Host, Host6, tap_frame
from tests.harness.examples import FIXED
from tests.harness.netns import CommandError
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import DEADLINE
from tests.host.ovs import made_up4, made_up6
from tests.host.ovs.made_up import MACS, TAP_MAC, cases
from tests.host.ovs.made_up4 import HOST_IP, IPS
from tests.host.ovs.pair import Pair, bare_flow, own_pair
from tests.host.ovs.switch import ELSEWHERE, GUESTS, TAP_PORT

# tools/soak runs them with more frames.
pytestmark = pytest.mark.hypothesis
pair = own_pair
BEHIND = Endpoint(2, 100)
ALL_PROTOCOLS = 3
"""ETH_P_ALL of linux/if_ether.h."""
OTHER_MAC = "fa:16:3e:ff:ff:fe"


@pytest.mark.parametrize("kind", [made_up4, made_up6], ids=["IPv4", "IPv6"])
def test_model_and_open_vswitch_agree_on_frames_in_every_state(pair: Pair, kind: Any) -> None:
    pair.agree_on(cases(kind.states(), kind.likely, kind.frames))


# Bytes


@pytest.fixture(params=[True, False], ids=["datapath with ND extensions", "without them"])
def datapath(lasting_host: OpenvSwitch, request: pytest.FixtureRequest) -> Iterator[OpenvSwitch]:
    """The bridge, also on what ovs-vswitchd takes for a datapath of the kernel in this respect.

    Its premise: a field that is set needs the feature.
    """
    feature = ("dpif/set-dp-features", BRIDGE, "nd_ext")
    sets = "table=7,icmp6,icmp_type=135,icmp_code=0,actions=set_field:0x60000000->nd_reserved"
    if not request.param:
        lasting_host.appctl(*feature, "false")
        with pytest.raises(CommandError, match="BAD_SET_ARGUMENT"):
            lasting_host.ofctl("add-flow", BRIDGE, sets)
    yield lasting_host
    lasting_host.appctl(*feature, "true")


@pytest.fixture
def sniffers(datapath: OpenvSwitch, lasting_ports: object) -> Iterator[dict[int, socket.socket]]:
    """What the switch sends out of each port."""
    del lasting_ports
    with ExitStack() as stack:
        sockets = {}
        for number in (*GUESTS, ELSEWHERE, TAP_PORT):
            device = f"p{number}"
            datapath.namespace.sysctl(**{f"net.ipv6.conf.{device}.disable_ipv6": 1})
            datapath.namespace.ip(f"link set {device} up")
            sniffer = datapath.namespace.open_socket(socket.AF_PACKET, socket.SOCK_RAW)
            sniffer.bind((device, ALL_PROTOCOLS))
            sockets[number] = stack.enter_context(sniffer)
        yield sockets


@pytest.mark.parametrize("ip", [METADATA_IP, HOST_IP], ids=["ip", "host_ip"])
def test_the_same_bytes_leave(pair: Pair, sniffers: dict[int, socket.socket], ip: str) -> None:
    """Checksums, flags and options of neighbour discovery too, which a trace does not show."""
    tap = replace(TAP6, ip=ip)
    guests = [Host(1), Host(2), Host6(1), Host6(2)]
    guests += [Host(2, ip="10.255.255.254", mac=OTHER_MAC), Host6(2, ip="fe80::5", mac=OTHER_MAC)]
    known: dict[int, dict[int, GuestAddress]] = {1: {}, 2: {}}
    sent = list[tuple[int, bytes]]()
    for number, guest in enumerate(guests):
        service = SERVICE6[number % 2] if guest.version == 6 else ""
        slot = (SLOT6 + 1 if service else 0) + (number > 3)
        address = GuestAddress(guest.mac, ip_address(guest.ip), ip_address(service or METADATA_IP))
        known[guest.ofport][slot] = address if service else replace(address, service=None)
        key = str(IN_PORT.key_of(Endpoint(guest.ofport), slot))
        sent += frames6(guest, key, service) if service else frames(guest, key, tap)
    guests_flows = [guest_flows(ServedEndpoint(Endpoint(n), known[n]), tap) for n in known]
    pair.install([*fixed_flows(tap), *chain.from_iterable(guests_flows)])
    for in_port, frame in sent:
        (out,) = pair.inject(in_port, frame)
        port = ELSEWHERE if out.port == ofp.OFPP_NORMAL else out.port
        assert select.select([sniffers[port]], [], [], DEADLINE)[0], frame.hex()
        assert sniffers[port].recv(2048) == out.frame, frame.hex()
    assert not select.select(sniffers.values(), [], [], 0)[0]


def frames(guest: Host, key: str, tap: Tap) -> Iterator[tuple[int, bytes]]:
    """Requests, answers, ARP and others' traffic."""
    for number in range(0, 0x10000, 0x5357 if FIXED else 0x1357):
        yield guest.ofport, guest.segment(sport=number, flags=number & 0xFF)
        yield TAP_PORT, tap_frame(tap, key, dport=number, flags=number & 0xFF)
    yield guest.ofport, guest.question()
    yield TAP_PORT, Host(TAP_PORT, ip=tap.ip, mac=tap.mac).question(key)
    yield guest.ofport, guest.segment(dport=443)
    payload = tcp(dst=METADATA_IP, src=guest.ip, flags=0x18) + bytes(range(255))
    packet = ipv4(payload, dst=METADATA_IP, src=guest.ip)
    yield guest.ofport, ethernet(packet, dst=tap.mac, src=guest.mac)


def frames6(guest: Host6, key: str, service: str) -> Iterator[tuple[int, bytes]]:
    """Requests, answers, solicitations of all forms that are answered, and others' traffic."""
    for number in range(0, 0x10000, 0x7579 if FIXED else 0x3579):
        flags = {"flags": number & 0xFF}
        yield guest.ofport, guest.segment(sport=number, dst=service, **flags)
        yield TAP_PORT, tap_frame(TAP6, key, dport=number, **flags)
    long_chain = [HOP_BY_HOP, DESTINATION, routing(0)]
    for headers in ([HOP_BY_HOP], long_chain, [routing(1)], [AUTHENTICATION], [ATOMIC]):
        yield guest.ofport, guest.segment(dst=service, headers=headers)
        yield guest.ofport, guest.solicit(service, headers=headers)
    source, nonce, long = link_layer(1, guest.mac), option(14, b"\1" * 6), option(14, b"\2" * 14)
    for options in (source, source + nonce, nonce + source, source + long, long + source):
        yield guest.ofport, guest.solicit(service, options=options)
        yield guest.ofport, guest.solicit(service, to=service, options=options)
        yield guest.ofport, guest.solicit(service, options=options) + b"\xff" * 9
    yield guest.ofport, guest.solicit(service, options=source + link_layer(2, guest.mac))
    broken = bytearray(guest.solicit(service))
    broken[57] ^= 0x55  # the checksum, which Open vSwitch makes right
    yield guest.ofport, bytes(broken)
    yield TAP_PORT, Host6(TAP_PORT, ip=TAP6.ip6, mac=TAP6.mac).solicit(key)
    yield guest.ofport, guest.solicit("fe80::1")
    yield guest.ofport, guest.advertise(service)
    yield guest.ofport, guest.segment(dst=service, dport=443)
    yield guest.ofport, guest.segment(dst=service, headers=[part(0x0008)])


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
