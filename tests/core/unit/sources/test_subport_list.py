"""A list of subports should be read strictly, and a wrong entry should cost that entry alone."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.errors import SubportListError
from dfmeta.model import VID_MAX
from dfmeta.ovsdb.subport_list import (
    FAULTS_MAX,
    SIZE_MAX,
    ListClaim,
    ListEntry,
    claims,
    parse,
    with_attachments,
    with_entry,
    without,
    without_attachments,
)
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.examples import examples

MAC = "fa:16:3f:00:00:64"
WHOLE = {
    "vid": 100,
    "port_id": "p1",
    "instance_id": INSTANCE,
    "project_id": "project",
    "mac": MAC,
    "mtu": 1442,
    "attachment": OTHER_INSTANCE,
}
PORT = "33333333-4444-5555-6666-777777777777"
OWN = ListEntry(100, PORT, instance_id=INSTANCE, mac=MAC, attachment=INSTANCE)
"""The entry of an attachment."""


def text(*entries: Any) -> str:
    return json.dumps(entries)


def test_an_entry_has_all_its_members() -> None:
    parsed = parse(text(WHOLE, {"vid": 200}))
    names = {"instance_id": INSTANCE, "project_id": "project", "attachment": OTHER_INSTANCE}
    entry = ListEntry(100, "p1", mac=MAC, mtu=1442, **names)
    assert parsed.entries == {100: entry, 200: ListEntry(200)}
    assert parsed.faults == ()
    assert entry.members() == WHOLE


def test_values_are_read_into_one_form() -> None:
    odd = WHOLE | {"instance_id": INSTANCE.upper(), "mac": MAC.upper()}
    odd["attachment"] = OTHER_INSTANCE.upper()
    assert parse(text(odd)).entries == parse(text(WHOLE)).entries
    # Members that may be left out may be null or empty.
    empty = dict.fromkeys(("port_id", "instance_id"), None)
    assert parse(text({"vid": 1, **empty, "mac": "", "project_id": ""})).entries == {
        1: ListEntry(1)
    }
    for listed in ("", " ", "[]"):
        assert (parse(listed).entries, parse(listed).faults) == ({}, ())


WRONG_MEMBERS: list[tuple[dict[str, Any], str]] = [
    ({"vid": 0}, "vid is not a number from 1 to 4094"),
    ({"vid": VID_MAX + 1}, "vid is not a number"),
    ({"vid": "100"}, "vid is not a number"),
    ({"vid": 100.0}, "vid is not a number"),
    ({"vid": True}, "vid is not a number"),
    ({"port_id": 5}, "port_id is not a text"),
    ({"port_id": "a b"}, "port_id is not of 1 to 255"),
    ({"port_id": "x" * 256}, "port_id is not of 1 to 255"),
    ({"instance_id": "web"}, "instance_id is not a UUID"),
    ({"project_id": "a\r\nb"}, "project_id is not of 1 to 255"),
    ({"mac": "01:00:5e:00:00:01"}, "mac is not that of a host"),
    ({"mtu": 67}, "mtu is not a number from 68 to 65535"),
    ({"mtu": 65536}, "mtu is not a number from 68 to 65535"),
    ({"mtu": True}, "mtu is not a number from 68 to 65535"),
    ({"mac": "fa163f000064"}, "mac is not of the form"),
    ({"attachment": "a1"}, "attachment is not a UUID"),
]


def test_a_wrong_entry_costs_that_entry() -> None:
    for wrong, cause in WRONG_MEMBERS:
        parsed = parse(text(WHOLE | wrong, {"vid": 7}))
        assert parsed.entries == {7: ListEntry(7)}, wrong
        (fault,) = parsed.faults
        assert cause in fault
    others: list[Any] = [5, "100", None, [], [WHOLE]]
    for other in others:
        parsed = parse(text(other, {"vid": 7}))
        assert parsed.entries == {7: ListEntry(7)}
        assert "it is not an object" in parsed.faults[0]


def test_a_vlan_id_that_is_there_twice_is_of_no_guest() -> None:
    for second in ({"vid": 100}, WHOLE, {"vid": 100, "instance_id": "odd"}):
        parsed = parse(text(WHOLE, second, {"vid": 7}))
        assert parsed.entries == {7: ListEntry(7)}
        assert parsed.faults[-1].endswith("VID 100 is there 2 times, so that no entry of it counts")


def test_a_member_with_its_name_twice_costs_its_entry_and_the_vlan_id() -> None:
    doubled = '[{"vid": 100, "vid": 200}, {"vid": 200}, {"vid": 7}]'
    parsed = parse(doubled)
    assert parsed.entries == {7: ListEntry(7)}
    assert "a member has its name twice" in parsed.faults[0]


def test_a_text_that_is_no_list_is_one_fault() -> None:
    for listed, cause in (
        ("{", "it is not JSON"),
        ('{"vid": 1}', "it is not a JSON array"),
        ("[" * 100_000, "it is not JSON"),
        ("5", "it is not a JSON array"),
        (f"[{' ' * SIZE_MAX}]", "characters"),
    ):
        parsed = parse(listed)
        assert parsed.entries == {}
        (fault,) = parsed.faults
        assert cause in fault
        assert fault.startswith("external_ids:dfmeta-subports: ")
        assert len(fault) < 160
        with pytest.raises(SubportListError, match=cause.split()[-1]):
            with_entry(listed, ListEntry(1))


def test_numbers_of_any_length_cost_their_entry() -> None:
    long = f'[{{"vid": {"9" * 5000}}}, {{"vid": 7, "note": {"9" * 5000}}}, {{"vid": NaN}}]'
    assert parse(long).entries == {7: ListEntry(7)}


def test_many_faults_are_counted() -> None:
    parsed = parse(text(*({"vid": 0} for _number in range(100))))
    assert len(parsed.faults) == FAULTS_MAX
    assert parsed.faults[-1].endswith(f"{100 - FAULTS_MAX + 1} more entries are wrong")


def test_an_entry_is_added_replaced_and_removed_beside_others() -> None:
    others = [{"vid": 7, "of": "another program"}, {"vid": "odd"}, "odd"]
    added = with_entry(text(*others), ListEntry(100, instance_id=INSTANCE))
    assert json.loads(added) == [*others, {"vid": 100, "instance_id": INSTANCE}]
    replaced = with_entry(added, ListEntry(100, instance_id=OTHER_INSTANCE))
    assert json.loads(replaced) == [*others, {"vid": 100, "instance_id": OTHER_INSTANCE}]
    assert json.loads(without(replaced, 100)) == others
    assert with_entry("", ListEntry(5)) == '[{"vid":5}]'
    assert without('[{"vid":5}, {"vid": 5}]', 5) == ""
    assert without("", 5) == ""


def test_a_list_that_cannot_be_written_back_unchanged_is_refused() -> None:
    for odd in ('{"vid": 1, "vid": 2}', '{"vid": 1, "x": NaN}', '{"vid": 1, "x": 1e999}'):
        listed = f"[{json.dumps(OWN.members())}, {odd}]"
        for change in (
            lambda listed: with_entry(listed, ListEntry(7)),
            lambda listed: with_attachments(listed, [ListEntry(5, PORT, attachment=PORT)]),
            lambda listed: without_attachments(listed, {INSTANCE}),
        ):
            with pytest.raises(SubportListError, match="JSON readers do not read alike"):
                change(listed)
    with pytest.raises(SubportListError, match="not a JSON array"):
        with_attachments("{}", [OWN])
    nearly = text({"vid": 1, "note": "x" * (SIZE_MAX - 40)})
    with pytest.raises(SubportListError, match="characters"):
        with_entry(nearly, ListEntry(2, port_id="p" * 40))


def test_the_entry_of_an_attachment_is_added_beside_others_and_removed() -> None:
    others = [{"vid": 7, "of": "another program"}, {"vid": "odd"}, "odd"]
    two = ListEntry(101, PORT, attachment=OTHER_INSTANCE)
    added = with_attachments(text(*others), [OWN, two])
    assert json.loads(added) == [*others, OWN.members(), two.members()]
    assert parse(added).entries[100] == OWN
    # Nothing is written for what is there, in any order.
    assert with_attachments(added, [two, OWN]) == added
    left = without_attachments(added, {INSTANCE})
    assert json.loads(left) == [*others, two.members()]
    assert json.loads(without_attachments(left, {OTHER_INSTANCE, INSTANCE})) == others
    assert without_attachments(text(OWN.members()), {INSTANCE}) == ""
    for unchanged in (text(*others), "", "odd"):
        assert without_attachments(unchanged, {INSTANCE}) == unchanged


def test_an_entry_of_another_program_stands() -> None:
    for more in ({}, {"instance_id": "odd"}, {"attachment": "odd"}):
        other = {"vid": 100, **more}
        for listed in (text(other), text(OWN.members(), other)):
            with pytest.raises(SubportListError, match="VID 100 has an entry of") as caught:
                with_attachments(listed, [ListEntry(7, PORT, attachment=PORT), OWN])
            assert caught.value.fields["vid"] == 100


def test_the_entry_of_an_attachment_that_is_over_is_replaced() -> None:
    old = {"vid": 100, "instance_id": OTHER_INSTANCE, "attachment": OTHER_INSTANCE}
    elsewhere = {"vid": 5, "attachment": INSTANCE}
    for listed in ([old], [old, OWN.members()], [elsewhere], [elsewhere, OWN.members()]):
        changed = with_attachments(text({"vid": 7}, *listed), [OWN])
        assert json.loads(changed) == [{"vid": 7}, OWN.members()]


def test_an_operators_values_for_an_attachment_stay_and_go_with_it() -> None:
    """``dfmeta subport add`` writes them."""
    listed = with_entry(text(OWN.members()), ListEntry(100, instance_id=OTHER_INSTANCE, mtu=1400))
    given = {"vid": 100, "instance_id": OTHER_INSTANCE, "mtu": 1400, "attachment": INSTANCE}
    assert json.loads(listed) == [given]
    changed = with_attachments(listed, [OWN])
    assert json.loads(changed) == [{**given, "port_id": PORT, "mac": MAC}]
    assert without_attachments(changed, {INSTANCE}) == ""
    # A port that was made anew.
    (entry,) = json.loads(
        with_attachments(changed, [ListEntry(100, INSTANCE, attachment=INSTANCE)])
    )
    assert (entry["port_id"], entry["instance_id"]) == (INSTANCE, OTHER_INSTANCE)


def test_all_entries_claim_their_vlan_ids() -> None:
    twice = '{"vid": 9, "vid": 9}'
    listed = json.dumps([OWN.members(), {"vid": 7, "mac": "odd"}, {"vid": "odd"}, 5])
    assert claims(f"{listed[:-1]}, {twice}]") == [
        ListClaim(100, INSTANCE, PORT),
        ListClaim(7, "", ""),
        ListClaim(0, "", ""),
        ListClaim(0, "", ""),
        ListClaim(9, "", ""),
    ]
    assert claims("") == claims("{") == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {"vid": st.integers(-1, 5000) | st.integers(1, 3) | VALUES},
    optional={name: VALUES | st.text() for name in WHOLE if name != "vid"},
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ENTRIES | VALUES, max_size=6))
def test_of_any_list_the_entries_are_valid_and_single(entries: list[Any]) -> None:
    parsed = parse(json.dumps(entries))
    readable = [
        member for member in entries if isinstance(member, dict) and type(member.get("vid")) is int
    ]
    for vid, entry in parsed.entries.items():
        assert (vid, 1 <= vid <= VID_MAX) == (entry.vid, True)
        assert sum(member["vid"] == vid for member in readable) == 1
        # Its members are read as the same entry.
        assert parse(json.dumps([entry.members()])).entries == {vid: entry}
    assert bool(parsed.faults) == (len(parsed.entries) < len(entries))
