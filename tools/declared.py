"""The metrics of dfmeta/metrics.py with the values that each label can have.

The values are those of the types which mypy checks each ``labels(...)`` with.
"""

import ast
import enum
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from prometheus_client.metrics import MetricWrapperBase

from dfmeta import metrics
from dfmeta.model import PortState


@dataclass(frozen=True)
class Metric:
    """A metric as metrics.py declares it."""

    constant: str
    name: str
    """Without the suffix that Prometheus sees."""
    kind: str
    help: str
    values: Mapping[str, frozenset[str]]
    """Label → its values, in the order of the labels."""
    remedy: str
    """What to do when it moves, as reStructuredText on one line; empty if there is nothing."""

    @property
    def shown(self) -> str:
        """As Prometheus has it; of a histogram, what its series begin with."""
        return f"{self.name}_total" if self.kind == "Counter" else self.name

    @property
    def series(self) -> set[str]:
        """Names of its series."""
        if self.kind == "Histogram":
            return {f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
        return {self.shown}


def declared() -> list[Metric]:
    """All metrics, in their order.

    :raises TypeError: the values of a label are of no closed set.
    """
    hints = get_type_hints(metrics, include_extras=True)
    remedies = docstrings(ast.parse(inspect.getsource(metrics)).body)
    return [
        _metric(constant, metric, get_args(hints.get(constant))[1:], remedies.get(constant, ""))
        for constant, metric in vars(metrics).items()
        if isinstance(metric, MetricWrapperBase)
    ]


def states() -> dict[str, str]:
    """Each state of a port, with its docstring on one line."""
    (body,) = ast.parse(inspect.getsource(PortState)).body
    assert isinstance(body, ast.ClassDef)
    described = docstrings(body.body)
    return {str(state): described[state.name] for state in PortState}


def docstrings(body: list[ast.stmt]) -> dict[str, str]:
    """Each constant that has a docstring after it, with it on one line."""
    return dict(_docstrings(body))


def _docstrings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in pairwise(body):
        match before, after:
            case (
                ast.Assign(targets=[ast.Name(constant)]) | ast.AnnAssign(target=ast.Name(constant)),
                ast.Expr(ast.Constant(str(text))),
            ):
                yield constant, " ".join(text.split())


def _metric(
    constant: str, metric: MetricWrapperBase, hints: tuple[Any, ...], remedy: str
) -> Metric:
    (family,) = metric.describe()
    labels = zip(metric._labelnames, hints, strict=True)
    values = {label: frozenset(_values(hint)) for label, hint in labels}
    return Metric(
        constant, family.name, family.type.capitalize(), family.documentation, values, remedy
    )


def _values(hint: Any) -> Iterator[str]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from args
    elif origin in (Union, types.UnionType):
        for part in args:
            yield from _values(part)
    elif origin is Annotated:
        # metrics.py stands below flows and does not import it.
        yield from resolve_name(args[1].removeprefix("the names of ")).__members__
    elif isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        yield from map(str, hint)
    else:
        raise TypeError(f"{hint} is no closed set")
