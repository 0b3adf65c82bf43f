"""doc/source/metrics.rst should say what the code counts, and this check should notice when not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.conf import limits
from dfmeta.proxy import http1
from tests.docs.label_values import METRICS, Program, sources
from tests.docs.metrics_page import FACTS, QUERIES, faults
from tests.docs.page import sections

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "doc/source/metrics.rst").read_text(encoding="utf-8")
SOURCES = sources()
PROGRAM = Program(SOURCES)
ACCESS = "dfmeta/proxy/access.py"
ANSWERING = "dfmeta/proxy/application.py"


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


def program_with(module: str, text: str) -> Program:
    """The program with *text* behind what a module has."""
    return Program({**SOURCES, module: SOURCES[module] + text})


def test_the_page_says_what_the_code_counts() -> None:
    assert faults(PAGE, PROGRAM) == []


def test_what_is_declared_is_what_prometheus_gets() -> None:
    families = {one.name: (one.type, one.documentation) for one in metrics.REGISTRY.collect()}
    declared = {one.name: (one.kind.lower(), one.help) for one in PROGRAM.metrics.values()}
    assert declared == families


@pytest.mark.parametrize("metric", PROGRAM.metrics.values(), ids=lambda one: one.name)
def test_a_metrics_help_is_a_sentence_at_least(metric: Any) -> None:
    # That is all that /metrics has of it.
    assert len(metric.help.split()) >= 6
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert not metric.help.endswith(".")
    assert metric.help == " ".join(metric.help.split())


# Where the values come from


def test_each_limit_but_the_one_that_ends_idle_connections_is_counted() -> None:
    counted = PROGRAM.values["dfmeta_limits_hit"]["limit"]
    assert counted == {one.name for one in limits.OPTS} - {"keepalive_timeout"}


def test_the_reader_of_requests_has_the_reasons_that_it_says() -> None:
    inside = PROGRAM.arguments_of("dfmeta/proxy/http1.py", "BadRequestError", "reason")
    assert inside == http1.REASONS


# What is noticed


@pytest.mark.parametrize(("title", "paragraph"), [*of_metrics()])
def test_a_paragraph_that_is_missing_is_noticed(title: str, paragraph: str) -> None:
    assert faults(without(title, paragraph), PROGRAM)


@pytest.mark.parametrize("line", sorted({*bullets()}))
def test_a_value_that_is_missing_is_noticed(line: str) -> None:
    assert faults(PAGE.replace(f"{line}\n", "", 1), PROGRAM)


@pytest.mark.parametrize("title", [*QUERIES])
def test_a_query_that_is_missing_is_noticed(title: str) -> None:
    (section,) = [one for one in sections(PAGE) if one.title == title]
    page = PAGE
    for paragraph in section.paragraphs:
        page = page.replace(f"\n{paragraph}\n", "\n", 1)
    assert faults(page, PROGRAM)


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
    assert faults(page, PROGRAM)


@pytest.mark.parametrize(
    ("call", "noticed"),
    [
        ("metrics.REFUSED.labels('whim').inc()", 'reason="whim" is not there'),
        ("metrics.REFUSED.labels(whim()).inc()", "is not known: whim()"),
        ("metrics.REFUSED.labels(request.path).inc()", "is not known: request.path"),
        ("metrics.REFUSED.labels(reason='rate').inc()", "in their order"),
        ("metrics.REQUESTS.labels('2xx').inc()", "in their order"),
        ("metrics.UNKNOWN.labels('rate').inc()", "is not metrics.NAME.labels"),
        ("counter.labels('rate').inc()", "is not metrics.NAME.labels"),
        ("refuse('whim')", 'reason="whim" is not there'),
        ("def f(reason):\n    refuse(reason)", "nobody calls f"),
        ("_LIMITS = {'a': 'b'}\nmetrics.LIMITS.labels(_LIMITS['a'])", None),
    ],
)
def test_a_call_that_is_new_is_noticed(call: str, noticed: str | None) -> None:
    found = faults(PAGE, program_with(ACCESS, f"\n{call}\n"))
    # A name that is bound twice is read where it is bound first: what is there stays as it is.
    assert found == [] if noticed is None else any(noticed in one for one in found), found


@pytest.mark.parametrize(
    ("module", "text", "other", "noticed"),
    [
        (ACCESS, '"header": "header_max"', '"header": "x"', 'limit="header_max" is there, and'),
        (ACCESS, 'labels("silent")', 'labels("mute")', 'reason="mute" is not there'),
        (
            "dfmeta/proxy/application.py",
            'Abandoned("changed")',
            'Abandoned("gone")',
            '"gone" is not',
        ),
        ("dfmeta/proxy/room.py", '"waiting_per_port", tuple', '"w", tuple', 'limit="w" is not'),
        ("dfmeta/ports/resolver.py", '_count(name, "late")', '_count(name, "x")', '="x" is not'),
        ("dfmeta/proxy/nova/backend.py", 'name = "nova"', 'name = "n"', 'backend="n" is not there'),
        ("dfmeta/apps/learner.py", "metrics.HELD_SYNS.set", "print", "HELD_SYNS is declared, and"),
        ("dfmeta/proxy/http1.py", 'reason="header_lines"', 'reason="many"', 'reason="many" is'),
    ],
)
def test_a_value_that_changes_in_the_code_is_noticed(
    module: str, text: str, other: str, noticed: str
) -> None:
    assert text in SOURCES[module]
    program = Program({**SOURCES, module: SOURCES[module].replace(text, other)})
    assert any(noticed in one for one in faults(PAGE, program))


def test_a_metric_that_is_new_is_noticed() -> None:
    new = '\nNEW = Counter("dfmeta_new", "What is new", ["kind"], registry=REGISTRY)\n'
    found = faults(PAGE, program_with(METRICS, new))
    assert "dfmeta_new_total has no section" in found
    assert "NEW is declared, and nothing sets it" in found
