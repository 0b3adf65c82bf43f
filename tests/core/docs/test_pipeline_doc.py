"""doc/source/pipeline.rst should say what the code does, and this check should notice when not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dfmeta.flows.pipeline import PURPOSES, TABLES, Purpose, Stage
from tests.core.docs.page import paragraphs, sections
from tests.core.docs.pipeline_page import FACTS, faults, wanted_blocks
from tests.core.docs.printing import cases, unwrapped, wrapped
from tools import draw_pipeline

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/pipeline.rst").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"

RECORDED = {
    "MAC": "fa:16:3e:00:00:05",
    "IP": "10.0.0.5",
    "METER": "65537",
    "SYN_METER": "131073",
    "TAP_MAC": "02:64:66:6d:65:fe",
    "PROXY": "18080",
    "KEY": "128.0.0.1",
}
"""What stands for the placeholders in doc/source/life-of-a-request."""


def in_sections_of_flows() -> Iterator[Any]:
    """Every paragraph and every literal block on a kind of flow, and every table's own."""
    for section in sections(PAGE):
        if section.chapter.startswith("Table "):
            for number, paragraph in enumerate(section.paragraphs):
                yield pytest.param(paragraph, id=f"{section.title}-{number}")


def with_facts() -> Iterator[Any]:
    """Every section that has to name something of the code."""
    for section in sections(PAGE):
        if section.title in FACTS:
            yield pytest.param(section.paragraphs, id=section.title)


def test_the_page_says_what_the_code_does() -> None:
    assert faults(PAGE) == []


@pytest.mark.parametrize("paragraph", [*in_sections_of_flows()])
def test_a_paragraph_that_is_missing_is_noticed(paragraph: str) -> None:
    assert PAGE.count(f"\n{paragraph}\n") >= 1
    assert faults(PAGE.replace(f"\n{paragraph}\n", "\n", 1))


@pytest.mark.parametrize("body", [*with_facts()])
def test_a_section_that_is_emptied_is_noticed(body: tuple[str, ...]) -> None:
    page = PAGE
    for paragraph in body:
        page = page.replace(f"\n{paragraph}\n", "\n", 1)
    assert faults(page)


def test_every_section_that_has_to_name_something_is_there() -> None:
    assert FACTS.keys() <= {section.title for section in sections(PAGE)}


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Priority-200 flows that match ``in_port``", "Priority-250 flows that match ``in_port``"),
        ("to 2, a reply:", "to 2, a reply, and ``tcp_src``:"),
        (", the guest's MAC (``eth_src``)", ""),
        ("table=201, priority=200,arp,", "table=201, priority=200,arp,in_port=TAP,"),
        ("set_field:KEY->ip_src,", ""),
        ("0xd1fe", "0xd1ff"),
        ("     - 50\n", "     - 60\n"),
        ("Table 201: metadata service reply", "Table 202: metadata service reply"),
        ("5 ADDRESS, 6 SERVICE_DROP", "6 ADDRESS, 5 SERVICE_DROP"),
        ("     - 300\n", "     - 400\n"),
    ],
)
def test_a_word_that_is_wrong_is_noticed(text: str, other: str) -> None:
    assert text in PAGE
    assert faults(PAGE.replace(text, other))


def test_a_real_switch_prints_the_flows_of_one_guest_so() -> None:
    # Recorded by tools/life-of-a-request, which tests/host/e2e holds to what happens.
    recorded = (ROOT / "doc/source/life-of-a-request/flows-after.txt").read_text(encoding="utf-8")
    lines = [line for line in recorded.splitlines() if line.startswith("cookie=")]
    for name, value in RECORDED.items():
        lines = [re.sub(rf"(?<![\w.]){re.escape(value)}(?![\w.])", name, one) for one in lines]
    # The numbers of the ports are too short to be found by themselves.
    lines = [re.sub(r"(?<=in_port=)1\b|(?<=output:)1\b", "PORT", one) for one in lines]
    lines = [re.sub(r"(?<=in_port=)2\b|(?<=output:)2\b", "TAP", one) for one in lines]
    # The guest of the recording has one IPv4 address, on a host without IPv6, and no next hop and
    # no VLAN.
    plain = [
        line
        for name, line in wanted_blocks().items()
        if not (name.endswith(("-meter", "-ip", "-next-hop", "-tagged")) or cases()[name].ip6)
    ]
    assert sorted(lines) == sorted(plain)


def test_a_block_of_a_flow_that_is_not_sent_is_noticed() -> None:
    block = ".. code-block:: text\n   :name: flow-old\n\n   table=0 actions=drop\n"
    assert any("flow-old" in fault for fault in faults(f"{PAGE}\n{block}"))


@pytest.mark.parametrize("block", [*cases()])
def test_a_line_is_the_same_after_it_was_broken(block: str) -> None:
    line = wanted_blocks()[block]
    assert unwrapped(wrapped(line)) == line
    assert max(map(len, wrapped(line).splitlines())) <= 92


def test_a_directive_and_what_is_indented_below_it_are_one_paragraph() -> None:
    assert paragraphs("a\nb\n\n.. c::\n\n   d\n\n   e\n\nf\n") == [
        "a\nb",
        ".. c::\n\n   d\n\n   e",
        "f",
    ]


# What tools/draw-pipeline makes


def test_the_picture_and_the_index_are_current(tmp_path: Path) -> None:
    subprocess.run(
        [str(ROOT / "tools/draw-pipeline"), "--output", str(tmp_path)], check=True, timeout=30
    )
    for name in (draw_pipeline.PICTURE, draw_pipeline.INDEX):
        made = (tmp_path / name).read_text(encoding="utf-8")
        there = (ROOT / "doc/source" / name).read_text(encoding="utf-8")
        assert there == made, f"{name} is out of date: run tools/draw-pipeline"


def test_what_is_out_of_date_is_said(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "tools/draw_pipeline.py"), "--output", str(tmp_path)]
    assert subprocess.run([*program, "--check"], check=False, timeout=30).returncode == 1
    subprocess.run(program, check=True, timeout=30)
    assert subprocess.run([*program, "--check"], check=False, timeout=30).returncode == 0


def test_every_purpose_has_words_in_the_index() -> None:
    assert draw_pipeline.descriptions().keys() == set(Purpose) == set(PURPOSES)


@pytest.mark.parametrize("stage", Stage)
def test_the_arrows_are_the_declared_successors(stage: Stage) -> None:
    ways = {
        way
        for purpose in draw_pipeline.in_order(stage)
        for way in draw_pipeline.exits(purpose)
        if isinstance(way, Stage)
    }
    assert ways == TABLES[stage].successors


def test_the_picture_names_every_table_and_purpose() -> None:
    picture = ElementTree.fromstring(draw_pipeline.picture())
    texts = {one.text for one in picture.iter(f"{SVG}text")}
    assert {one.name for one in Purpose} <= texts
    assert {f"Table {draw_pipeline.LAYOUT.number(s)}: {t.name}" for s, t in TABLES.items()} <= texts


def test_no_text_of_the_picture_leaves_its_box() -> None:
    # Reckoned: a letter of 12 pixels is 7 wide, one of 11 pixels 6.5; usual fonts have them less.
    picture = ElementTree.fromstring(draw_pipeline.picture())
    for one in picture.iter(f"{SVG}text"):
        letter = 6.5 if one.get("class") == "soft" else 7.0
        left, width = float(one.attrib["x"]), len(one.text or "") * letter
        if one.get("text-anchor") == "middle":
            left -= width / 2
        edge = draw_pipeline.WIDTH if left > draw_pipeline.BOX_RIGHT else draw_pipeline.BOX_RIGHT
        assert 0 <= left < left + width <= edge, one.text
