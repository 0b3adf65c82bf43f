"""A flow that does what its table does not declare should fail when it is built."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.errors import PipelineError
from dfmeta.flows.openflow import (
    TAGGED,
    UNTAGGED,
    Move,
    Opaque,
    SetField,
    ToController,
    Value,
    canonical,
    comes_in_at,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import Purpose, Stage
from dfmeta.model import OFPORT_MAX, VID_MAX, Endpoint

TCP = {"eth_type": 0x0800, "ip_proto": 6}
ARP = {"eth_type": 0x0806}


def test_a_declared_flow_is_built() -> None:
    built = flow(Purpose.GUEST_HTTP, TCP | {"tcp_dst": 80}, goto=Stage.SERVICE)
    assert built.purpose.stage is Stage.CLASSIFY
    assert built.field("tcp_dst") == 80
    assert built.field("in_port") is None
    assert built.match_key == (Purpose.GUEST_HTTP, built.match)


def test_an_undeclared_match_is_refused() -> None:
    matches: tuple[tuple[Purpose, dict[str, Any], str], ...] = (
        (Purpose.GUEST_HTTP, {"eth_src": "02:00:00:00:00:01"}, "eth_src"),
        (Purpose.SYN, TCP | {"tcp_dst": 80}, "tcp_dst"),
        (Purpose.REPLY, {"in_port": 3}, "in_port"),
        (Purpose.REPLY, {"metadata": 3, "in_port": 3}, "in_port, metadata"),
    )
    for purpose, match, named in matches:
        with pytest.raises(PipelineError, match=f"may not match {named}$"):
            flow(purpose, match)


def test_an_undeclared_set_is_refused() -> None:
    for purpose, action in (
        (Purpose.ADDRESS, SetField("tcp_src", 80)),
        (Purpose.ADDRESS, SetField("arp_op", 2)),
        (Purpose.GUEST_ARP, SetField("ipv4_src", "10.0.0.1")),
        (Purpose.REPLY, Move("eth_src", "tcp_dst", 16)),
    ):
        with pytest.raises(PipelineError, match=f"may not set {action.field}"):
            flow(purpose, {}, actions=[action])


def test_an_undeclared_successor_is_refused() -> None:
    for purpose, goto in (
        (Purpose.REPLY, Stage.SERVICE),
        (Purpose.SYN, Stage.REPLY),
        (Purpose.FROM_TAP, Stage.CLASSIFY),
    ):
        with pytest.raises(PipelineError, match=f"{goto.name} is not among its successors"):
            flow(purpose, {}, goto=goto)


def test_the_classification_table_sends_nothing_to_the_controller() -> None:
    for purpose in (Purpose.GUEST_HTTP, Purpose.FROM_TAP):
        with pytest.raises(PipelineError, match="to the controller"):
            flow(purpose, {}, actions=[ToController(1)])
    flow(Purpose.SYN, {}, actions=[ToController(1)])


def test_an_action_read_from_a_switch_is_never_sent() -> None:
    with pytest.raises(PipelineError, match="not an action of dfmeta's flows"):
        flow(Purpose.SYN, {}, actions=[Opaque("learn(…)")])


def test_a_field_without_its_prerequisite_is_refused() -> None:
    matches: tuple[tuple[Purpose, dict[str, Any]], ...] = (
        (Purpose.GUEST_HTTP, {"tcp_dst": 80}),
        (Purpose.GUEST_HTTP, {"eth_type": 0x0800, "tcp_dst": 80}),
        (Purpose.GUEST_HTTP, {"eth_type": 0x0800, "ip_proto": 17, "tcp_dst": 80}),
        (Purpose.GUEST_HTTP, {"ipv4_dst": "169.254.169.254"}),
        (Purpose.GUEST_HTTP, ARP | {"ipv4_dst": "169.254.169.254"}),
        (Purpose.GUEST_HTTP, {"ip_proto": 6}),
        (Purpose.SYN, {"eth_type": 0x0800, "tcp_flags": (2, 0x12)}),
        (Purpose.REPLY, {"eth_type": 0x0800, "tcp_src": 80}),
        (Purpose.GUEST_ARP, {"arp_op": 1}),
        (Purpose.KEY_ARP, {"eth_type": 0x0800, "arp_tpa": "128.0.0.1"}),
    )
    for purpose, match in matches:
        with pytest.raises(PipelineError, match="needs"):
            flow(purpose, match)


def test_the_order_in_which_a_match_is_written_makes_no_difference() -> None:
    forward = flow(Purpose.REPLY, {"eth_type": 0x0800, "ip_proto": 6})
    backward = flow(Purpose.REPLY, {"ip_proto": 6, "eth_type": 0x0800})
    assert forward == backward
    assert canonical({"b": 1, "a": 2}) == (("a", 2), ("b", 1))


@given(st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.integers(0, VID_MAX)))
def test_an_endpoint_is_read_back_from_the_match_of_its_frames(endpoint: Endpoint) -> None:
    match = frames_of(endpoint)
    assert comes_in_at(flow(Purpose.GUEST_HTTP, match)) == endpoint
    assert match["vlan_vid"] == (TAGGED | endpoint.vid if endpoint.vid else UNTAGGED)


def test_a_match_of_other_frames_has_no_endpoint() -> None:
    matches: tuple[tuple[dict[str, Value], Endpoint | None], ...] = (
        ({}, None),
        ({"vlan_vid": TAGGED | 5}, None),
        ({"in_port": 3}, Endpoint(3)),
        ({"in_port": 3, "vlan_vid": TAGGED}, None),
        ({"in_port": 3, "vlan_vid": 5}, None),
        ({"in_port": 3, "vlan_vid": (TAGGED, TAGGED)}, None),
        ({"in_port": 3, "vlan_vid": (TAGGED | 4, 0x1FF0)}, None),
    )
    for match, endpoint in matches:
        assert comes_in_at(flow(Purpose.GUEST_HTTP, match)) == endpoint, match
