"""Pages, the dashboard and the alerts should have what the code counts, and every trouble."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import promql_parser
import yaml

from dfmeta.admin.listener import ProcessMetrics
from dfmeta.admin.troubles import TROUBLES
from dfmeta.conf import limits
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import PortState
from tests.core.docs.sources import ROOT, sources
from tools.declared import Metric, declared

DASHBOARD = json.loads((ROOT / "etc/grafana/dfmeta.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "etc/prometheus/dfmeta-alerts.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "doc/source/metrics.rst").read_text(encoding="utf-8")
DECLARED = declared()
OF_PROCESS = {
    sample.name: Metric("", sample.name, "", "", dict.fromkeys(sample.labels, frozenset()), "")
    for family in ProcessMetrics(registry=None).collect()
    for sample in family.samples
}
SERIES = OF_PROCESS | {name: metric for metric in DECLARED for name in metric.series}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_THE_SCRAPE = {"instance", "job"}
"""Labels that Prometheus itself puts on."""
OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def nodes(expression: str) -> list[Any]:
    """All nodes of an expression's tree, with Grafana's intervals as five minutes."""
    tree = promql_parser.parse(re.sub(r"\$__(?:rate_interval|range|interval)", "5m", expression))
    return [*_nodes(tree)]


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "param", "args", "lhs", "rhs", "vector_selector"):
        child = getattr(node, name, None)
        for grandchild in child if isinstance(child, list) else [child]:
            if grandchild is not None and not isinstance(grandchild, str | float):
                yield from _nodes(grandchild)


def is_a(node: Any, kind: str) -> bool:
    return type(node).__name__ == kind


def matchers(selector: Any) -> list[tuple[str, str, str]]:
    """Label, operator and value of each condition, the series' name first."""
    return [("__name__", "=", selector.name)] + [
        (matcher.name, OPERATORS[str(matcher.op).partition(".")[2]], matcher.value)
        for matcher in selector.matchers.matchers
    ]


def selectors(expression: str) -> list[Any]:
    """Each series that an expression asks for."""
    return [node for node in nodes(expression) if is_a(node, "VectorSelector")]


def takes(selector: Any, label: str, value: str) -> bool:
    """Whether what has that label is among what a selector asks for."""
    return all(
        (bool(re.fullmatch(wanted, value)) if "~" in how else value == wanted)
        is not how.startswith("!")
        for name, how, wanted in matchers(selector)
        if name == label
    )


def faults(expression: str) -> Iterator[str]:
    """What of it dfmeta does not have, and counters whose level is looked at."""
    tree, allowed, rated = nodes(expression), set(OF_THE_SCRAPE), []
    for node in tree:
        if is_a(node, "MatrixSelector"):
            rated.append(matchers(node.vector_selector))
        # A series held against itself of some time before shows that it is new.
        if str(getattr(node, "op", "")) == "unless" and getattr(node.rhs, "offset", None):
            rated.append(matchers(node.lhs))
    for selector in selectors(expression):
        if selector.name not in SERIES:
            yield f"there is no series {selector.name}"
            continue
        values = SERIES[selector.name].values
        allowed |= {*values, "le"}
        for label, how, wanted in matchers(selector)[1:]:
            for value in wanted.split("|") if "~" in how else [wanted]:
                if label not in OF_THE_SCRAPE and value not in values.get(label, ()):
                    yield f'{selector.name} has no {label}="{value}"'
        if selector.name.endswith(("_total", "_bucket")) and matchers(selector) not in rated:
            yield f"the level of {selector.name} is looked at"
    for node in tree:
        by = getattr(node, "modifier", None)
        labels = by if hasattr(by, "labels") else getattr(by, "matching", None)
        for label in getattr(labels, "labels", None) or ():
            if label not in allowed:
                yield f"no series has a label {label}"


def test_each_panel_shows_figures_that_exist() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert panel["description"], title
        assert defaults["unit"], title
        assert defaults["thresholds"]["steps"][0]["value"] is None, title
        assert panel["datasource"] == DATASOURCE, title
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0, title
        for target in panel["targets"]:
            assert target["datasource"] == DATASOURCE, title
            assert list(faults(target["expr"])) == [], title
            for selector in selectors(target["expr"]):
                assert ("instance", "=~", "$instance") in matchers(selector), title
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= set(re.findall(r"\w+", target["expr"])) | {"instance"}, title


def troubles() -> Iterable[tuple[str, str, str]]:
    """Metric, label and value of each trouble that the page of metrics names."""
    for trouble in TROUBLES:
        yield from ((trouble.name, *condition) for condition in trouble.labels.items())
    for metric in DECLARED:
        for label, values in metric.values.items():
            for value in sorted(values & set(re.findall(r"``([^`]+)``", metric.remedy))):
                yield metric.shown, label, value


def test_every_figure_and_all_that_means_trouble_is_on_the_dashboard() -> None:
    wanted: dict[str, list[Any]] = {}
    for panel in PANELS:
        for target in panel["targets"]:
            for selector in selectors(target["expr"]):
                name = re.sub(r"_(?:bucket|sum|count)$", "", selector.name)
                wanted.setdefault(name, []).append(selector)
    assert [metric.shown for metric in DECLARED if metric.shown not in wanted] == []
    for name, label, value in troubles():
        assert any(takes(selector, label, value) for selector in wanted[name]), (name, label, value)


def test_the_dashboard_can_be_imported_as_it_is() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["instance"]["datasource"] == DATASOURCE
    listed = variables["instance"]["query"]["query"]
    (name,) = re.findall(r"label_values\((\w+), instance\)", listed)
    assert list(faults(name)) == []
    # What Grafana asks for at an import, and what only one of them has, is not there.
    assert "__inputs" not in DASHBOARD
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 39
    named = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD)))
    assert named <= {*variables, "__rate_interval", "__range", "__all"}


def test_each_alert_asks_for_figures_that_exist_and_names_labels_that_it_keeps() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 0
    for rule in RULES:
        name = rule["alert"]
        assert list(faults(rule["expr"])) == [], name
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert set(rule["annotations"]) == {"summary", "description"}, name
        text = " ".join(rule["annotations"].values())
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        kept = set(re.findall(r"\w+", grouped[-1])) if grouped else {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= kept, name
        assert "{{" not in re.sub(r"{{ \$(?:labels\.\w+|value) }}", "", text), name


def test_each_query_of_the_page_asks_for_figures_that_exist() -> None:
    blocks = re.findall(r"::\n\n((?: {4}.*\n)+)", PAGE)
    queries = [query for block in blocks for query in re.split(r"\n(?! {6})", block.rstrip("\n"))]
    assert len(queries) > 5
    assert [(query, *faults(query)) for query in queries] == [(query,) for query in queries]


def test_each_series_and_value_that_a_page_names_exists() -> None:
    series = SERIES | {metric.shown: metric for metric in DECLARED}
    runbook = (ROOT / "doc/source/runbook.rst").read_text(encoding="utf-8")
    for page in (runbook, " ".join(metric.remedy for metric in DECLARED)):
        named = set(re.findall(r"\b(dfmeta_(?!agent)\w+)(?:\{([^}]*)\})?", page))
        assert named
        for metric, conditions in named:
            assert metric in series
            for label, value in re.findall(r'(\w+)!?="([^"]*)"', conditions):
                assert value in series[metric].values.get(label, ()), metric


def unused(metrics: Sequence[Metric], texts: Mapping[str, str]) -> Iterator[str]:
    """Metrics that no module sets, and values that none of them can count.

    :param texts: module's path → its text.
    """
    code = "".join(text for module, text in texts.items() if module != "dfmeta/metrics.py")
    # Members of an Enum are counted by a loop.
    used = {*re.findall(r'"(\w+)"', code), *PortState, *Purpose.__members__}
    constants = {*re.findall(r"\bmetrics\.(?=(\w+))", code)}
    for metric in metrics:
        if metric.constant not in constants:
            yield f"{metric.constant} is declared, and no module sets it"
        for label, values in metric.values.items():
            for value in sorted(values - used):
                yield f'{metric.shown}: {label}="{value}" is declared, and never counted'


def test_every_metric_and_every_value_of_a_label_is_counted() -> None:
    assert list(unused(DECLARED, sources())) == []


def test_each_limit_but_the_one_that_ends_idle_connections_is_counted() -> None:
    (counted,) = [metric.values["limit"] for metric in DECLARED if metric.constant == "LIMITS"]
    assert counted == {option.name for option in limits.OPTS} - {"keepalive_timeout"}
