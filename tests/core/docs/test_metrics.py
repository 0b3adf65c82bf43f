"""doc/source/metrics.rst should say what the code counts, and this check should notice when not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dfmeta.conf import limits
from tests.core.docs.declared import Metric, declared
from tests.core.docs.metrics_page import faults, unused
from tests.core.docs.sources import sources

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/metrics.rst").read_text(encoding="utf-8")
SOURCES = sources()
DECLARED = declared()


def test_the_page_says_what_the_code_counts() -> None:
    assert faults(PAGE, DECLARED) == []


def test_every_metric_and_every_value_of_a_label_is_counted() -> None:
    assert list(unused(DECLARED, SOURCES)) == []


def test_help_of_each_metric_is_a_sentence() -> None:
    for metric in DECLARED:
        assert len(metric.help.split()) >= 6, metric.name
        assert metric.help[0].isupper() or metric.help[0].isdigit(), metric.name
        assert metric.help == " ".join(metric.help.split()).rstrip("."), metric.name


def test_each_limit_but_the_one_that_ends_idle_connections_is_counted() -> None:
    (counted,) = [one.values["limit"] for one in DECLARED if one.constant == "LIMITS"]
    assert counted == {one.name for one in limits.OPTS} - {"keepalive_timeout"}


def test_differences_are_reported() -> None:
    for text, other in (
        ("Counter, by ``status`` and ``backend``.", "Counter, by ``status``."),
        ('{reason="timeout"}', '{why="timeout"}'),
        ("rate(dfmeta_backend_seconds_bucket", "rate(dfmeta_backend_seconds_total"),
        ('* ``command="delete"``', "* ``command=delete``"),
        ("127.0.0.1:9697", "127.0.0.1:9696"),
    ):
        assert text in PAGE
        assert faults(PAGE.replace(text, other), DECLARED), text


def test_new_metric_and_new_value_are_reported() -> None:
    (refused,) = [one for one in DECLARED if one.constant == "REFUSED"]
    values = {"reason": refused.values["reason"] | {"whim"}}
    new = [*DECLARED, replace(refused, values=values), Metric("NEW", "dfmeta_new", "Gauge", "", {})]
    assert {"dfmeta_new has no section"} < set(faults(PAGE, new))
    assert 'dfmeta_refused_requests_total: reason="whim" is not there' in faults(PAGE, new)
    assert "NEW is declared, and no module sets it" in list(unused(new, SOURCES))
