"""doc/source/metrics.rst should say what the code counts, and this check should notice when not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dfmeta.conf import limits
from tests.core.docs.declared import Metric, declared
from tests.core.docs.metrics_page import FACTS, QUERIES, faults, unused
from tests.core.docs.page import emptied, sections
from tests.core.docs.sources import sources

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/metrics.rst").read_text(encoding="utf-8")
SOURCES = sources()
DECLARED = declared()


def of_metrics() -> Iterator[Any]:
    """Every paragraph on a metric."""
    for section in sections(PAGE):
        if section.title.startswith("dfmeta_"):
            for number, paragraph in enumerate(section.paragraphs):
                yield pytest.param(section.title, paragraph, id=f"{section.title}-{number}")


def bullets() -> Iterator[str]:
    """Every line that begins a label's value."""
    yield from (line for line in PAGE.splitlines() if line.startswith("* ``"))


def without(title: str, paragraph: str) -> str:
    """The page without one paragraph of one section."""
    start = PAGE.index(f"\n{title}\n")
    return PAGE[:start] + PAGE[start:].replace(f"\n{paragraph}\n", "\n", 1)


def test_the_page_says_what_the_code_counts() -> None:
    assert faults(PAGE, DECLARED) == []


def test_every_metric_and_every_value_of_a_label_is_counted() -> None:
    assert list(unused(DECLARED, SOURCES)) == []


@pytest.mark.parametrize("metric", DECLARED, ids=lambda one: one.name)
def test_a_metrics_help_is_a_sentence_at_least(metric: Any) -> None:
    # That is all that /metrics has of it.
    assert len(metric.help.split()) >= 6
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert not metric.help.endswith(".")
    assert metric.help == " ".join(metric.help.split())


# Where the values come from


def test_each_limit_but_the_one_that_ends_idle_connections_is_counted() -> None:
    (counted,) = [one.values["limit"] for one in DECLARED if one.constant == "LIMITS"]
    assert counted == {one.name for one in limits.OPTS} - {"keepalive_timeout"}


# What is noticed


@pytest.mark.parametrize(("title", "paragraph"), [*of_metrics()])
def test_a_paragraph_that_is_missing_is_noticed(title: str, paragraph: str) -> None:
    assert faults(without(title, paragraph), DECLARED)


@pytest.mark.parametrize("line", sorted({*bullets()}))
def test_a_value_that_is_missing_is_noticed(line: str) -> None:
    assert faults(PAGE.replace(f"{line}\n", "", 1), DECLARED)


@pytest.mark.parametrize("title", [*QUERIES])
def test_a_query_that_is_missing_is_noticed(title: str) -> None:
    assert faults(emptied(PAGE, title), DECLARED)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Counter, by ``status`` and ``backend``.", "Counter, by ``status``."),
        ("Counter, by ``why``.", "Gauge, by ``why``."),
        ('status="2xx"}', 'status="200"}'),
        ('{reason="timeout"}', '{why="timeout"}'),
        ("rate(dfmeta_backend_seconds_bucket", "rate(dfmeta_backend_seconds_total"),
        ("dfmeta_requests_total\n---------------------\n", "dfmeta_requests\n---------------\n"),
        ('* ``command="add"``', '* ``command="put"``'),
        ('* ``command="delete"``', "* ``command=delete``"),
        ("127.0.0.1:9697", "127.0.0.1:9696"),
        *((fact, "") for facts in FACTS.values() for fact in facts),
    ],
)
def test_a_word_that_is_wrong_is_noticed(text: str, other: str) -> None:
    # A line may end within it.
    page, count = re.subn(re.escape(text).replace(r"\ ", r"\s+"), other, PAGE)
    assert count
    assert faults(page, DECLARED)


def test_a_value_that_is_new_is_noticed() -> None:
    (known,) = [one for one in DECLARED if one.constant == "REFUSED"]
    values = {"reason": known.values["reason"] | {"whim"}}
    new = [*DECLARED, replace(known, values=values)]
    name = "dfmeta_refused_requests_total"
    assert f'{name}: reason="whim" is not there' in faults(PAGE, new)
    assert list(unused(new, SOURCES)) == [f'{name}: reason="whim" is declared, and never counted']


def test_a_value_that_has_gone_is_noticed() -> None:
    (known,) = [one for one in DECLARED if one.constant == "REFUSED"]
    values = {"reason": known.values["reason"] - {"rate"}}
    faulty = faults(PAGE, [replace(known, values=values)])
    assert 'dfmeta_refused_requests_total: reason="rate" is there, and never comes' in faulty


def test_a_metric_that_is_new_is_noticed() -> None:
    new = Metric("NEW", "dfmeta_new", "Counter", "A metric that is new", {})
    assert faults(PAGE, [*DECLARED, new]) == ["dfmeta_new_total has no section"]
    assert list(unused([*DECLARED, new], SOURCES)) == ["NEW is declared, and no module sets it"]
