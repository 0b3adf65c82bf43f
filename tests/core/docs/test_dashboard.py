"""The dashboard and the alerts should ask for what the code counts, and leave no trouble out."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.core.docs.declared import declared
from tests.core.docs.page import sections
from tests.core.docs.promql import Asked, asked, compared, faults, ranged

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "etc/grafana/dfmeta.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "etc/prometheus/dfmeta-alerts.yaml").read_text(encoding="utf-8"))
METRICS = sections((ROOT / "doc/source/metrics.rst").read_text(encoding="utf-8"))
DECLARED = declared()
PANELS = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    """All that panels ask for."""
    return [target["expr"] for one in panels for target in one["targets"]]


def unshown(exprs: list[str]) -> list[str]:
    """Metrics that no expression asks for, and values that the page on metrics says mean trouble
    and that none of those takes."""
    wanted: dict[str, list[Asked]] = {}
    for one in itertools.chain.from_iterable(map(asked, exprs)):
        wanted.setdefault(re.sub(r"_(?:bucket|sum|count)$", "", one.name), []).append(one)
    found = [one.shown for one in DECLARED if one.shown not in wanted]
    for name, label, value in troubles():
        if not any(one.takes(label, value) for one in wanted.get(name, ())):
            found.append(f'{name}: {label}="{value}"')
    return found


def troubles() -> Iterator[tuple[str, str, str]]:
    """Metric, label and value of what the page on metrics says to look into when it grows."""
    known = {one.shown: one.values for one in DECLARED}
    for section in METRICS:
        for paragraph in section.paragraphs:
            if section.title in known and paragraph.startswith("When "):
                for label, values in known[section.title].items():
                    for value in sorted(values & set(re.findall(r"``([^`]+)``", paragraph))):
                        yield section.title, label, value


@pytest.mark.parametrize("panel", PANELS, ids=lambda one: one["title"])
def test_a_panel_says_what_it_shows_of_figures_that_there_are(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
    assert panel["datasource"] == DATASOURCE
    references = [one["refId"] for one in panel["targets"]]
    assert len(references) == len(set(references)) > 0
    for target in panel["targets"]:
        assert target["datasource"] == DATASOURCE
        assert list(faults(target["expr"], DECLARED)) == []
        assert list(unrated(target["expr"])) == []
        for one in asked(target["expr"]):
            assert ("instance", "=~", "$instance") in one.matchers
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert legend <= set(re.findall(r"\w+", target["expr"])) | {"instance"}


def unrated(expression: str) -> Iterator[str]:
    """Counters and buckets whose level is looked at, which says nothing."""
    inside = [*ranged(expression), *compared(expression)]
    for one in asked(expression):
        if one.name.endswith(("_total", "_bucket")) and one not in inside:
            yield one.name


def test_panels_have_ids_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({one["id"] for one in panels}) == len(panels)


def test_every_figure_and_all_that_means_trouble_is_on_the_dashboard() -> None:
    assert unshown(expressions(PANELS)) == []


def test_the_dashboard_can_be_imported_as_it_is() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["instance"]["datasource"] == DATASOURCE
    listed = variables["instance"]["query"]["query"]
    (name,) = re.findall(r"label_values\((\w+), instance\)", listed)
    assert list(faults(name, DECLARED)) == []
    # What Grafana asks for at an import, and what only one of them has, is not there.
    assert "__inputs" not in DASHBOARD
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 39
    text = json.dumps({**DASHBOARD, "panels": copy.deepcopy(DASHBOARD["panels"])})
    named = set(re.findall(r"\$\{?(\w+)\}?", text))
    assert named <= {*variables, "__rate_interval", "__range", "__all"}


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert list(faults(rule["expr"], DECLARED)) == []
    assert list(unrated(rule["expr"])) == []
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["annotations"]["description"].endswith(".")
    text = " ".join(rule["annotations"].values())
    for label in re.findall(r"\$labels\.(\w+)", text):
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        kept = set(re.findall(r"\w+", grouped[-1])) if grouped else {"instance"}
        assert label in kept
    assert "{{" not in re.sub(r"{{ \$(?:labels\.\w+|value) }}", "", text)


def test_alerts_have_names_of_their_own() -> None:
    names = [one["alert"] for one in RULES]
    assert len(set(names)) == len(names) > 0
    assert all(name.startswith("Dfmeta") for name in names)
