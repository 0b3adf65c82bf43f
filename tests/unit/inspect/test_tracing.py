"""What Open vSwitch 3.1's ``ofproto/trace`` printed, and where it says that a packet ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.flows.pipeline import Layout, Purpose
from dfmeta.inspect import legs
from dfmeta.inspect.tracing import Trace, packet, parse
from dfmeta.model import PortState
from tests.unit.inspect.values import ADDRESS, PORT, TAP

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
SERVICE = "200. tcp,in_port=1, priority "


def there(text: str, port: object = PORT) -> legs.Leg:
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
    assert packet(in_port=1, tcp_flags="syn|ack") == "tcp,in_port=1,tcp_flags=syn|ack"
    assert legs.syn(PORT, ADDRESS, tap=TAP) == (
        "tcp,in_port=1,dl_src=fa:16:3e:00:00:01,dl_dst=02:00:00:00:00:01,nw_src=10.0.0.5,"
        "nw_dst=169.254.169.254,nw_ttl=64,tcp_src=49152,tcp_dst=80,tcp_flags=syn"
    )
    assert "nw_dst=144.0.0.1," in legs.syn_ack(PORT, ADDRESS, slot=1, tap=TAP)


def test_both_legs_lead_to_their_ends() -> None:
    assert there(THERE).stop == ""
    assert not there(THERE).to_controller
    assert back(BACK).stop == ""
    assert there(THERE).steps[0] == "classification: guest-syn, priority 300: goto_table:200"


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
