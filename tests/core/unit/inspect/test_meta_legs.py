"""What ``ofproto/trace`` printed of two bridges with a patch, and where a path ends there."""

from __future__ import annotations

from dfmeta.flows.pipeline import BR_META, Layout, MetaPurpose
from dfmeta.inspect import legs, meta_legs
from dfmeta.inspect.meta_legs import Beyond
from dfmeta.inspect.tracing import parse
from tests.core.unit.inspect.values import (
    ADDRESS,
    IP,
    META_IP,
    META_MAC,
    META_PORT,
    META_TAP,
    TAP_TO_META,
    recorded,
)

THERE, ON_META, BACK = recorded("meta-there"), recorded("meta-beyond"), recorded("meta-back")
NO_FLOW = """\
bridge("br-meta")
-----------------
 0. reg0=0x2, priority 0
    drop

Final flow: unchanged
"""
BEYOND = Beyond(
    bridge="br-meta",
    tap=META_TAP,
    layout=Layout(pipeline=BR_META),
    patch="phy-br-meta",
    label=META_MAC,
    key=META_IP,
    service=IP,
)
ENDS = {"port": "int-br-meta", "peer": "phy-br-meta", "bridge": "br-meta"}


def test_each_bridge_has_its_part_of_the_path() -> None:
    found = parse(THERE)
    assert [hop.table for hop in found.first.hops] == [0, 200]
    assert [hop.table for hop in found.on("br-meta").hops] == [0, 80, 87]
    assert found.on("br-meta").at(0) != found.first.at(0)
    assert found.on("elsewhere").hops == ()
    assert meta_legs.not_crossed(found, **ENDS) == ""
    assert meta_legs.not_crossed(found.first, **ENDS).startswith("stops at the patch port int-br-")


def test_integration_bridge_writes_the_meta_mac() -> None:
    def judged(text: str) -> str:
        return legs.there(
            parse(text).first, META_PORT, tap=TAP_TO_META, layout=Layout(), label=META_MAC
        ).stop

    assert judged(THERE) == ""
    elsewhere = THERE.replace("    output:3", "    output:4", 1)
    assert judged(elsewhere) == "its flow does not lead to the patch port (3)"
    other = THERE.replace(
        "dl_src=fa:16:ee:00:00:03,dl_dst=02", "dl_src=fa:16:ee:00:00:04,dl_dst=02"
    )
    assert "dl_src is fa:16:ee:00:00:04 and should be fa:16:ee:00:00:03" in judged(other)


def test_syn_reaches_tap_meta() -> None:
    leg = BEYOND.there(parse(ON_META))
    assert leg.stop == ""
    assert [step.split(",")[0] for step in leg.steps] == [
        "meta classification: meta-from-patch",
        "meta source: meta-source",
        "meta proxy: meta-to-proxy",
    ]


def cut(text: str, table: int) -> str:
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
        (cut(ON_META, 80), f"meta source table: the meta-source flow of {mac}"),
        (
            cut(ON_META, 87),
            "meta proxy table: the meta-to-proxy flow to 169.254.169.254 is missing",
        ),
    ):
        assert BEYOND.there(parse(text)).stop.startswith(f"on br-meta: stops in the {stop}")


def test_flow_of_another_program_and_one_that_leads_elsewhere() -> None:
    strange = ON_META.replace("priority 200, cookie 0x64666d6501220046", "priority 201, cookie 0x7")
    assert "another program's flow (cookie 0x7, priority 201" in BEYOND.there(parse(strange)).stop
    astray = ON_META.replace("    output:1", "    output:5")
    end = "on br-meta: its flow does not lead to the port tap-meta (1)"
    assert BEYOND.there(parse(astray)).stop == end
    other = ON_META.replace(
        "nw_src=240.0.0.3,nw_dst=240.0.0.1", "nw_src=240.0.0.4,nw_dst=240.0.0.1"
    )
    assert "nw_src is 240.0.0.4 and should be 240.0.0.3" in BEYOND.there(parse(other)).stop


def test_answer_reaches_the_patch() -> None:
    found = parse(BACK)
    leg = BEYOND.back(found.on("br-meta"))
    assert (leg.stop, len(leg.steps)) == ("", 2)
    assert (
        meta_legs.not_crossed(found, port="phy-br-meta", peer="int-br-meta", bridge="br-int") == ""
    )
    lost = BEYOND.back(parse(cut(BACK, 91)).on("br-meta")).stop
    assert lost == (
        "on the return path: on br-meta: stops in the meta reply table: the meta-reply flow to "
        "240.0.0.3 is missing"
    )
    tagged = parse(
        BACK.replace("Final flow: tcp,in_port=1,vlan_tci=0x0000", "Final flow: tcp,dl_vlan=1")
    )
    assert BEYOND.back(tagged.on("br-meta")).stop.endswith("it leaves with a VLAN tag")


def test_packets_are_those_of_a_guest() -> None:
    assert BEYOND.syn(ADDRESS).startswith(
        "tcp,in_port=2,dl_src=fa:16:ee:00:00:03,dl_dst=02:00:00:00:00:01,nw_src=10.0.0.5,nw_dst=169"
    )
    assert "in_port=1,dl_src=fa:16:ee:00:00:01" in BEYOND.syn_ack()
    assert "nw_src=240.0.0.1,nw_dst=240.0.0.3" in BEYOND.syn_ack()
    assert "in_port=3,dl_src=fa:16:ee:00:00:01,dl_dst=fa:16:ee:00:00:03" in BEYOND.answer(3)
    assert "nw_src=169.254.169.254,nw_dst=240.0.0.3" in BEYOND.answer(3)


def test_open_vswitchs_own_rule_is_no_flow() -> None:
    (hop,) = parse(NO_FLOW).hops
    assert (hop.matched, hop.purpose, hop.bridge) == (False, None, "br-meta")
    assert parse(ON_META).hops[0].purpose is MetaPurpose.META_FROM_PATCH
