"""Guest next hops and subports of Neutron, which is asked for them in few calls."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import eventlet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta import metrics
from dfmeta.errors import SHOWN, SourceError
from dfmeta.model import Endpoint, NextHop, Port, PortId, PortKind, PortState
from dfmeta.neutron.client import AT_ONCE, LIST_FROM, NeutronApi, Row
from dfmeta.ovsdb.external_ids import (
    NEXT_HOPS_KEY,
    NEXT_HOPS_MAX,
    fixed_ips,
    of_dhcp_ports,
    parse_next_hops,
)
from dfmeta.ovsdb.rows import Interface
from dfmeta.ovsdb.vif import vifs
from dfmeta.runtime import hub
from dfmeta.runtime.clock import FULL_CHECK_INTERVAL as ROUND
from dfmeta.sources.added_subports import FIELDS, AddedSubports, TrunkDetails, subports_of
from dfmeta.sources.neutron import NeutronSource
from dfmeta.sources.next_hops import FRESH, PLACE, UNKNOWN, NextHops
from tests.core.unit.support import GUEST_MAC, INSTANCE
from tests.harness import neutron as harness
from tests.harness.tier import CLOCK

MAC = "fa:16:3e:00:00:02"
PLAIN = NextHop("10.0.0.2", MAC)


def test_entries_are_separated_by_spaces_or_commas() -> None:
    first, other = NextHop("10.0.0.2"), NextHop("10.0.0.3")
    for text, hops in (
        ("", ()),
        (" , ", ()),
        ("10.0.0.2", (first,)),
        (f"10.0.0.2={MAC}", (PLAIN,)),
        (f"10.0.0.2={MAC.upper()}", (PLAIN,)),
        (f"10.0.0.2={MAC},10.0.0.3", (PLAIN, other)),
        (f"  10.0.0.3 \n, 10.0.0.2={MAC} ", (other, PLAIN)),
    ):
        assert parse_next_hops(text) == (hops, ()), text


WRONG_ENTRIES = [
    ("nonsense", "not an IPv4 address"),
    ("fe80::1", "not an IPv4 address"),
    ("169.254.169.254", "the address of the service"),
    ("0.0.0.0", "unspecified"),
    ("127.0.0.1", "loopback"),
    ("224.0.0.1", "multicast"),
    ("255.255.255.255", "broadcast"),
    ("10.0.0.3=", "not of the form"),
    ("10.0.0.3=fa:16:3e:00:00", "not of the form"),
    ("10.0.0.3=01:00:5e:00:00:01", "not that of a host"),
    ("10.0.0.3=00:00:00:00:00:00", "not that of a host"),
    ("10.0.0.2", "twice"),
]


def test_a_wrong_entry_is_named_with_its_cause() -> None:
    for entry, cause in WRONG_ENTRIES:
        hops, (fault,) = parse_next_hops(f"10.0.0.2={MAC} {entry}")
        assert hops == (PLAIN,), entry
        assert fault.startswith(f"external_ids:{NEXT_HOPS_KEY} has {entry!r}: ")
        assert cause in fault
    _hops, (fault,) = parse_next_hops("x" * 1000)
    assert f"'{'x' * SHOWN}...': " in fault


def test_a_port_has_a_bounded_number_of_them_and_of_faults() -> None:
    hops, faults = parse_next_hops(" ".join(f"10.0.0.{n}" for n in range(1, 3 * NEXT_HOPS_MAX)))
    assert [hop.ip for hop in hops] == [f"10.0.0.{n}" for n in range(1, NEXT_HOPS_MAX + 1)]
    assert len(faults) == NEXT_HOPS_MAX
    assert all(f"{NEXT_HOPS_MAX} guest next hops" in fault for fault in faults)


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    hops, faults = parse_next_hops(text)
    assert len(hops) <= NEXT_HOPS_MAX
    assert all(str(IPv4Address(hop.ip)) == hop.ip for hop in hops)
    assert all(len(fault) < 200 for fault in faults)


def test_a_port_has_those_of_its_row_and_a_wrong_one_does_not_stop_it() -> None:
    ids = {"vm-uuid": INSTANCE, "attached-mac": GUEST_MAC, NEXT_HOPS_KEY: f"10.0.0.2={MAC} x"}
    (port,) = vifs(Interface("tap1", "br-int", ofport=5, external_ids=ids))
    assert (port.state, port.next_hops) == (PortState.SERVED, (PLAIN,))
    assert len(port.next_hop_faults) == 1


def dhcp(mac: Any, *ips: Any) -> dict[str, Any]:
    return {"mac_address": mac, "fixed_ips": [{"ip_address": ip} for ip in ips]}


def test_each_ipv4_address_of_a_dhcp_port_is_one() -> None:
    rows = [dhcp("FA:16:3E:00:00:03", "10.0.0.30", "fd00::3", "10.0.0.9"), dhcp(MAC, "10.0.0.2")]
    assert of_dhcp_ports(rows) == (
        NextHop("10.0.0.2", MAC, "neutron"),
        NextHop("10.0.0.9", "fa:16:3e:00:00:03", "neutron"),
        NextHop("10.0.0.30", "fa:16:3e:00:00:03", "neutron"),
    )
    assert of_dhcp_ports(reversed(rows)) == of_dhcp_ports(rows)


def test_an_address_that_can_be_no_next_hop_is_left_out() -> None:
    rows = [dhcp(MAC, "169.254.169.254", "224.0.0.1"), dhcp("nonsense", "10.0.0.2"), {}]
    assert of_dhcp_ports(rows) == (NextHop("10.0.0.2", "", "neutron"),)
    for fixed in (None, 5, "10.0.0.2", [None], [{"ip_address": []}], [{}]):
        assert fixed_ips({"fixed_ips": fixed}) == []


HOP = NextHop("10.0.0.2", MAC, "neutron")


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


NETWORK, OTHER = uuid(0xA), uuid(0xB)


def port(number: int = 1, **more: Any) -> Port:
    fields = {"name": f"tap{number}", "row": str(number), "ofport": number}
    return Port(**fields | {"iface_id": uuid(number), "instance_id": INSTANCE} | more)


class Api:
    """Neutron without a network: ports with their networks, and networks with DHCP ports."""

    def __init__(self) -> None:
        self.networks: dict[int, str] = {}
        self.dhcp: dict[str, list[str]] = {NETWORK: ["10.0.0.2"]}
        self.own = ["10.0.0.5"]
        self.elsewhere: set[int] = set()
        self.calls: list[str] = []
        self.fault: Exception | None = None
        self.pause = 0.0

    def on_host(self, fields: Sequence[str]) -> list[Row]:
        self._call("host", fields)
        return [self._row(number) for number in self.networks if number not in self.elsewhere]

    def by_id(self, ids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        self._call(f"{len(ids)} ids", fields)
        return [self._row(number) for number in self.networks if uuid(number) in ids]

    def dhcp_ports(self, networks: Sequence[str]) -> list[Row]:
        self._call(f"{len(networks)} networks", PLACE)
        return [
            harness.port(
                "d",
                "agent",
                "p",
                owner="network:dhcp",
                network=network,
                mac=MAC,
                ips=self.dhcp[network],
            )
            for network in networks
            if network in self.dhcp
        ]

    def _row(self, number: int) -> Row:
        return harness.port(uuid(number), "i", "p", network=self.networks[number], ips=self.own)

    def _call(self, what: str, fields: Sequence[str]) -> None:
        assert fields == PLACE
        self.calls.append(what)
        eventlet.sleep(self.pause)
        if self.fault is not None:
            raise self.fault


class World:
    def __init__(self) -> None:
        self.api = Api()
        self.ports: dict[PortId, Port] = {}
        self.hops = NextHops(self.api, self._deliver, self.ports.pop, timeout=0.2)

    def _deliver(self, port: Port) -> None:
        self.ports[port.id] = port

    def of(self, number: int = 1) -> tuple[NextHop, ...] | None:
        return self.ports[PortId(str(number))].next_hops


@pytest.fixture
def world() -> World:
    made = World()
    made.api.networks[1] = NETWORK
    return made


def test_a_port_is_delivered_at_once_and_again_with_its_next_hops(world: World) -> None:
    world.hops.put(port())
    assert (world.of(), world.api.calls) == (None, [])
    assert world.hops.round() == pytest.approx(FRESH)
    assert world.of() == (HOP,)
    assert world.api.calls == ["1 ids", "1 networks"]
    # Another change of the port keeps them.
    world.hops.put(port(instance_id=uuid(5)))
    assert world.of() == (HOP,)


def test_a_network_is_asked_for_once_and_again_when_its_time_is_over(world: World) -> None:
    world.hops.put(port())
    world.hops.round()
    world.api.networks[2] = NETWORK
    world.hops.put(port(2))
    CLOCK.advance(10)
    assert world.hops.round() == pytest.approx(FRESH - 10)
    assert (world.of(2), world.api.calls[2:]) == ((HOP,), ["1 ids"])
    CLOCK.advance(FRESH - 10)
    world.api.dhcp[NETWORK] = ["10.0.0.3"]
    world.hops.round()
    assert [hop.ip for hop in world.of() or ()] == ["10.0.0.3"]
    assert world.of(2) == world.of()
    assert world.api.calls[3:] == ["1 ids", "1 networks"]
    CLOCK.advance(FRESH)
    world.api.dhcp.clear()
    world.hops.round()
    assert world.of() == (), "Neutron has deleted the DHCP port"


def test_a_port_gets_a_bounded_number_without_its_own_address(world: World) -> None:
    world.api.dhcp[NETWORK] = [*world.api.own, "10.0.0.2"]
    world.hops.put(port())
    world.hops.round()
    assert world.of() == (HOP,)
    CLOCK.advance(FRESH)
    world.api.dhcp[NETWORK] = [f"10.0.1.{n}" for n in range(1, 3 * NEXT_HOPS_MAX)]
    world.hops.round()
    assert len(world.of() or ()) == NEXT_HOPS_MAX


def test_a_port_with_the_key_or_without_neutron_is_not_asked_about(world: World) -> None:
    keyed: dict[str, Any] = {"next_hops": (NextHop("10.0.0.9"),)}
    for more in (
        *({"next_hop_faults": ("a wrong entry",)}, {"fault": "broken"}),
        *({"iface_id": "container-7"}, {"iface_id": ""}, keyed),
    ):
        world.hops.put(port(**more))
        world.hops.round()
        assert world.ports[PortId("1")] == port(**more)
    assert world.api.calls == []
    # Without the key any more, Neutron's come.
    world.hops.put(port())
    assert world.of() is None
    world.hops.round()
    assert world.of() == (HOP,)


def test_a_port_that_neutron_does_not_know_has_none_until_it_is_asked_again(world: World) -> None:
    del world.api.networks[1]
    world.hops.put(port())
    assert world.hops.round() == UNKNOWN
    assert world.of() == ()
    world.api.networks[1] = NETWORK
    CLOCK.advance(UNKNOWN)
    world.hops.round()
    assert world.of() == (HOP,)


def test_many_ports_take_few_calls(world: World) -> None:
    count = 2 * LIST_FROM
    for number in range(1, count + 1):
        world.api.networks[number] = NETWORK if number % 2 else OTHER
        world.hops.put(port(number))
    world.api.elsewhere = {count}
    world.hops.round()
    assert world.api.calls == ["host", "1 ids", "2 networks"]
    assert (world.of(1), world.of(2)) == ((HOP,), ())
    for number in range(1000, 1000 + 2 * AT_ONCE):
        world.api.networks[number] = uuid(number + 5000)
        world.api.elsewhere.add(number)
        world.hops.put(port(number))
    world.hops.round()
    assert world.api.calls[3:] == ["host", *2 * [f"{AT_ONCE} ids"]] + 2 * [f"{AT_ONCE} networks"]


def test_known_next_hops_stay_while_neutron_is_away_and_go_with_their_port(world: World) -> None:
    world.hops.put(port())
    world.hops.round()
    CLOCK.advance(FRESH)
    world.api.fault = SourceError(source="neutron", cause="gone")
    with pytest.raises(SourceError):
        world.hops.round()
    assert world.of() == (HOP,)
    world.api.fault = None
    world.hops.forget(port().id)
    assert world.ports == {}
    calls = list(world.api.calls)
    assert world.hops.round() == float("inf")
    assert world.api.calls == calls


@pytest.mark.parametrize("fault", [SourceError(source="neutron", cause="gone"), KeyError("defect")])
def test_a_new_port_is_asked_about_at_once_and_again_after_a_failure(
    world: World, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    cause = "source" if isinstance(fault, SourceError) else "defect"
    failed = metrics.NEUTRON_ROUNDS_FAILED.labels(cause)
    before = failed._value.get()
    world.hops.start()
    eventlet.sleep(0)
    world.hops.put(port())
    eventlet.sleep(0.01)
    assert world.of() == (HOP,)
    world.api.fault = fault
    world.api.networks[2] = NETWORK
    world.hops.put(port(2))
    # The pauses grow up to the longest.
    eventlet.sleep(sum(NeutronSource.retry))
    assert world.of(2) is None
    assert "guest next hops" in caplog.text
    assert failed._value.get() >= before + 2
    world.api.fault = None
    eventlet.sleep(2 * NeutronSource.retry[1])
    assert world.of(2) == (HOP,)
    hub.VITAL.release()


def test_an_answer_that_takes_too_long_is_a_failure(world: World) -> None:
    world.hops.put(port())
    world.api.pause = 5
    with pytest.raises(SourceError, match=r"no answer within 0\.2 s"):
        world.hops.round()


def test_neutron_is_asked_for_the_dhcp_ports_of_networks() -> None:
    requests: list[Any] = []

    class Session:
        def request(self, url: str, _method: str, params: list[tuple[str, str]]) -> Any:
            requests.extend((url, *params))
            raise ValueError

    api = NeutronApi(Session(), host="h", where={}, endpoint="http://n")
    with pytest.raises(SourceError):
        api.dhcp_ports([NETWORK])
    owners = [("device_owner", owner) for owner in ("network:dhcp", "network:distributed")]
    assert requests[:4] == ["http://n/v2.0/ports", *owners, ("network_id", NETWORK)]
    assert {("fields", "mac_address"), ("fields", "fixed_ips")} <= set(requests)


def details(*vids: int, **more: Any) -> dict[str, Any]:
    listed = [
        {
            "segmentation_id": vid,
            "segmentation_type": "vlan",
            "port_id": uuid(vid),
            "mac_address": GUEST_MAC.upper(),
        }
        | more
        for vid in vids
    ]
    return {"trunk_details": {"trunk_id": "t", "sub_ports": listed}}


class Trunks:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fault: Exception | None = None
        self.ports: dict[PortId, Port] = {}
        self.handed = 0
        self.feed = TrunkDetails(self, timeout=0.2)
        self.stage = self.feed.stage = AddedSubports(self.update, self.ports.pop, self.feed.ring)

    def update(self, port: Port) -> None:
        self.ports[port.id] = port
        self.handed += 1

    def on_host(self, fields: Sequence[str]) -> list[Row]:
        return self._call("host", fields, list(self.rows))

    def by_id(self, ids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        return self._call(f"{len(ids)} ids", fields, ids)

    def _call(self, what: str, fields: Sequence[str], ids: Sequence[str]) -> list[Row]:
        assert fields == FIELDS
        self.calls.append(what)
        if self.fault is not None:
            raise self.fault
        return [{"id": port_id, **self.rows[port_id]} for port_id in ids if port_id in self.rows]

    def vids(self, number: int = 1) -> list[int]:
        return sorted(
            port_id.vid for port_id in self.ports if port_id.row == str(number) and port_id.vid
        )


@pytest.fixture
def trunks() -> Trunks:
    made = Trunks()
    made.rows[uuid(1)] = details(100, 200)
    made.stage.update(port())
    return made


def test_subports_have_their_parents_place_and_no_more_of_it(trunks: Trunks) -> None:
    assert trunks.vids() == []
    assert trunks.feed.round() == pytest.approx(ROUND)
    subport = trunks.ports[PortId("1", 100)]
    assert (subport.endpoint, subport.kind, subport.parent) == (
        *(Endpoint(1, 100), PortKind.SUBPORT, "tap1"),
    )
    assert (subport.iface_id, subport.mac, subport.segmentation_id) == (uuid(100), GUEST_MAC, 100)
    assert (subport.instance_id, subport.sources) == ("", {})
    assert trunks.ports[PortId("1")].kind is PortKind.PARENT
    assert trunks.vids() == [100, 200]


def test_an_entry_of_ovsdb_comes_first(trunks: Trunks) -> None:
    listed = port(vid=100, kind=PortKind.SUBPORT, iface_id="mine", parent="tap1")
    trunks.stage.update(listed)
    trunks.feed.round()
    assert trunks.ports[listed.id] == listed
    assert trunks.vids() == [100, 200]
    other = replace(listed, vid=200)
    trunks.stage.update(other)
    assert trunks.ports[other.id] == other
    CLOCK.advance(ROUND)
    trunks.feed.round()
    assert trunks.ports[other.id] == other
    trunks.stage.forget(listed.id)
    assert trunks.ports[listed.id].iface_id == uuid(100), "Neutron's again"


def test_an_attachment_that_leaves_ovsdb_leaves_at_once(trunks: Trunks) -> None:
    """Neutron is told of it last, and asked again later."""
    attached = port(vid=100, kind=PortKind.SUBPORT, iface_id="mine", parent="tap1", attached="a")
    changed = replace(attached, vid=200)
    for row in (attached, changed, replace(changed, attached="")):
        trunks.stage.update(row)
    trunks.feed.round()
    for row in (attached, changed):
        trunks.stage.forget(row.id)
    assert trunks.vids() == [200], "Neutron's again"
    CLOCK.advance(ROUND)
    trunks.feed.round()
    assert trunks.vids() == [100, 200], "it stayed in Neutron"
    trunks.stage.update(attached)
    trunks.stage.forget(PortId("1"))
    trunks.stage.forget(attached.id)
    assert trunks.ports == {}


def test_subports_follow_their_parent_and_go_with_it(trunks: Trunks) -> None:
    trunks.feed.round()
    trunks.stage.update(port(ofport=9))
    assert trunks.ports[PortId("1", 100)].endpoint == Endpoint(9, 100)
    assert trunks.ports[PortId("1")].kind is PortKind.PARENT
    CLOCK.advance(ROUND)
    trunks.fault = SourceError(source="neutron", cause="away")
    with pytest.raises(SourceError):
        trunks.feed.round()
    assert trunks.vids() == [100, 200], "while Neutron is away"
    trunks.stage.forget(PortId("1"))
    assert trunks.ports == {}


def test_a_trunks_changes_are_seen_at_the_next_round(trunks: Trunks) -> None:
    trunks.feed.round()
    trunks.rows[uuid(1)] = details(200, 300)
    trunks.feed.round()
    assert (trunks.vids(), trunks.calls) == ([100, 200], ["1 ids"])
    CLOCK.advance(ROUND)
    handed = trunks.handed
    trunks.feed.round()
    assert (trunks.vids(), trunks.handed - handed) == ([200, 300], 1)
    del trunks.rows[uuid(1)]
    CLOCK.advance(ROUND)
    trunks.feed.round()
    assert (trunks.vids(), trunks.ports[PortId("1")].kind) == ([], PortKind.PORT)


def test_many_ports_are_asked_about_in_one_call_unless_their_tags_do_not_come() -> None:
    trunks = Trunks()
    for row in (
        port(1, name="tpi-1", kind=PortKind.PARENT),
        port(2, kind=PortKind.SUBPORT),
        port(3, fault="odd"),
        port(4, iface_id="no-uuid"),
    ):
        trunks.stage.update(row)
    assert (trunks.feed.round(), trunks.calls) == (ROUND, [])
    for number in range(1, LIST_FROM + 1):
        trunks.rows[uuid(number)] = details(100)
        trunks.stage.update(port(number))
    trunks.feed.round()
    assert trunks.calls == ["host"]
    assert all(trunks.vids(number) == [100] for number in range(1, LIST_FROM + 1))


NO_SUBPORTS: list[Row] = [
    {},
    {"trunk_details": None},
    {"trunk_details": []},
    {"trunk_details": {"sub_ports": "x"}},
    {"trunk_details": {"sub_ports": [5]}},
    details(0),
    details(4095),
    details(100, 100),
    details(100, segmentation_type="inherit"),
    details(100, port_id=7),
    details(100, mac_address="odd"),
]


def test_a_row_without_subports_gives_none() -> None:
    for row in NO_SUBPORTS:
        assert subports_of(row) == {}, row
