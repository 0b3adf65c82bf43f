"""Doctor, trace and listings should name a guest next hop, and why its answer does not come."""

from __future__ import annotations

from dataclasses import replace

from dfmeta.cli import gather
from dfmeta.flows.pipeline import METADATA_IP, Layout, Purpose, cookie_of
from dfmeta.inspect import legs
from dfmeta.inspect.checks_next_hops import next_hops
from dfmeta.inspect.facts import Interface, KnownPort, Seen, Snapshot
from dfmeta.inspect.ledger import State, entries, wanted_flows
from dfmeta.inspect.tracing import parse
from dfmeta.model import NextHop, Port
from tests.core.unit.inspect.values import ADDRESS, OK, PORT, TAP, UNKNOWN, WRONG, expect

MAC = "fa:16:3e:dd:00:02"
HOP, BARE = NextHop("10.0.0.2", MAC), NextHop("10.0.0.3")
WITH = replace(PORT, next_hops=(HOP, BARE))
LAYOUT = Layout()


def answer(hop: NextHop, mac: str, *, back: str = "IN_PORT") -> str:
    """The output of ofproto/trace for an ARP request that is answered."""
    asked = f"arp,in_port=1,vlan_tci=0x0000,dl_src={ADDRESS.mac},dl_dst=ff:ff:ff:ff:ff:ff"
    return (
        f"Flow: {asked},arp_spa={ADDRESS.ip},arp_tpa={hop.ip},arp_op=1\n\n"
        'bridge("br-int")\n----------------\n'
        f" 0. arp,in_port=1,arp_tpa={hop.ip}, priority 300, "
        f"cookie {cookie_of(Purpose.GUEST_NEXT_HOP):#x}\n"
        f"    {back}\n\n"
        f"Final flow: arp,in_port=1,arp_spa={hop.ip},arp_tpa={ADDRESS.ip},arp_op=2,arp_sha={mac}\n"
    )


OTHER = 'bridge("br-int")\n 0. priority 0\n    NORMAL\n\nFinal flow: unchanged\n'


# Trace


def test_answer_to_a_guests_request_is_judged() -> None:
    for text, hop, stop in (
        (answer(HOP, MAC), HOP, ""),
        (answer(BARE, TAP.mac), BARE, ""),
        (answer(HOP, TAP.mac), HOP, f"arp_sha is {TAP.mac} and should be {MAC}"),
        (answer(HOP, MAC, back="drop"), HOP, "the answer does not leave at tap1"),
        (OTHER, HOP, "the guest-next-hop flow is missing"),
    ):
        found = legs.next_hop(parse(text), PORT, hop=hop, tap=TAP, layout=LAYOUT)
        assert stop in found.stop
        assert found.stop.startswith(f"guest next hop {hop.ip}: " if stop else "")
        assert bool(found.stop) is bool(stop)
        assert len(found.steps) == 1


# Listings


def seen(port: KnownPort) -> list[Seen]:
    return [
        Seen(one, LAYOUT.table(one.purpose), LAYOUT.priority(one.purpose), cookie_of(one.purpose))
        for one in wanted_flows([port], TAP)
    ]


def test_flows_of_next_hops_are_wanted_and_named() -> None:
    rows = entries(seen(WITH), wanted_flows([WITH], TAP), layout=LAYOUT)
    found = [row for row in rows if row.purpose == "guest-next-hop"]
    assert [row.next_hop for row in found] == [HOP.ip, BARE.ip]
    assert {(row.state, row.ofport, row.address, row.service) for row in found} == {
        (State.OK, 1, "", "")
    }
    missing = entries(seen(PORT), wanted_flows([WITH], TAP), layout=LAYOUT)
    assert [one.next_hop for one in missing if one.state is State.MISSING] == [HOP.ip, BARE.ip]
    other = entries(
        seen(replace(WITH, next_hops=(BARE, NextHop(HOP.ip)))),
        wanted_flows([WITH], TAP),
        layout=LAYOUT,
    )
    assert [one.next_hop for one in other if one.state is State.DIFFERS] == [HOP.ip]


def test_without_the_daemon_a_port_has_those_of_its_row() -> None:
    port = Port("tap1", row="r", ofport=1, next_hops=(HOP,), next_hop_faults=("x",))
    snapshot = Snapshot(interfaces=(Interface("tap1", "br-int", ports=(port,)),))
    (known,) = gather.ovsdb_ports(snapshot, "br-int")
    assert (known.next_hops, known.next_hop_faults) == ((HOP,), ("x",))


# Doctor


def test_next_hops_are_counted_and_those_that_are_left_out_are_wrong() -> None:
    fault = f"external_ids:dfmeta-next-hops has '{METADATA_IP}': it is the address of the service"
    assert list(next_hops([PORT, replace(PORT, name="tap2")])) == []
    (counted,) = next_hops([WITH, PORT])
    (whole,) = next_hops([replace(PORT, next_hops=(HOP,))])
    (odd,) = next_hops([replace(WITH, next_hop_faults=(fault,))])
    unknown, fine = next_hops([WITH, replace(PORT, name="tap2", next_hops=None)])
    both = "1 ports have 2 guest next hops, 1 of them with tap-metadata's MAC"
    expect(
        [
            *((counted, OK, both), (unknown, UNKNOWN, "tap2"), (fine, OK, "")),
            (odd, WRONG, f"tap1 ({fault})", "ovs-vsctl set Interface tap1"),
        ]
    )
    assert (counted.check, "MAC" in whole.text) == ("next-hops", False)
