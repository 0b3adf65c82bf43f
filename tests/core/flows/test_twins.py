"""Two guests, whatever they call themselves: none gets what is the other's."""

from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.key import IN_PORT, SLOTS, SLOTS6
from dfmeta.model import Endpoint
from tests.core.flows.frames import Frame, ends_of
from tests.core.flows.world import SERVICE6, TAP, TAP6, Host, Host6, World, assert_is_an_answer
from tests.harness.examples import examples

IPS = ["10.0.0.5", "10.0.0.6", "128.0.0.1", "128.0.0.2", "144.0.0.1", "169.254.169.254"]
MACS = ["fa:16:3e:00:00:05", "fa:16:3e:00:00:06", TAP.mac]
PORTS = (1, 2)

IPS6 = ["fd12:3456::5", "fe80::5", "fd00::1", "2001:db8::5"]
KEYS6 = [IN_PORT.key_of(Endpoint(ofport), slot) for ofport in PORTS for slot in SLOTS6[:2]]
hosts6 = st.builds(Host6, st.sampled_from(PORTS), st.sampled_from(IPS6), st.sampled_from(MACS))
hosts = st.builds(Host, st.sampled_from(PORTS), st.sampled_from(IPS), st.sampled_from(MACS))
asking = st.tuples(hosts, st.just(METADATA_IP)) | st.tuples(hosts6, st.sampled_from(SERVICE6))
names = st.integers(0, 0xFFFFFFFF).map(IPv4Address) | st.sampled_from([*map(IPv4Address, IPS)])
names6 = st.binary(min_size=16, max_size=16).map(IPv6Address) | st.sampled_from(
    [*KEYS6, *map(IPv6Address, (*SERVICE6, TAP6.ip6, "::", "::1", "ff02::1"))]
)
quick = settings(
    deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow]
)


@quick
@given(guests=st.lists(asking, min_size=1, max_size=10))
def test_an_answer_never_leaves_on_another_port_than_its_request_came_in_on(
    guests: list[tuple[Host, str]],
) -> None:
    with World(tap=TAP6) as world:
        for ofport in PORTS:
            world.plug(ofport, instance=f"instance-{ofport}")
        for guest, service in guests:
            world.now += 1
            world.receive(guest.ofport, guest.segment(dst=service))
            (out,) = world.switch.receive(guest.ofport, guest.segment(dst=service))
            assert out.port == TAP.ofport
            (back,) = world.answered(out)
            assert_is_an_answer(back, guest, service=service)
            claim = world.registry.claim(ip_address(ends_of(Frame(0, out.frame))["src"]))
            assert claim is not None
            assert claim.identity.instance_id == f"instance-{guest.ofport}"


@quick
@given(
    guest_and_name=st.tuples(hosts, names) | st.tuples(hosts6, names6), flags=st.integers(0, 0x1FF)
)
def test_a_guest_that_calls_itself_a_key_gains_nothing_by_it(
    guest_and_name: tuple[Host, IPv4Address | IPv6Address], flags: int
) -> None:
    """What arrives at the proxy has the key of the port that it came in on, or does not arrive."""
    guest, name = guest_and_name
    with World(tap=TAP6) as world:
        for ofport in PORTS:
            world.plug(ofport)
        world.introduce(guest)
        forger = type(guest)(guest.ofport, ip=str(name), mac=guest.mac)
        own = {str(IN_PORT.key_of(Endpoint(guest.ofport), slot)) for slot in (*SLOTS, *SLOTS6)}
        outs = world.receive(guest.ofport, forger.segment(flags=flags))
        arrived = [*outs, *world.switch.released, *world.receive(guest.ofport, forger.segment())]
        for out in arrived:
            if out.port == TAP.ofport:
                assert ends_of(Frame(0, out.frame))["src"] in own
            else:
                assert out.controller is not None
