"""What Open vSwitch 3.1's ``ofproto/trace`` printed, where a packet ends, and next hops."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.doctor import find_port, trace_output
from dfmeta.doctor.checks_guests import next_hops
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.flow_diff import FlowState, entries, wanted_flows
from dfmeta.doctor.trace_output import Trace, parse
from dfmeta.doctor.trace_paths import GuestPath, Leg, MetaPath
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.openflow import Seen
from dfmeta.flows.pipeline import METADATA_IP, Layout, Purpose, cookie_of
from dfmeta.identity.key import SLOT6
from dfmeta.model import GuestAddress, NextHop, Port, PortState
from dfmeta.ovsdb.rows import Interface, Snapshot
from tests.core.unit.doctor.values import (
    ADDRESS,
    ADDRESS6,
    IP,
    META,
    META_IP,
    META_MAC,
    META_NUMBER,
    META_PORT,
    META_TAP,
    OK,
    PORT,
    PORT6,
    TAP,
    TAP6,
    TAP_TO_META,
    UNKNOWN,
    WRONG,
    expect,
    recorded,
)

LAYOUT = Layout()
THERE, BACK, FOREIGN = recorded("there"), recorded("back"), recorded("foreign")
THERE6, BACK6, SOLICITED = recorded("there6"), recorded("back6"), recorded("solicited")
TAGGED_THERE = recorded("tagged-there")
TAGGED_BACK = (
    BACK.replace("128.0.0.1", "129.44.0.1")
    .replace("    output:1\n", "    push_vlan:0x8100\n    set_field:4396->vlan_vid\n    output:1\n")
    .replace("Final flow: tcp,in_port=9,", "Final flow: tcp,in_port=9,dl_vlan=300,dl_vlan_pcp=0,")
)
SERVICE = "200. tcp,in_port=1, priority "
SUBPORT = replace(PORT, vid=300)


def path(
    port: KnownPort = PORT, slot: int = 0, address: GuestAddress = ADDRESS, *, tap: Tap = TAP
) -> GuestPath:
    return GuestPath(port, slot, address, seen=True, tap=tap, layout=LAYOUT)


PATH6 = path(PORT6, SLOT6 + 1, ADDRESS6, tap=TAP6)


def there(text: str, port: KnownPort = PORT) -> Leg:
    return path(port).there(parse(text))


def back(text: str, *, known: bool = True, port: KnownPort = PORT) -> Leg:
    return path(port).back(parse(text), installed=known)


def there6(text: str) -> Leg:
    return PATH6.there(parse(text))


def back6(text: str) -> Leg:
    return PATH6.back(parse(text), installed=True)


def neighbour(text: str) -> Leg:
    return PATH6.neighbour(parse(text))


def cut(text: str, service: str) -> str:
    """The way there, with another hop through the service table."""
    before = text[: text.index("200. ")]
    return f"{before}{service}\n\nFinal flow: unchanged\n"


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse(text), Trace)


def test_packets_are_written_as_ovs_ofctl_takes_them() -> None:
    assert path().syn() == (
        "tcp,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,nw_src=10.0.0.5,"
        "nw_dst=169.254.169.254,nw_ttl=64,tcp_src=49152,tcp_dst=80,tcp_flags=syn"
    )
    assert "nw_dst=144.0.0.1," in path(slot=1).syn_ack()
    assert "in_port=1,dl_vlan=300,dl_src=" in path(SUBPORT).syn()
    assert "nw_dst=129.44.0.1," in path(SUBPORT).syn_ack()
    assert PATH6.syn() == (
        "tcp6,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,"
        "ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=fe80::a9fe:a9fe,nw_ttl=64,tcp_src=49152,"
        "tcp_dst=80,tcp_flags=syn"
    )
    assert PATH6.syn_ack() == (
        "tcp6,in_port=9,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,"
        "ipv6_src=fd00:a9fe:a9fe:a9fe::a9fe,ipv6_dst=fd00:a9fe:a9fe:a9fe:1::1,nw_ttl=64,"
        "tcp_src=18080,tcp_dst=49152,tcp_flags=syn|ack"
    )
    assert PATH6.solicitation() == (
        "icmp6,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=33:33:ff:fe:a9:fe,"
        "ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=ff02::1:fffe:a9fe,nw_ttl=255,icmpv6_type=135,"
        "icmpv6_code=0,nd_target=fe80::a9fe:a9fe,nd_sll=fa:16:3e:00:00:01"
    )
    other = trace_output.unseen(PORT.mac, "fd00:ec2::254")
    assert "dl_dst=33:33:ff:00:02:54," in path(PORT, SLOT6, other, tap=TAP6).solicitation()
    assert trace_output.unseen("") == trace_output.UNSEEN


def test_legs_lead_to_their_ends() -> None:
    # An address in another spelling is the same.
    long = THERE6.replace("fd00:a9fe:a9fe:a9fe::a9fe", "fd00:a9fe:a9fe:a9fe:0:0:0:a9fe")
    for leg in (
        *(there(THERE), there(TAGGED_THERE, SUBPORT), there6(THERE6), there6(long)),
        *(back(BACK), back(TAGGED_BACK, port=SUBPORT), back6(BACK6), neighbour(SOLICITED)),
    ):
        assert (leg.stop, leg.to_controller) == ("", False), leg
    assert there(THERE).steps[0] == "classification: guest-syn, priority 300: goto_table:200"
    tagged = there(TAGGED_THERE, SUBPORT)
    assert tagged.steps[-1] == "subport: subport-proxy, priority 200: output:9"
    assert [step.split(",")[0] for step in neighbour(SOLICITED).steps] == [
        "classification: guest-nd",
        "metadata service: guest-nd-answer",
        "neighbour discovery: service-nd",
    ]


def test_first_syn_goes_to_the_controller_unless_the_port_has_no_instance() -> None:
    text = cut(THERE, f"{SERVICE}100, cookie 0x64666d6501020004\n    controller(id=53758)")
    assert (there(text).stop, there(text).to_controller) == ("", True)
    unnamed = replace(PORT, state=PortState.NO_INSTANCE, instance="")
    assert there(text, unnamed).stop.startswith(
        "stops in the metadata service table: the port tap1 has no instance (external_ids:vm-uuid"
    )


def test_way_there_stops_in_words() -> None:
    flow = f"{SERVICE}900\n    drop"
    for text, stop in (
        (cut(THERE, "200. No match.\n    drop"), "no flow matches it"),
        (cut(THERE, ""), "stops before the metadata service table: the switch drops packets from"),
        (
            cut(THERE, "200. priority 0, cookie 0x64666d6501020006\n    drop"),
            "first-SYN flow is missing",
        ),
        (cut(THERE, flow), "another program's flow (cookie 0x0, priority 900"),
        (THERE.replace("output:9", "output:8"), "does not lead to tap-metadata's port (9)"),
        (THERE.replace("tp_dst=18080", "tp_dst=1"), "tp_dst is 1 and should be 18080"),
        (THERE.replace("0x64666d650101000a", "0x64666d6501010003"), "guest-syn flow is missing"),
        (FOREIGN, "takes it, before dfmeta's hooks (priority 300)"),
        (FOREIGN.replace("402", "0"), "guest-syn flow is missing, so another program's flow"),
        (" 0. No match.\n    drop\n", "guest-syn flow is missing"),
        (" 7. priority 1\n    drop\n", "does not reach the classification table (0)"),
        ("", "does not reach the classification table (0): no flow matches it"),
    ):
        assert stop in there(text).stop, stop
    unknown = there(THERE.replace("0x64666d6501020005", "0x64666d65ff020005"))
    assert "unknown flow, cookie 0x64666d65ff020005" in unknown.steps[1]
    assert "a flow of dfmeta (cookie 0x64666d65ff020005" in unknown.stop


def test_way_of_a_tagged_subport_stops_in_words() -> None:
    for text, stop in (
        (
            TAGGED_THERE.replace("cookie 0x64666d6501050017", "cookie 0x64666d6501050018"),
            "stops in the subport table: the subport-proxy flow is missing, a flow of dfmeta",
        ),
        (
            TAGGED_THERE.replace("goto_table:203\n203.", "output:9\n9."),
            "stops before the subport table: a flow of dfmeta",
        ),
    ):
        assert stop in there(text, SUBPORT).stop, stop
    untagged = TAGGED_BACK.replace("dl_vlan=300,dl_vlan_pcp=0,", "vlan_tci=0x0000,")
    assert "dl_vlan is None and should be 300" in back(untagged, port=SUBPORT).stop


def test_way_back_stops_in_words() -> None:
    unknown = BACK.replace("0x64666d6501030007", "0x64666d6501030009")
    for text, stop in (
        (FOREIGN, "before dfmeta's hooks"),
        (unknown, "no reply flow for its key"),
        (BACK.replace("0x64666d6501030007", "0x7"), "no flow matches it"),
        (BACK[: BACK.index("201. ")], "stops before the metadata service reply table: the switch"),
        (BACK.replace("    output:1\n", "    output:2\n"), "does not leave at tap1 (ofport 1)"),
        (BACK.replace("nw_dst=10.0.0.5", "nw_dst=10.0.0.9"), "nw_dst is 10.0.0.9"),
    ):
        assert back(text).stop.startswith("on the return path: "), stop
        assert stop in back(text).stop, stop
    # The way of an address that is not known yet ends in the reply table.
    assert back(unknown, known=False).stop == ""
    assert back(FOREIGN, known=False).stop


def test_packets_after_the_syn_go_by_another_flow() -> None:
    after = THERE.replace("0x64666d650101000a", "0x64666d6501010001")
    assert path().after_syn(parse(after)) == ""
    assert "after the SYN: stops in" in path().after_syn(parse(THERE))
    assert "guest-http flow is missing" in path().after_syn(parse(THERE))


def test_legs_of_ipv6_stop_in_words() -> None:
    for leg, stop in (
        (
            there6(THERE6.replace("ipv6_dst=fd00:a9fe:a9fe:a9fe::a9fe,", "ipv6_dst=::1,")),
            "ipv6_dst is ::1 and should be fd00:a9fe:a9fe:a9fe::a9fe",
        ),
        (
            back6(BACK6.replace("ipv6_src=fe80::a9fe:a9fe,", "ipv6_src=fd00:ec2::254,")),
            "ipv6_src is fd00:ec2::254 and should be fe80::a9fe:a9fe",
        ),
    ):
        assert stop in leg.stop, stop
    missing = "flow for fe80::a9fe:a9fe is missing, a flow of dfmeta"
    for text, stop in (
        (SOLICITED.replace("0x64666d650101000d", "0x64666d6501010001"), "guest-nd flow is missing"),
        (SOLICITED[: SOLICITED.index("200. ")], "stops before the metadata service table"),
        (
            SOLICITED.replace("0x64666d6501020010", "0x64666d650102000f"),
            f"guest-nd-answer {missing}",
        ),
        (SOLICITED[: SOLICITED.index("202. ")], "stops before the neighbour discovery table"),
        (SOLICITED.replace("0x64666d6501040012", "0x64666d6501040014"), f"service-nd {missing}"),
        (SOLICITED.replace("    IN_PORT\n", "    output:2\n"), "does not leave at tap1"),
        (
            SOLICITED.replace("nd_tll=02:64:66:6d:65:fe", "nd_tll=02:64:66:6d:65:ff"),
            "nd_tll is 02:64:66:6d:65:ff and should be 02:64:66:6d:65:fe",
        ),
    ):
        assert neighbour(text).stop.startswith("neighbour discovery: "), stop
        assert stop in neighbour(text).stop, stop


META_THERE, ON_META = recorded("meta-there"), recorded("meta-beyond")
META_BACK = recorded("meta-back")
NO_FLOW = """\
bridge("br-meta")
-----------------
 0. reg0=0x2, priority 0
    drop

Final flow: unchanged
"""
BEYOND = MetaPath(META, META_TAP, label=META_MAC, key=META_IP, service=IP)


def test_integration_bridge_writes_the_meta_mac() -> None:
    def judged(text: str) -> str:
        return path(META_PORT, META_NUMBER, tap=TAP_TO_META).there(parse(text).first).stop

    assert judged(META_THERE) == ""
    elsewhere = META_THERE.replace("    output:3", "    output:4", 1)
    assert judged(elsewhere) == "its flow does not lead to the patch port (3)"
    other = META_THERE.replace(
        "dl_src=fa:16:ee:00:00:03,dl_dst=02", "dl_src=fa:16:ee:00:00:04,dl_dst=02"
    )
    assert "dl_src is fa:16:ee:00:00:04 and should be fa:16:ee:00:00:03" in judged(other)


def test_syn_reaches_tap_meta() -> None:
    leg = BEYOND.arrival(parse(ON_META))
    assert leg.stop == ""
    assert [step.split(",")[0] for step in leg.steps] == [
        "meta classification: meta-from-patch",
        "meta source: meta-source",
        "meta proxy: meta-to-proxy",
    ]


def without(text: str, table: int) -> str:
    """A trace in which the flow of one table is missing."""
    kept, skipped = [], False
    for line in text.splitlines():
        starts = line.lstrip().startswith(f"{table}. ")
        skipped = starts or (skipped and line.startswith("    "))
        if starts:
            kept.append(f"{table}. No match.")
        elif not skipped:
            kept.append(line)
    return "\n".join(kept)


def test_syn_that_a_table_of_the_second_bridge_stops() -> None:
    mac, missing = "the Meta MAC fa:16:ee:00:00", "flow is missing"
    for text, stop in (
        (NO_FLOW, f"meta classification table: the meta-from-patch {missing}"),
        (without(ON_META, 80), f"meta source table: the meta-source flow of {mac}"),
        (
            without(ON_META, 87),
            "meta proxy table: the meta-to-proxy flow to 169.254.169.254 is missing",
        ),
    ):
        assert BEYOND.arrival(parse(text)).stop.startswith(f"on br-meta: stops in the {stop}")


def test_flow_of_another_program_and_one_that_leads_elsewhere() -> None:
    cookie, source = "priority 200, cookie 0x64666d6501220046", "nw_src=240.0.0.3,nw_dst=240.0.0.1"
    for before, after, stop in (
        (cookie, "priority 201, cookie 0x7", "another program's flow (cookie 0x7, priority 201"),
        ("    output:1", "    output:5", "its flow does not lead to the port tap-meta (1)"),
        (source, source.replace("0.3", "0.4"), "nw_src is 240.0.0.4 and should be 240.0.0.3"),
    ):
        assert stop in BEYOND.arrival(parse(ON_META.replace(before, after))).stop


def test_answer_reaches_the_patch() -> None:
    leg = BEYOND.back("br-int", lambda _bridge, _packet: parse(META_BACK))
    assert (leg.stop, len(leg.steps)) == ("", 2)
    elsewhere = BEYOND.back("br-ex", lambda _bridge, _packet: parse(META_BACK))
    assert "stops at the patch port phy-br-meta: what is sent there" in elsewhere.stop
    lost = BEYOND.departure(parse(without(META_BACK, 91)).on("br-meta")).stop
    assert lost == (
        "on the return path: on br-meta: stops in the meta reply table: the meta-reply flow to "
        "240.0.0.3 is missing"
    )
    tagged = parse(
        META_BACK.replace("Final flow: tcp,in_port=1,vlan_tci=0x0000", "Final flow: tcp,dl_vlan=1")
    )
    assert BEYOND.departure(tagged.on("br-meta")).stop.endswith("it leaves with a VLAN tag")


MAC = "fa:16:3e:dd:00:02"
HOP, BARE = NextHop("10.0.0.2", MAC), NextHop("10.0.0.3")
WITH = replace(PORT, next_hops=(HOP, BARE))


def answer(hop: NextHop, mac: str, *, back: str = "IN_PORT") -> str:
    """The output of ofproto/trace for an ARP request that is answered."""
    request = f"arp,in_port=1,vlan_tci=0x0000,dl_src={ADDRESS.mac},dl_dst=ff:ff:ff:ff:ff:ff"
    return (
        f"Flow: {request},arp_spa={ADDRESS.ip},arp_tpa={hop.ip},arp_op=1\n\n"
        'bridge("br-int")\n----------------\n'
        f" 0. arp,in_port=1,arp_tpa={hop.ip}, priority 300, "
        f"cookie {cookie_of(Purpose.GUEST_NEXT_HOP):#x}\n"
        f"    {back}\n\n"
        f"Final flow: arp,in_port=1,arp_spa={hop.ip},arp_tpa={ADDRESS.ip},arp_op=2,arp_sha={mac}\n"
    )


OTHER = 'bridge("br-int")\n 0. priority 0\n    NORMAL\n\nFinal flow: unchanged\n'


def test_answer_to_a_guests_request_is_judged() -> None:
    for text, hop, stop in (
        (answer(HOP, MAC), HOP, ""),
        (answer(BARE, TAP.mac), BARE, ""),
        (answer(HOP, TAP.mac), HOP, f"arp_sha is {TAP.mac} and should be {MAC}"),
        (answer(HOP, MAC, back="drop"), HOP, "the answer does not leave at tap1"),
        (OTHER, HOP, "the guest-next-hop flow is missing"),
    ):
        leg = path().next_hop(parse(text), hop)
        assert stop in leg.stop
        assert leg.stop.startswith(f"guest next hop {hop.ip}: " if stop else "")
        assert bool(leg.stop) is bool(stop)
        assert len(leg.steps) == 1


def seen(port: KnownPort) -> list[Seen]:
    return [
        Seen(
            flow, LAYOUT.table(flow.purpose), LAYOUT.priority(flow.purpose), cookie_of(flow.purpose)
        )
        for flow in wanted_flows([port], TAP)
    ]


def test_flows_of_next_hops_are_wanted_and_named() -> None:
    rows = entries(seen(WITH), wanted_flows([WITH], TAP), layout=LAYOUT)
    hops = [row for row in rows if row.purpose == "guest-next-hop"]
    assert [row.next_hop for row in hops] == [HOP.ip, BARE.ip]
    assert {(row.state, row.ofport, row.address, row.service) for row in hops} == {
        (FlowState.OK, 1, "", "")
    }
    missing = entries(seen(PORT), wanted_flows([WITH], TAP), layout=LAYOUT)
    assert [one.next_hop for one in missing if one.state is FlowState.MISSING] == [HOP.ip, BARE.ip]
    other = entries(
        seen(replace(WITH, next_hops=(BARE, NextHop(HOP.ip)))),
        wanted_flows([WITH], TAP),
        layout=LAYOUT,
    )
    assert [one.next_hop for one in other if one.state is FlowState.DIFFERS] == [HOP.ip]


def test_without_the_daemon_a_port_has_those_of_its_row() -> None:
    port = Port("tap1", row="r", ofport=1, next_hops=(HOP,), next_hop_faults=("x",))
    snapshot = Snapshot(interfaces=(Interface("tap1", "br-int", ports=(port,)),))
    (listed,) = find_port.ovsdb_ports(snapshot, "br-int")
    assert (listed.next_hops, listed.next_hop_faults) == ((HOP,), ("x",))


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
    assert "MAC" not in whole.text
