"""Answers of several sources should make one port: order wins, and nothing is mixed up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.model import Port
from dfmeta.ports.sources import (
    FIELDS,
    OVSDB,
    Ownership,
    Question,
    SourceAnswer,
    contradicts,
    instance_of,
    merge,
    name_of,
    open_fields,
    project_of,
)

ROW = Port(name="tap0", row="r", ofport=1, iface_id="i")
values = st.sampled_from(["", "1", "2"])
founds = st.builds(
    Ownership, instance_id=values, project_id=values, instance_name=values, port_project=values
)
answers = st.lists(
    st.builds(
        SourceAnswer,
        source=st.sampled_from(["a", "b", "c"]),
        found=founds,
        unverified=st.booleans(),
    ),
    max_size=5,
)


@given(answers, st.booleans())
def test_each_value_is_the_first_that_is_about_the_same_instance(
    given_answers: list[SourceAnswer], port_project: bool
) -> None:
    port = merge(ROW, given_answers, port_project=port_project)
    known = next((a.found.instance_id for a in given_answers if a.found.instance_id), "")
    expected, first = dict.fromkeys(FIELDS, ""), ""
    for answer in given_answers:
        if first and answer.found.instance_id not in ("", first):
            continue
        first = first or answer.found.instance_id
        for name in FIELDS:
            expected[name] = expected[name] or getattr(answer.found, name)
    assert port.instance_id == known == expected[FIELDS[0]]
    assert port.instance_name == expected[FIELDS[2]]
    if expected["project_id"] or not port_project:
        assert port.project_id == expected["project_id"]
    assert set(port.sources) == {name for name in FIELDS if getattr(port, name)}
    hosts = {a.found.instance_id for a in given_answers if not a.unverified}
    assert port.unverified == (bool(port.instance_id) and port.instance_id not in hosts)
    assert Question(port, 0.0).proven == (bool(port.instance_id) and not port.unverified)


def test_ovsdb_counts_where_it_stands() -> None:
    row = Port(name="t", row="r", ofport=1, instance_id="o", project_id="p")
    libvirt = SourceAnswer("libvirt", Ownership("l", "q"))
    assert merge(row, [SourceAnswer(OVSDB), libvirt]).project_id == "p"
    assert merge(row, [libvirt, SourceAnswer(OVSDB)]).project_id == "q"
    assert merge(row, []).instance_id == ""


def test_a_ports_own_project_is_marked_and_stays_open() -> None:
    given_answers = [SourceAnswer("neutron", Ownership("i", port_project="p"), unverified=True)]
    port = merge(ROW, given_answers, port_project=True)
    assert port.sources["project_id"] == "neutron (port)"
    assert "project_id" in open_fields(port)
    better = merge(
        ROW, [*given_answers, SourceAnswer("libvirt", Ownership("i", "q"))], port_project=True
    )
    assert (better.project_id, better.unverified) == ("q", False)


def test_another_instance_contradicts() -> None:
    port = merge(ROW, [SourceAnswer("a", Ownership("1"))])
    assert contradicts(port, Ownership("2", "p"))
    assert not contradicts(port, Ownership("", "p"))
    assert not contradicts(ROW, Ownership("2"))


def test_what_comes_from_outside_is_cleaned() -> None:
    assert instance_of(" 6A7B1C1E-0D5F-4E0E-8D61-1F5B1F6F3F10 ")[:8] == "6a7b1c1e"
    assert instance_of("dhcp-1") == ""
    assert project_of(" p ") == "p"
    assert project_of("a b") == project_of("a\nb") == project_of("x" * 300) == ""
    assert name_of(" a\x1b[2J\n b ") == "a [2J b"
