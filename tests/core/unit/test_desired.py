"""What ought to be on the switch should lead each guest there and back, and nobody elsewhere."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows.integration_bridge import ServedEndpoint, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow, Move, SetField
from dfmeta.flows.pipeline import Purpose, Stage
from dfmeta.identity.key import SLOTS, SLOTS6
from dfmeta.model import VID_MAX
from tests.core.unit.support import TAP6, guests
from tests.harness.examples import examples

VIDS = st.just(0) | st.integers(1, VID_MAX)
GUESTS = guests(SLOTS, SLOTS6, VIDS).filter(
    lambda guest: len(set(guest.addresses.values())) == len(guest.addresses)
)
# Hypothesis' own tries; each builds some dozens of flows.
FEW = settings(deadline=None, max_examples=examples(16))


def by_purpose(flows: tuple[Flow, ...], purpose: Purpose) -> list[Flow]:
    return [flow for flow in flows if flow.purpose is purpose]


def sets(flow: Flow) -> dict[str, int | str]:
    return {a.field: a.value for a in flow.actions if isinstance(a, SetField)}


@FEW
@given(GUESTS)
def test_an_addresss_way_back_is_added_before_its_way_in(guest: ServedEndpoint) -> None:
    order = [flow.purpose for flow in guest_flows(guest, TAP6)]
    for position, purpose in enumerate(order):
        if purpose is Purpose.ADDRESS:
            request, back = order[position - 2 : position]
            assert request in (Purpose.KEY_ARP, Purpose.KEY_ND)
            assert back is Purpose.REPLY
    to_service = [Purpose.GUEST_FRAGMENT, Purpose.GUEST_HTTP, Purpose.GUEST_SYN]
    assert order[-15:] == [
        *(Purpose.SYN, Purpose.GUEST_ARP, *to_service),
        *(Purpose.SYN, Purpose.GUEST_ND_BARE),
        *(Purpose.GUEST_ND, *to_service),
        *(Purpose.GUEST_ND, *to_service),
    ]


@FEW
@given(GUESTS)
def test_a_guests_flows_have_places_of_their_own(guest: ServedEndpoint) -> None:
    flows = [*guest_flows(guest, TAP6), *fixed_flows(TAP6)]
    assert len({flow.match_key for flow in flows}) == len(flows)


@FEW
@given(GUESTS, GUESTS)
def test_two_guests_share_no_place(guest: ServedEndpoint, other: ServedEndpoint) -> None:
    if guest.endpoint == other.endpoint:
        return
    places = {flow.match_key for flow in guest_flows(guest, TAP6)}
    assert not places & {flow.match_key for flow in guest_flows(other, TAP6)}


def test_what_a_kernel_refuses_to_set_is_moved_from_a_register() -> None:
    for purpose in (Purpose.GUEST_ND_ANSWER, Purpose.KEY_ND_ANSWER):
        (flow,) = by_purpose(fixed_flows(TAP6), purpose)
        assert sets(flow) == {"icmpv6_type": 136, "reg0": 0x60000000, "reg1": 2}
        moved = {action.field: action.source for action in flow.actions if isinstance(action, Move)}
        assert moved == {"nd_reserved": "reg0", "nd_options_type": "reg1"}
        assert flow.goto is Stage.ND


@FEW
@given(GUESTS, st.sets(st.sampled_from((Purpose.SYN, Purpose.GUEST_SYN))))
def test_flood_changes_its_purpose_alone(guest: ServedEndpoint, floods: set[Purpose]) -> None:
    calm = {flow.match_key: flow for flow in guest_flows(guest, TAP6)}
    flooding = {flow.match_key: flow for flow in guest_flows(replace(guest, floods=floods), TAP6)}
    assert flooding.keys() == calm.keys()
    changed = {flow for key, flow in flooding.items() if flow != calm[key]}
    purposes = {Purpose.SYN: {Purpose.SYN, Purpose.GUEST_ND_BARE}}
    expected = set().union(*(purposes.get(purpose, {purpose}) for purpose in floods))
    assert {flow.purpose for flow in changed} == expected
    assert not any(flow.actions or flow.goto for flow in changed)
