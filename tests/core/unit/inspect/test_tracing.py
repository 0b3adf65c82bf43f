"""What Open vSwitch 3.1's ``ofproto/trace`` printed, and where it says that a packet ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.flows.key import SLOT6
from dfmeta.flows.pipeline import Layout, Purpose
from dfmeta.inspect import legs, which
from dfmeta.inspect.facts import KnownPort
from dfmeta.inspect.tracing import Trace, packet, parse
from dfmeta.model import PortState
from tests.core.unit.inspect.values import ADDRESS, ADDRESS6, PORT, PORT6, TAP, TAP6

LAYOUT = Layout()

THERE = """\
Flow: tcp,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,\
nw_src=10.0.0.5,nw_dst=169.254.169.254,nw_ttl=64,tp_src=49152,tp_dst=80,tcp_flags=syn

bridge("br-int")
----------------
 0. tcp,in_port=1,vlan_tci=0x0000/0x1fff,nw_dst=169.254.169.254,tp_dst=80, priority 300, \
cookie 0x64666d650101000a
    goto_table:200
200. tcp,in_port=1,dl_src=fa:16:3e:00:00:01,nw_src=10.0.0.5, priority 200, \
cookie 0x64666d6501020005
    set_field:02:64:66:6d:65:fe->eth_dst
    set_field:128.0.0.1->ip_src
    set_field:18080->tcp_dst
    output:9

Final flow: tcp,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=02:64:66:6d:65:fe,\
nw_src=128.0.0.1,nw_dst=169.254.169.254,nw_ttl=64,tp_src=49152,tp_dst=18080,tcp_flags=syn
Megaflow: recirc_id=0,eth,tcp,in_port=1
Datapath actions: set(eth(dst=02:64:66:6d:65:fe)),4
"""
BACK = """\
Flow: tcp,in_port=9,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,nw_src=169.254.169.254,\
nw_dst=128.0.0.1,tp_src=18080,tp_dst=49152,tcp_flags=syn|ack

bridge("br-int")
----------------
 0. in_port=9, priority 300, cookie 0x64666d6501010003
    goto_table:201
201. tcp,nw_src=169.254.169.254,nw_dst=128.0.0.1,tp_src=18080, priority 200, \
cookie 0x64666d6501030007
    set_field:fa:16:3e:00:00:01->eth_dst
    set_field:10.0.0.5->ip_dst
    set_field:80->tcp_src
    output:1

Final flow: tcp,in_port=9,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,\
nw_src=169.254.169.254,nw_dst=10.0.0.5,tp_src=80,tp_dst=49152,tcp_flags=syn|ack
"""
TAGGED_THERE = """\
Flow: tcp,in_port=1,dl_vlan=300,dl_vlan_pcp=0,vlan_tci1=0x0000,dl_src=fa:16:3e:00:00:01,\
dl_dst=02:00:00:00:00:01,nw_src=10.0.0.5,nw_dst=169.254.169.254,nw_ttl=64,tp_src=49152,tp_dst=80,\
tcp_flags=syn

bridge("br-int")
----------------
 0. tcp,in_port=1,dl_vlan=300,nw_dst=169.254.169.254,tp_dst=80,tcp_flags=+syn, priority 300, \
cookie 0x64666d650101000a
    meter:160637
    goto_table:200
200. tcp,in_port=1,dl_vlan=300,dl_src=fa:16:3e:00:00:01,nw_src=10.0.0.5, priority 200, \
cookie 0x64666d6501020005
    pop_vlan
    set_field:0->reg3
    set_field:02:64:66:6d:65:fe->eth_dst
    set_field:129.44.0.1->ip_src
    set_field:18080->tcp_dst
    goto_table:203
203. reg3=0,vlan_tci=0x0000/0x1fff, priority 200, cookie 0x64666d6501050017
    output:9

Final flow: tcp,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=02:64:66:6d:65:fe,\
nw_src=129.44.0.1,nw_dst=169.254.169.254,nw_ttl=64,tp_src=49152,tp_dst=18080,tcp_flags=syn
"""
TAGGED_BACK = (
    BACK.replace("128.0.0.1", "129.44.0.1")
    .replace("    output:1\n", "    push_vlan:0x8100\n    set_field:4396->vlan_vid\n    output:1\n")
    .replace("Final flow: tcp,in_port=9,", "Final flow: tcp,in_port=9,dl_vlan=300,dl_vlan_pcp=0,")
)
FOREIGN = """\
Flow: tcp,in_port=1,nw_dst=169.254.169.254

bridge("br-int")
----------------
 0. ip,in_port=1, priority 402, cookie 0x1236
    set_field:0x1->reg0
    resubmit(,60)
    60. No match.
            drop
    ct(table=61)
    drop
     -> A clone of the packet is forked to recirculate.

Final flow: unchanged
Megaflow: recirc_id=0

===============================================================================
recirc(0x3) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Flow: recirc_id=0x3,tcp

bridge("br-int")
----------------
    thaw
        Resuming from table 61
61. No match.
    drop

Final flow: unchanged
"""
SOLICITED = """\
Flow: icmp6,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=33:33:ff:fe:a9:fe,\
ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=ff02::1:fffe:a9fe,ipv6_label=0x00000,nw_tos=0,nw_ecn=0,\
nw_ttl=255,nw_frag=no,icmp_type=135,icmp_code=0,nd_target=fe80::a9fe:a9fe,\
nd_sll=fa:16:3e:00:00:01,nd_tll=00:00:00:00:00:00

bridge("br-int")
----------------
 0. icmp6,in_port=1,vlan_tci=0x0000/0x1fff,icmp_type=135,icmp_code=0,nd_target=fe80::a9fe:a9fe, \
priority 300, cookie 0x64666d650101000d
    goto_table:200
200. icmp6,icmp_type=135,icmp_code=0, priority 50, cookie 0x64666d6501020010
    set_field:136->icmpv6_type
    set_field:0x60000000->reg0
    set_field:0x2->reg1
    move:NXM_NX_REG0[]->ERICOXM_OF_ICMPV6_ND_RESERVED[]
     -> ERICOXM_OF_ICMPV6_ND_RESERVED[] is now 1610612736
    move:NXM_NX_REG1[0..7]->ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE[]
     -> ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE[] is now 0
    goto_table:202
202. icmp6,icmp_type=136,icmp_code=0,nd_target=fe80::a9fe:a9fe, priority 200, \
cookie 0x64666d6501040012
    move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]
     -> NXM_OF_ETH_DST[] is now fa:16:3e:00:00:01
    set_field:02:64:66:6d:65:fe->eth_src
    move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[]
     -> NXM_NX_IPV6_DST[] is now fe80::f816:3eff:fe00:1
    move:NXM_NX_ND_TARGET[]->NXM_NX_IPV6_SRC[]
     -> NXM_NX_IPV6_SRC[] is now fe80::a9fe:a9fe
    set_field:02:64:66:6d:65:fe->nd_tll
    IN_PORT

Final flow: icmp6,reg0=0x60000000,reg1=0x2,in_port=1,vlan_tci=0x0000,dl_src=02:64:66:6d:65:fe,\
dl_dst=fa:16:3e:00:00:01,ipv6_src=fe80::a9fe:a9fe,ipv6_dst=fe80::f816:3eff:fe00:1,\
ipv6_label=0x00000,nw_tos=0,nw_ecn=0,nw_ttl=255,nw_frag=no,icmp_type=136,icmp_code=0,\
nd_target=fe80::a9fe:a9fe,nd_sll=fa:16:3e:00:00:01,nd_tll=02:64:66:6d:65:fe
Megaflow: recirc_id=0,eth,icmp6,in_port=1,dl_src=fa:16:3e:00:00:01
This flow is handled by the userspace slow path because it:
  - Uses action(s) not supported by datapath.
"""
THERE6 = """\
Flow: tcp6,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,\
ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=fe80::a9fe:a9fe,ipv6_label=0x00000,nw_tos=0,nw_ecn=0,\
nw_ttl=64,nw_frag=no,tp_src=49152,tp_dst=80,tcp_flags=syn

bridge("br-int")
----------------
 0. tcp6,in_port=1,vlan_tci=0x0000/0x1fff,ipv6_dst=fe80::a9fe:a9fe,tp_dst=80,tcp_flags=+syn, \
priority 300, cookie 0x64666d650101000a
    goto_table:200
200. tcp6,in_port=1,vlan_tci=0x0000/0x1fff,dl_src=fa:16:3e:00:00:01,\
ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=fe80::a9fe:a9fe, priority 200, cookie 0x64666d6501020005
    set_field:02:64:66:6d:65:fe->eth_dst
    set_field:fd00:a9fe:a9fe:a9fe:1::1->ipv6_src
    set_field:fd00:a9fe:a9fe:a9fe::a9fe->ipv6_dst
    set_field:18080->tcp_dst
    output:9

Final flow: tcp6,in_port=1,vlan_tci=0x0000,dl_src=fa:16:3e:00:00:01,dl_dst=02:64:66:6d:65:fe,\
ipv6_src=fd00:a9fe:a9fe:a9fe:1::1,ipv6_dst=fd00:a9fe:a9fe:a9fe::a9fe,ipv6_label=0x00000,nw_tos=0,\
nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=49152,tp_dst=18080,tcp_flags=syn
"""
BACK6 = """\
Flow: tcp6,in_port=9,vlan_tci=0x0000,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,\
ipv6_src=fd00:a9fe:a9fe:a9fe::a9fe,ipv6_dst=fd00:a9fe:a9fe:a9fe:1::1,ipv6_label=0x00000,nw_tos=0,\
nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=18080,tp_dst=49152,tcp_flags=syn|ack

bridge("br-int")
----------------
 0. in_port=9, priority 300, cookie 0x64666d6501010003
    goto_table:201
201. tcp6,ipv6_src=fd00:a9fe:a9fe:a9fe::a9fe,ipv6_dst=fd00:a9fe:a9fe:a9fe:1::1,tp_src=18080, \
priority 200, cookie 0x64666d6501030007
    set_field:fa:16:3e:00:00:01->eth_dst
    set_field:fe80::f816:3eff:fe00:1->ipv6_dst
    set_field:80->tcp_src
    set_field:fe80::a9fe:a9fe->ipv6_src
    output:1

Final flow: tcp6,in_port=9,vlan_tci=0x0000,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,\
ipv6_src=fe80::a9fe:a9fe,ipv6_dst=fe80::f816:3eff:fe00:1,ipv6_label=0x00000,nw_tos=0,nw_ecn=0,\
nw_ttl=64,nw_frag=no,tp_src=80,tp_dst=49152,tcp_flags=syn|ack
"""
SERVICE = "200. tcp,in_port=1, priority "


def there(text: str, port: KnownPort = PORT) -> legs.Leg:
    assert isinstance(port, type(PORT))
    return legs.there(parse(text), port, tap=TAP, layout=LAYOUT)


def back(text: str, known: bool = True) -> legs.Leg:
    address = ADDRESS if known else None
    return legs.back(parse(text), PORT, address=address, tap=TAP, layout=LAYOUT)


def cut(text: str, service: str) -> str:
    """The way there, with another hop through the service table."""
    before = text[: text.index("200. ")]
    return f"{before}{service}\n\nFinal flow: unchanged\n"


def test_tables_flows_actions_and_the_packet_at_the_end_are_read() -> None:
    trace = parse(THERE)
    assert [hop.table for hop in trace.hops] == [0, 200]
    assert [hop.purpose for hop in trace.hops] == [Purpose.GUEST_SYN, Purpose.ADDRESS]
    assert [hop.priority for hop in trace.hops] == [300, 200]
    assert trace.hops[1].outputs_to(9)
    assert not trace.hops[1].outputs_to(4)
    assert trace.final["nw_src"] == "128.0.0.1"
    assert trace.final["tp_dst"] == "18080"


def test_nested_tables_and_what_comes_after_a_recirculation() -> None:
    trace = parse(FOREIGN)
    assert [(hop.table, hop.matched) for hop in trace.hops] == [(0, True), (60, False)]
    assert trace.hops[0].cookie == 0x1236
    assert trace.hops[0].actions == ("set_field:0x1->reg0", "resubmit(,60)")
    assert not trace.hops[0].ours
    assert trace.final["nw_dst"] == "169.254.169.254"


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse(text), Trace)


def test_a_packet_is_written_as_ovs_ofctl_takes_it() -> None:
    assert packet("tcp", in_port=1, tcp_flags="syn|ack") == "tcp,in_port=1,tcp_flags=syn|ack"
    assert legs.syn(PORT, ADDRESS, tap=TAP) == (
        "tcp,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,nw_src=10.0.0.5,"
        "nw_dst=169.254.169.254,nw_ttl=64,tcp_src=49152,tcp_dst=80,tcp_flags=syn"
    )
    assert "nw_dst=144.0.0.1," in legs.syn_ack(PORT, ADDRESS, slot=1, tap=TAP)


def test_packets_of_ipv6_are_written_as_ovs_ofctl_takes_them() -> None:
    assert legs.syn(PORT, ADDRESS6, tap=TAP6) == (
        "tcp6,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,"
        "ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=fe80::a9fe:a9fe,nw_ttl=64,tcp_src=49152,"
        "tcp_dst=80,tcp_flags=syn"
    )
    assert legs.syn_ack(PORT, ADDRESS6, slot=SLOT6 + 1, tap=TAP6) == (
        "tcp6,in_port=9,dl_src=02:64:66:6d:65:fe,dl_dst=fa:16:3e:00:00:01,"
        "ipv6_src=fd00:a9fe:a9fe:a9fe::a9fe,ipv6_dst=fd00:a9fe:a9fe:a9fe:1::1,nw_ttl=64,"
        "tcp_src=18080,tcp_dst=49152,tcp_flags=syn|ack"
    )
    assert legs.solicitation(PORT, ADDRESS6, tap=TAP6) == (
        "icmp6,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=33:33:ff:fe:a9:fe,"
        "ipv6_src=fe80::f816:3eff:fe00:1,ipv6_dst=ff02::1:fffe:a9fe,nw_ttl=255,icmpv6_type=135,"
        "icmpv6_code=0,nd_target=fe80::a9fe:a9fe,nd_sll=fa:16:3e:00:00:01"
    )
    other = legs.unseen(PORT.mac, "fd00:ec2::254")
    assert other.ip.version == 6
    assert "dl_dst=33:33:ff:00:02:54," in legs.solicitation(PORT, other, tap=TAP6)
    assert "ipv6_dst=fd00:ec2::254," in legs.syn(PORT, other, tap=TAP6)
    assert legs.unseen("") == legs.UNSEEN


def there6(text: str) -> legs.Leg:
    return legs.there(parse(text), PORT6, version=6, tap=TAP6, layout=LAYOUT)


def back6(text: str) -> legs.Leg:
    return legs.back(parse(text), PORT6, address=ADDRESS6, tap=TAP6, layout=LAYOUT)


def neighbour(text: str) -> legs.Leg:
    return legs.neighbour(parse(text), PORT6, ADDRESS6, tap=TAP6, layout=LAYOUT)


def test_all_legs_of_ipv6_lead_to_their_ends() -> None:
    assert neighbour(SOLICITED).stop == ""
    assert [step.split(",")[0] for step in neighbour(SOLICITED).steps] == [
        "classification: guest-nd",
        "metadata service: guest-nd-answer",
        "neighbour discovery: service-nd",
    ]
    assert there6(THERE6) == replace(there6(THERE6), stop="", to_controller=False)
    assert back6(BACK6).stop == ""


def test_an_address_in_another_spelling_is_the_same() -> None:
    long = "fd00:a9fe:a9fe:a9fe:0:0:0:a9fe"
    assert there6(THERE6.replace("fd00:a9fe:a9fe:a9fe::a9fe", long)).stop == ""


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (SOLICITED.replace("0x64666d650101000d", "0x64666d6501010001"), "guest-nd flow is missing"),
        (SOLICITED[: SOLICITED.index("200. ")], "stops before the metadata service table"),
        (
            SOLICITED.replace("0x64666d6501020010", "0x64666d650102000f"),
            "the guest-nd-answer flow for fe80::a9fe:a9fe is missing, a flow of dfmeta (cookie 0x6",
        ),
        (SOLICITED[: SOLICITED.index("202. ")], "stops before the neighbour discovery table"),
        (
            SOLICITED.replace("0x64666d6501040012", "0x64666d6501040014"),
            "table: the service-nd flow for fe80::a9fe:a9fe is missing, a flow of dfmeta",
        ),
        (SOLICITED.replace("    IN_PORT\n", "    output:2\n"), "does not leave at tap1"),
        (
            SOLICITED.replace("nd_tll=02:64:66:6d:65:fe", "nd_tll=02:64:66:6d:65:ff"),
            "nd_tll is 02:64:66:6d:65:ff and should be 02:64:66:6d:65:fe",
        ),
    ],
)
def test_neighbour_discovery_stops_in_words(text: str, stop: str) -> None:
    assert neighbour(text).stop.startswith("neighbour discovery: ")
    assert stop in neighbour(text).stop


@pytest.mark.parametrize(
    ("leg", "stop"),
    [
        (
            there6(THERE6.replace("ipv6_dst=fd00:a9fe:a9fe:a9fe::a9fe,", "ipv6_dst=::1,")),
            "ipv6_dst is ::1 and should be fd00:a9fe:a9fe:a9fe::a9fe",
        ),
        (there6(THERE6.replace("output:9", "output:8")), "does not lead to tap-metadata's port"),
        (
            back6(BACK6.replace("ipv6_src=fe80::a9fe:a9fe,", "ipv6_src=fd00:ec2::254,")),
            "ipv6_src is fd00:ec2::254 and should be fe80::a9fe:a9fe",
        ),
        (
            back6(BACK6.replace("ipv6_dst=fe80::f816:3eff:fe00:1,", "ipv6_dst=fe80::2,")),
            "ipv6_dst is fe80::2 and should be fe80::f816:3eff:fe00:1",
        ),
    ],
    ids=["another listener", "another port", "another service", "another guest"],
)
def test_the_legs_of_ipv6_stop_in_words(leg: legs.Leg, stop: str) -> None:
    assert stop in leg.stop


def test_both_legs_lead_to_their_ends() -> None:
    assert there(THERE).stop == ""
    assert not there(THERE).to_controller
    assert back(BACK).stop == ""
    assert there(THERE).steps[0] == "classification: guest-syn, priority 300: goto_table:200"


SUBPORT = replace(PORT, vid=300)


def test_the_legs_of_a_tagged_subport_lead_to_their_ends() -> None:
    assert "in_port=1,dl_vlan=300,dl_src=" in legs.syn(SUBPORT, ADDRESS, tap=TAP)
    assert "nw_dst=129.44.0.1," in legs.syn_ack(SUBPORT, ADDRESS, slot=0, tap=TAP)
    found = there(TAGGED_THERE, SUBPORT)
    assert (found.stop, found.to_controller) == ("", False)
    assert found.steps[-1] == "subport: subport-proxy, priority 200: output:9"
    returned = legs.back(parse(TAGGED_BACK), SUBPORT, address=ADDRESS, tap=TAP, layout=LAYOUT)
    assert returned.stop == ""


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        pytest.param(
            TAGGED_THERE.replace("cookie 0x64666d6501050017", "cookie 0x64666d6501050018"),
            "stops in the subport table: the subport-proxy flow is missing, a flow of dfmeta",
            id="a second tag",
        ),
        pytest.param(
            TAGGED_THERE.replace("goto_table:203\n203.", "output:9\n9."),
            "stops before the subport table: a flow of dfmeta",
            id="a flow of another form",
        ),
        pytest.param(
            TAGGED_THERE.replace("output:9", "output:8"), "does not lead to", id="another port"
        ),
    ],
)
def test_the_way_there_of_a_tagged_subport_stops_in_words(text: str, stop: str) -> None:
    assert stop in there(text, SUBPORT).stop


def test_an_answer_without_its_tag_is_wrong() -> None:
    text = TAGGED_BACK.replace("dl_vlan=300,dl_vlan_pcp=0,", "vlan_tci=0x0000,")
    found = legs.back(parse(text), SUBPORT, address=ADDRESS, tap=TAP, layout=LAYOUT)
    assert "dl_vlan is None and should be 300" in found.stop


def test_of_ports_with_a_name_the_untagged_one_is_traced_unless_a_vlan_is_named() -> None:
    ports = [PORT, SUBPORT]
    assert which.with_vid(ports, None) == [PORT]
    assert which.with_vid(ports, 300) == [SUBPORT]
    assert which.with_vid(ports, 301) == []
    assert which.with_vid([SUBPORT], None) == [SUBPORT]


def test_a_first_syn_goes_to_the_controller() -> None:
    text = cut(THERE, f"{SERVICE}100, cookie 0x64666d6501020004\n    controller(id=53758)")
    assert there(text) == replace(there(text), stop="", to_controller=True)
    nobody = replace(PORT, state=PortState.NO_INSTANCE, instance="")
    assert there(text, nobody).stop.startswith(
        "stops in the metadata service table: the port tap1 has no instance (external_ids:vm-uuid"
    )


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (cut(THERE, "200. No match.\n    drop"), "no flow matches it"),
        (cut(THERE, ""), "stops before the metadata service table: the switch drops packets from"),
        (
            cut(THERE, "200. priority 0, cookie 0x64666d6501020006\n    drop"),
            "first-SYN flow is missing",
        ),
        (
            cut(THERE, f"{SERVICE}900\n    drop"),
            "another program's flow (cookie 0x0, priority 900",
        ),
        (THERE.replace("output:9", "output:8"), "does not lead to tap-metadata's port (9)"),
        (THERE.replace("tp_dst=18080", "tp_dst=1"), "tp_dst is 1 and should be 18080"),
        (THERE.replace("0x64666d650101000a", "0x64666d6501010003"), "guest-syn flow is missing"),
        (FOREIGN, "takes it, before dfmeta's hooks (priority 300)"),
        (FOREIGN.replace("402", "0"), "guest-syn flow is missing, so another program's flow"),
        (" 0. No match.\n    drop\n", "guest-syn flow is missing"),
        (" 7. priority 1\n    drop\n", "does not reach the classification table (0)"),
        (" 7. No match.\n    drop\n", "table 7, which has no flow for it, takes it first"),
        ("", "does not reach the classification table (0): no flow matches it"),
    ],
)
def test_the_way_there_stops_in_words(text: str, stop: str) -> None:
    assert stop in there(text).stop


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        (FOREIGN, "before dfmeta's hooks"),
        (BACK.replace("0x64666d6501030007", "0x64666d6501030009"), "no reply flow for its key"),
        (BACK.replace("0x64666d6501030007", "0x7"), "no flow matches it"),
        (BACK[: BACK.index("201. ")], "stops before the metadata service reply table: the switch"),
        (BACK.replace("    output:1\n", "    output:2\n"), "does not leave at tap1 (ofport 1)"),
        (BACK.replace("nw_dst=10.0.0.5", "nw_dst=10.0.0.9"), "nw_dst is 10.0.0.9"),
    ],
)
def test_the_way_back_stops_in_words(text: str, stop: str) -> None:
    assert back(text).stop.startswith("on the return path: ")
    assert stop in back(text).stop


def test_what_follows_the_syn_goes_by_another_flow() -> None:
    after = THERE.replace("0x64666d650101000a", "0x64666d6501010001")
    assert legs.on(parse(after), LAYOUT) == ""
    assert "after the SYN: stops in" in legs.on(parse(THERE), LAYOUT)
    assert "guest-http flow is missing" in legs.on(parse(THERE), LAYOUT)


def test_the_way_back_of_an_address_not_known_yet_ends_in_the_reply_table() -> None:
    text = BACK.replace("0x64666d6501030007", "0x64666d6501030009")
    assert back(text, known=False).stop == ""
    assert back(FOREIGN, known=False).stop


def test_a_flow_of_another_version_is_shown_as_unknown() -> None:
    text = THERE.replace("0x64666d6501020005", "0x64666d65ff020005")
    assert "unknown flow, cookie 0x64666d65ff020005" in there(text).steps[1]
    assert "a flow of dfmeta (cookie 0x64666d65ff020005" in there(text).stop
