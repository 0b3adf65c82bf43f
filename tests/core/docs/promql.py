"""Which series and labels PromQL asks for, and whether dfmeta has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser

from tests.core.docs.declared import Metric

OF_THE_SCRAPE = frozenset({"instance", "job"})
"""Labels that Prometheus itself puts on."""
_INTERVALS = re.compile(r"\$__(?:rate_interval|range|interval)")
_CHILDREN = ("expr", "param", "args", "lhs", "rhs", "vector_selector")


@dataclass(frozen=True)
class Asked:
    """One series that an expression asks for."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator and value."""

    def takes(self, label: str, value: str) -> bool:
        """Whether what has that label is among it."""
        mine = [(operator, wanted) for there, operator, wanted in self.matchers if there == label]
        return all(_matches(value, operator, wanted) for operator, wanted in mine)


def parse(expression: str) -> Any:
    """The tree of an expression, with Grafana's intervals as five minutes.

    :raises ValueError: it is no PromQL.
    """
    return promql_parser.parse(_INTERVALS.sub("5m", expression))


def asked(expression: str) -> list[Asked]:
    """Everything that an expression asks for."""
    return [_asked(node) for node in _nodes(parse(expression)) if _is(node, "VectorSelector")]


def ranged(expression: str) -> list[Asked]:
    """What of it is asked for over a time."""
    nodes = [node for node in _nodes(parse(expression)) if _is(node, "MatrixSelector")]
    return [_asked(node.vector_selector) for node in nodes]


def compared(expression: str) -> list[Asked]:
    """What of it is held against itself of some time before, and so shows a series that is new."""
    pairs = [node for node in _nodes(parse(expression)) if str(getattr(node, "op", "")) == "unless"]
    return [
        _asked(one.lhs)
        for one in pairs
        if _is(one.lhs, "VectorSelector") and getattr(one.rhs, "offset", None)
    ]


def faults(expression: str, metrics: Iterable[Metric]) -> Iterator[str]:
    """What of it dfmeta does not have, in sentences."""
    series: Mapping[str, Metric] = {name: one for one in metrics for name in one.series}
    tree = parse(expression)
    known: set[str] = set(OF_THE_SCRAPE)
    for one in asked(expression):
        if one.name not in series:
            yield f"there is no series {one.name}"
            continue
        metric = series[one.name]
        known |= {*metric.values, *(["le"] if one.name.endswith("_bucket") else [])}
        for label, operator, wanted in one.matchers:
            if label in OF_THE_SCRAPE:
                continue
            if label not in metric.values:
                yield f"{one.name} has no label {label}"
                continue
            values = metric.values[label]
            alternatives = wanted.split("|") if "~" in operator else [wanted]
            for value in alternatives:
                if value not in values:
                    yield f'{one.name} has no {label}="{value}"'
    for label in _grouped(tree):
        if label not in known:
            yield f"nothing that is asked for has a label {label}"


def _asked(node: Any) -> Asked:
    found = [(one.name, _OPERATORS[str(one.op)], one.value) for one in node.matchers.matchers]
    return Asked(node.name, tuple(found))


_OPERATORS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}


def _matches(value: str, operator: str, wanted: str) -> bool:
    found = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
    return found is not operator.startswith("!")


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in _CHILDREN:
        child = getattr(node, name, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None and not isinstance(one, str | float):
                yield from _nodes(one)


def _grouped(tree: Any) -> Iterator[str]:
    """Labels of ``by``, ``without``, ``on`` and ``ignoring``."""
    for node in _nodes(tree):
        modifier = getattr(node, "modifier", None)
        if modifier is None:
            continue
        labels = modifier if hasattr(modifier, "labels") else getattr(modifier, "matching", None)
        yield from getattr(labels, "labels", None) or ()


def _is(node: Any, kind: str) -> bool:
    return type(node).__name__ == kind
