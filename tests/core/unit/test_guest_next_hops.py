"""ServedEndpoint next hops should come to the switch as flows, and go, while their guest stays."""

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.cmd import daemon
from dfmeta.cmd.ports import port_rows
from dfmeta.doctor import agent
from dfmeta.flows.family import next_hop_request, senders_of
from dfmeta.flows.integration_bridge import ServedEndpoint, guest_flows, usable_next_hops
from dfmeta.flows.openflow import Flow, SetField
from dfmeta.flows.pipeline import METADATA_IP, Layout, Purpose
from dfmeta.flows.reading import FOUND, read_address, read_next_hop, read_service
from dfmeta.flows.wire import Wire
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import NotifyPhase, Registry
from dfmeta.model import Endpoint, NextHop, Port
from dfmeta.wiring.identity import make_identities
from tests.core.unit.support import INSTANCE, TAP, Load, address, claim_of, port, stats_of
from tests.harness import neutron as harness

HERE = Endpoint(13)
MAC = "fa:16:3e:00:00:02"
HOP, BARE = NextHop("10.0.0.2", MAC), NextHop("10.0.0.3")
IPS = st.integers(1, 0xFFFFFFFF).map(IPv4Address)


def of(flows: tuple[Flow, ...]) -> dict[object, object]:
    """ServedEndpoint next hop → the MAC in the answer."""
    return {
        flow.field("arp_tpa"): next(
            action.value
            for action in flow.actions
            if isinstance(action, SetField) and action.field == "arp_sha"
        )
        for flow in flows
        if flow.purpose is Purpose.GUEST_NEXT_HOP
    }


# Flows


def test_the_services_and_the_guests_addresses_have_no_next_hop_flow() -> None:
    hops = (HOP, NextHop(METADATA_IP), BARE)
    assert usable_next_hops(hops, [address(BARE.ip)], METADATA_IP) == (HOP,)
    flows = guest_flows(ServedEndpoint(HERE, {0: address(HOP.ip)}, next_hops=hops), TAP)
    assert of(flows) == {BARE.ip: TAP.mac}


@given(IPS, st.integers(1, 32))
def test_a_probe_is_never_matched_and_neighbours_always(ip: IPv4Address, bits: int) -> None:
    value, mask = (int(IPv4Address(one)) for one in senders_of(str(ip)))
    assert 0 & mask != value
    assert int(ip) & mask == value
    assert senders_of("10.0.0.2") == ("8.0.0.0", "248.0.0.0")
    # A sender on the network of the next hop, unless that network has 0.0.0.0 as well.
    host = (1 << (32 - bits)) - 1
    for sender in (int(ip) | host, int(ip) & ~host):
        if int(ip) & ~host:
            assert sender & mask == value


@given(IPS)
def test_a_flow_is_read_back_from_its_bytes(ip: IPv4Address) -> None:
    wire, built = Wire(Layout()), next_hop_request(HERE, MAC, str(ip))
    found = wire.found(stats_of(wire.add(built)))
    assert found is not None
    assert found.flow == built
    assert read_next_hop(built) == NextHop(str(ip), MAC, FOUND)
    assert read_address(built, IN_PORT).endpoint == HERE
    assert read_service(built) == ""


def test_a_damaged_flow_has_no_next_hop() -> None:
    built = next_hop_request(HERE, MAC, HOP.ip)
    for ip in ("0.0.0.0", "fe80::1", "nonsense", 5):
        match = tuple((name, ip if name == "arp_tpa" else old) for name, old in built.match)
        assert read_next_hop(replace(built, match=match)) is None
    assert read_next_hop(replace(built, actions=())) is None
    assert read_next_hop(replace(built, purpose=Purpose.GUEST_ARP)) is None


# The registry


def hops(registry: Registry) -> tuple[NextHop, ...]:
    guest = registry.guest(HERE)
    assert guest is not None
    return guest.next_hops


def test_a_change_tells_the_flows_alone_and_the_guest_stays() -> None:
    registry = Registry()
    registry.set_port(port())
    claim = claim_of(registry, HERE)
    flows: list[Endpoint] = []
    closed: list[Endpoint] = []
    registry.subscribe(flows.append, NotifyPhase.FLOWS)
    registry.subscribe(closed.append, NotifyPhase.CONNECTIONS)
    registry.set_port(replace(port(), next_hops=(HOP,)))
    assert hops(registry) == (HOP,)
    registry.set_port(replace(port(), next_hops=(HOP,), next_hop_faults=("x",)))
    registry.set_port(replace(port(), next_hops=()))
    assert (flows, closed) == ([HERE, HERE], [])
    assert hops(registry) == ()
    assert registry.holds(claim)


def test_while_they_are_not_known_those_of_the_switch_stay() -> None:
    registry = Registry()
    registry.set_port(replace(port(), next_hops=None))
    assert registry.adopt_next_hop(HERE, HOP)
    registry.set_port(replace(port(), next_hops=None, next_hop_faults=("x",)))
    assert hops(registry) == (HOP,)
    registry.set_port(replace(port(), next_hops=(BARE,)))
    assert hops(registry) == (BARE,)
    assert not registry.adopt_next_hop(HERE, HOP)
    assert not registry.adopt_next_hop(Endpoint(99), HOP)


# The reconciler


# Listings


def test_a_port_lists_them_and_those_that_are_left_out() -> None:
    registry = Registry()
    service = NextHop("169.254.1.1")
    registry.set_port(
        replace(port(), next_hops=(HOP, BARE, service), next_hop_faults=("a wrong entry",))
    )
    registry.learn(HERE, address(BARE.ip), 0)
    (row,) = port_rows(registry, service_ip=service.ip)
    assert row["next_hops"] == [{"ip": HOP.ip, "mac": MAC, "source": "ovsdb"}]
    assert row["next_hop_faults"] == [
        "a wrong entry",
        f"{BARE.ip}: it is the address of the guest itself",
        f"{service.ip}: it is the address of the service",
    ]
    known = agent.read_port(row, IN_PORT)
    assert known.next_hops == (HOP,)
    assert known.next_hop_faults == tuple(row["next_hop_faults"])


def test_a_port_whose_next_hops_are_not_known_yet_lists_those_of_the_switch() -> None:
    registry = Registry()
    registry.set_port(replace(port(), next_hops=None))
    (row,) = port_rows(registry)
    assert row["next_hops"] is None
    assert agent.read_port(row, IN_PORT).next_hops is None
    registry.adopt_next_hop(HERE, BARE._replace(source=FOUND))
    (row,) = port_rows(registry)
    assert row["next_hops"] == [{"ip": BARE.ip, "mac": None, "source": FOUND}]
    registry.set_port(replace(port(None), next_hops=(HOP,)))
    (row,) = port_rows(registry)
    assert [one["ip"] for one in row["next_hops"]] == [HOP.ip]


def test_a_fault_is_logged_when_it_is_new(caplog: pytest.LogCaptureFixture) -> None:
    first = replace(port(), next_hop_faults=("x",))
    daemon._log_faults(None, first)
    daemon._log_faults(first, replace(first, next_hop_faults=("x", "y"), fault="broken"))
    daemon._log_faults(first, first)
    assert caplog.messages == [
        "Port tap1: a guest next hop is left out: x",
        "Port tap1 is not served: broken",
        "Port tap1: a guest next hop is left out: y",
    ]


# Construction


def test_neutron_is_asked_only_if_it_is_an_identity_source(load: Load) -> None:
    taken: list[Port] = []
    plain = make_identities(load(identity_sources="ovsdb"), taken.append, lambda _id: None)
    assert plain.next_hops is None
    options = {f"neutron__{name}": value for name, value in harness.options().items()}
    conf = load(identity_sources="ovsdb,neutron", **options)
    built = make_identities(conf, taken.append, lambda _id: None)
    assert built.next_hops is not None
    built.resolver.update(replace(port(), iface_id=INSTANCE))
    assert taken[-1].next_hops is None
