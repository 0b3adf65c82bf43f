"""The flows of Meta IPs on a real bridge, as in the model."""

from collections import Counter
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows import integration_bridge, meta_bridge
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import BR_META, METADATA_IP, Layout
from dfmeta.flows.wire import Wire
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.core.flows.frames import (
    arp,
    ethernet,
    ipv4,
    ipv6,
    link_layer,
    neighbour,
    solicited_node,
    tagged,
    tcp,
)
from tests.harness.examples import examples
from tests.harness.meta import PORT, SERVICE6, VLAN, meta_keys, meta_tap_of, patch_of
from tests.host.ovs.made_up import flag_sets, macs, of_endpoint, overwritten, quick
from tests.host.ovs.pair import Pair, shared_pair
from tests.host.ovs.switch import GUESTS, TAP_PORT

# tools/soak runs them with more frames.
pytestmark = pytest.mark.hypothesis
pair = shared_pair
SECOND = Layout(pipeline=BR_META)
KEYS = meta_keys()
IP, IP6 = "10.0.0.5", "fd12:3456::5"
GUEST_MAC = "fa:16:3e:00:00:05"
PATCH = GUESTS[0]
"""Port of the one bridge that plays the patch of br-meta."""
NUMBERS, NUMBERS6 = KEYS.slots(4)[:4], KEYS.slots(6)[:4]
addresses = st.builds(
    GuestAddress,
    st.sampled_from([GUEST_MAC, "fa:16:3e:00:00:06"]),
    st.sampled_from([IPv4Address(IP), IPv4Address("10.0.0.6")]),
)
addresses6 = st.builds(
    GuestAddress,
    st.sampled_from([GUEST_MAC, "fa:16:3e:00:00:06"]),
    st.just(IPv6Address(IP6)),
    st.sampled_from([IPv6Address(address) for address in SERVICE6]),
)


@dataclass(frozen=True)
class State:
    """Guests with their numbers, whose flows one of the two bridges has."""

    second: bool
    tap: Tap
    meta: MetaTap
    guests: tuple[ServedEndpoint, ...]

    def flows(self) -> list[Flow]:
        """All flows of the bridge."""
        if not self.second:
            theirs = [
                guest_flow
                for guest in self.guests
                for guest_flow in integration_bridge.guest_flows(guest, self.tap)
            ]
            return [*integration_bridge.fixed_flows(self.tap), *theirs]
        theirs = [
            address_flow
            for guest in self.guests
            for number, address in guest.addresses.items()
            for address_flow in meta_bridge.address_flows(
                guest.endpoint, address, slot=number, tap=self.meta
            )
        ]
        return [*meta_bridge.fixed_flows(self.meta), *theirs]


@st.composite
def states(draw: st.DrawFn, second: bool) -> State:
    """Which numbers are in use, and by which addresses of which guests."""
    numbers = draw(st.permutations(NUMBERS)), draw(st.permutations(NUMBERS6))
    guests = []
    for at, ofport in enumerate(sorted(draw(st.sets(st.sampled_from(GUESTS), min_size=1)))):
        # Two of each version for the first guest, one for any other.
        mine = slice(0, 2) if not at else slice(1 + at, 2 + at)
        known = draw(st.lists(addresses, unique=True, max_size=2))
        known6 = draw(st.lists(addresses6, unique=True, max_size=2))
        given = dict(zip(numbers[0][mine], known, strict=False))
        given |= dict(zip(numbers[1][mine], known6, strict=False))
        endpoint = Endpoint(ofport, draw(st.sampled_from([0, 0, 7])))
        guests.append(ServedEndpoint(endpoint, given))
    tap = replace(patch_of(KEYS), ofport=TAP_PORT)
    meta = replace(meta_tap_of(KEYS), ofport=TAP_PORT, patch=PATCH)
    return State(second, tap, meta, tuple(guests))


@st.composite
def likely(draw: st.DrawFn, state: State) -> tuple[int, bytes]:
    """A frame that the flows of *state* are about, now and then with a byte overwritten."""
    guest = draw(st.sampled_from(state.guests))
    number, who = draw(
        st.sampled_from([*guest.addresses.items()])
        if guest.addresses
        else st.tuples(st.sampled_from(NUMBERS), addresses)
    )
    key, label = str(KEYS.key_of(guest.endpoint, number)), KEYS.label(number)
    flags, kind = draw(flag_sets), draw(st.integers(0, 4))
    version, service = who.ip.version, str(who.service or METADATA_IP)
    gateway, own = KEYS.gateway(version), state.meta.mac
    if kind == 0:  # a guest's own
        port, frame = guest.endpoint.ofport, _tcp(str(who.ip), service, who.mac, flags=flags)
    elif kind == 1:  # behind the patch
        port, frame = PATCH, _tcp(str(who.ip), service, label, flags=flags)
    elif kind == 2:  # the listener's
        frame = _tcp(gateway, key, own, flags=flags, sport=PORT)
        port = TAP_PORT
    elif kind == 3:  # in front of the patch
        port, frame = TAP_PORT, _tcp(service, key, own, dst_mac=label, flags=flags, sport=80)
    else:
        port, frame = TAP_PORT, _question(key, own)
    frame = draw(st.just(frame) | macs.map(lambda mac: bytes.fromhex(mac.replace(":", ""))).map(
        lambda mac: mac + frame[6:]
    ))  # fmt: skip
    frame = draw(overwritten(frame))
    if draw(st.integers(0, 9)) == 0:
        frame = tagged(frame, draw(st.sampled_from([0, VLAN, 0x2000 | VLAN])))
    if kind == 0:
        frame = draw(of_endpoint(guest.endpoint, frame))
    return port, frame


def _tcp(
    src: str, dst: str, src_mac: str, *, dst_mac: str = TAP_MAC, flags: int = 2, sport: int = 40000
) -> bytes:
    segment = tcp(dst=dst, src=src, flags=flags, sport=sport, dport=80)
    if ip_address(src).version == 4:
        return ethernet(ipv4(segment, dst=dst, src=src), dst=dst_mac, src=src_mac)
    return ethernet(ipv6(segment, dst=dst, src=src), dst=dst_mac, src=src_mac, kind=0x86DD)


def _question(target: str, own: str) -> bytes:
    """The host's question for the MAC of *target*."""
    version = ip_address(target).version
    gateway = KEYS.gateway(version)
    if version == 4:
        packet = arp(op=1, sha=own, spa=gateway, tpa=target)
        return ethernet(packet, dst="ff:ff:ff:ff:ff:ff", src=own, kind=0x0806)
    ends = {"dst": solicited_node(target), "src": gateway}
    message = neighbour(135, target=target, options=link_layer(1, own), **ends)
    return ethernet(ipv6(message, proto=58, **ends), dst=TAP_MAC, src=own, kind=0x86DD)


# The model and a real bridge


@pytest.mark.parametrize(
    ("layout", "fates"),
    [
        (Layout(), {"controller", "proxy", "guest", "dropped", "untouched"}),
        (SECOND, {"proxy", "guest", "back", "dropped", "untouched"}),
    ],
    ids=["br-int", "br-meta"],
)
def test_the_model_and_open_vswitch_agree(pair: Pair, layout: Layout, fates: set[str]) -> None:
    seen, second = Counter[str](), layout is SECOND
    pair.wire = Wire(layout)

    @settings(quick, max_examples=examples(8))
    @given(data=st.data())
    def agree(data: st.DataObject) -> None:
        state = data.draw(states(second))
        frames = data.draw(st.lists(likely(state), min_size=15, max_size=30))
        pair.install(state.flows())
        seen.update(pair.compare(frames))

    agree()
    assert seen.keys() >= fates, seen
    pair.read_alike(_one_guest(second=second).flows())


def _one_guest(*, second: bool) -> State:
    """A guest with an address of each version of IP."""
    known = {
        NUMBERS[0]: GuestAddress(GUEST_MAC, IPv4Address(IP)),
        NUMBERS6[0]: GuestAddress(GUEST_MAC, IPv6Address(IP6), IPv6Address(SERVICE6[1])),
    }
    tap = replace(patch_of(KEYS), ofport=TAP_PORT)
    meta = replace(meta_tap_of(KEYS), ofport=TAP_PORT, patch=PATCH)
    return State(second, tap, meta, (ServedEndpoint(Endpoint(1), known),))
