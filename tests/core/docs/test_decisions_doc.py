"""Each decision of doc/source/decisions.rst should have its four parts, and figures that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dfmeta.conf import agent, rate
from dfmeta.flows.key import SLOTS, VID_MAX
from dfmeta.flows.pipeline import Layout
from dfmeta.model import TAP_VLAN

SOURCE = Path(__file__).parents[3] / "doc/source"
PAGE = (SOURCE / "decisions.rst").read_text(encoding="utf-8")
PARTS = ("Decided", "Instead of", "Because", "Otherwise if")
_PIECES = re.split(r"^(\S.*)\n-+\n", PAGE, flags=re.MULTILINE)
DECISIONS = dict(zip(_PIECES[1::2], _PIECES[2::2], strict=True))
OPTIONS = {one.name: one.default for one in (*agent.OPTS, *rate.OPTS)}


@pytest.mark.parametrize("title", DECISIONS)
def test_a_decision_has_its_parts_in_their_order(title: str) -> None:
    parts = re.findall(r"^:([\w ]+): \S", DECISIONS[title], re.MULTILINE)
    assert tuple(parts) == PARTS


def test_every_heading_is_read() -> None:
    assert len(DECISIONS) == len(re.findall(r"^-+$", PAGE, re.MULTILINE)) > 15


@pytest.mark.parametrize(
    ("figure", "page"),
    [
        ("4,432", "performance-memory.inc"),
        ("117", "performance-memory.inc"),
        ("39.3", "performance-syn.inc"),
        ("13.2", "performance-syn.inc"),
        ("3.15", "performance-syn.inc"),
        ("5.91", "performance-syn.inc"),
        ("4.37", "performance-targets.inc"),
        ("45.1", "scale.rst"),
        ("14.0", "scale.rst"),
        ("75,011", "scale.rst"),
    ],
)
def test_a_figure_is_the_one_that_was_measured(figure: str, page: str) -> None:
    assert f"- {figure}\n" in (SOURCE / page).read_text(encoding="utf-8")
    rounded = figure if figure in PAGE else f"{float(figure):.0f}"
    assert rounded in PAGE or f"{float(figure):.1f}" in PAGE


def test_numbers_and_defaults_are_the_codes() -> None:
    assert (len(SLOTS), VID_MAX.bit_length()) == (7, 12)
    assert f"from {Layout().table_base} up" in PAGE
    (inner,) = TAP_VLAN.cvlans
    assert f"``tag={TAP_VLAN.tag} vlan_mode={TAP_VLAN.vlan_mode} cvlans={inner}``" in PAGE
    assert f"``backend = {OPTIONS['backend']}``" in PAGE
    assert f"``timeout_answer = {OPTIONS['timeout_answer']}``" in PAGE
    assert f"``hold_timeout``, {OPTIONS['hold_timeout']} seconds" in PAGE
    rates = (OPTIONS["base_query_rate_limit"], OPTIONS["base_window_duration"])
    assert "the default is {} in {} seconds".format(*rates) in PAGE
