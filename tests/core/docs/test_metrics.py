"""The pages should name the metrics that the code counts, with their labels and values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dfmeta.conf import limits
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import PortState
from tests.core.docs.declared import Metric, declared
from tests.core.docs.page import sections
from tests.core.docs.sources import ROOT, sources

SOURCE = ROOT / "doc/source"
PAGE = (SOURCE / "metrics.rst").read_text(encoding="utf-8")
DECLARED = declared()


def test_page_has_each_metric_with_its_kind_its_labels_and_their_values() -> None:
    found = {one.title: one for one in sections(PAGE) if one.title.startswith("dfmeta_")}
    assert found.keys() == {one.shown for one in DECLARED}
    for metric in DECLARED:
        body = "\n\n".join(found[metric.shown].paragraphs)
        by = " and ".join(f"``{label}``" for label in metric.values)
        assert body.startswith(f"{metric.kind}, by {by}." if by else f"{metric.kind}."), metric
        listed = re.findall(r'^\* ``(\w+)="([^"]+)"``: \S', body, re.MULTILINE)
        values = [(label, one) for label, ones in metric.values.items() for one in ones]
        assert sorted(listed) == sorted(values), metric


def test_each_series_and_value_that_a_page_names_exists() -> None:
    series = {name: one for one in DECLARED for name in {one.shown} | one.series}
    for name in ("metrics", "runbook"):
        page = (SOURCE / f"{name}.rst").read_text(encoding="utf-8")
        named = set(re.findall(r"\b(dfmeta_(?!agent)\w+)(?:\{([^}]*)\})?", page))
        assert named
        for metric, conditions in named:
            assert metric in series, name
            for label, value in re.findall(r'(\w+)!?="([^"]*)"', conditions):
                assert value in series[metric].values.get(label, ()), (name, metric)


def unused(metrics: Sequence[Metric], texts: Mapping[str, str]) -> Iterator[str]:
    """Metrics that no module sets, and values that none of them can count.

    :param texts: module's path → its text.
    """
    code = "".join(text for module, text in texts.items() if module != "dfmeta/metrics.py")
    # Members of an Enum are counted by a loop.
    used = {*re.findall(r'"(\w+)"', code), *PortState, *Purpose.__members__}
    constants = {*re.findall(r"\bmetrics\.(?=(\w+))", code)}
    for one in metrics:
        if one.constant not in constants:
            yield f"{one.constant} is declared, and no module sets it"
        for label, values in one.values.items():
            for value in sorted(values - used):
                yield f'{one.shown}: {label}="{value}" is declared, and never counted'


def test_every_metric_and_every_value_of_a_label_is_counted() -> None:
    assert list(unused(DECLARED, sources())) == []


def test_each_limit_but_the_one_that_ends_idle_connections_is_counted() -> None:
    (counted,) = [one.values["limit"] for one in DECLARED if one.constant == "LIMITS"]
    assert counted == {one.name for one in limits.OPTS} - {"keepalive_timeout"}
