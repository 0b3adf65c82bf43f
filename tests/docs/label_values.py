"""Which values each label of each metric can have, read from the code that counts.

:class:`Program` takes sources as texts, so that a test can hand it code with a call more. What it
cannot follow is a fault, never a guess: a new kind of call has to be taught here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dfmeta.apps import drops
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import PortState

ROOT = Path(__file__).parents[2]
METRICS = "dfmeta/metrics.py"
KINDS = ("Counter", "Gauge", "Histogram")


class UnresolvedError(Exception):
    """An expression whose values cannot be told."""


@dataclass(frozen=True)
class Metric:
    """A metric as metrics.py declares it."""

    constant: str
    name: str
    """Without the suffix that Prometheus sees."""
    kind: str
    help: str
    labels: tuple[str, ...]

    @property
    def shown(self) -> str:
        """As Prometheus has it; of a histogram, what its series begin with."""
        return f"{self.name}_total" if self.kind == "Counter" else self.name

    @property
    def series(self) -> set[str]:
        """Names of its series."""
        if self.kind == "Histogram":
            return {f"{self.name}_{one}" for one in ("bucket", "sum", "count")}
        return {self.shown}


@dataclass(frozen=True)
class _Place:
    """Where an expression stands."""

    module: str
    function: ast.FunctionDef | None
    is_method: bool = False


def sources() -> dict[str, str]:
    """Every module of dfmeta: path from the root → text."""
    paths = sorted((ROOT / "dfmeta").rglob("*.py"))
    return {str(one.relative_to(ROOT)): one.read_text(encoding="utf-8") for one in paths}


class Program:
    """dfmeta's code, as far as its metrics go."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._trees = {module: parsed(text) for module, text in texts.items()}
        self._calls_of: dict[str, list[tuple[_Place, ast.Call]]] = {}
        self.metrics = {one.constant: one for one in self._declared()}
        self.faults: list[str] = []
        self.values: dict[str, dict[str, set[str]]] = {
            one.name: {label: set() for label in one.labels} for one in self.metrics.values()
        }
        """Metric → label → what it can be."""
        self.used: set[str] = set()
        """Metrics that something is done with."""
        nodes = [one for module, text in texts.items() for one in _nodes(module, text)]
        for place, node in nodes:
            match node:
                case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)):
                    self._calls_of.setdefault(name, []).append((place, node))
        for place, node in nodes:
            self._look(place, node)

    # Reading

    def _declared(self) -> Iterator[Metric]:
        for node in self._trees[METRICS].body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(constant)], value=ast.Call(func=ast.Name(kind), args=args)
                ) if kind in KINDS:
                    name, said, *labels = map(ast.literal_eval, args)
                    yield Metric(constant, name, kind, said, tuple(labels[0]) if labels else ())

    def _look(self, place: _Place, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and place.module != METRICS:
            match node.value:
                case ast.Name("metrics") if node.attr in self.metrics:
                    self.used.add(self.metrics[node.attr].name)
        match node:
            case ast.Call(func=ast.Attribute(value=metric, attr="labels")):
                self._label(place, node, metric)

    def _label(self, place: _Place, call: ast.Call, metric: ast.expr) -> None:
        where = f"{place.module}:{call.lineno}: {ast.unparse(call)}"
        match metric:
            case ast.Attribute(value=ast.Name("metrics"), attr=constant) if (
                constant in self.metrics
            ):
                declared = self.metrics[constant]
            case _:
                self.faults.append(f"{where} is not metrics.NAME.labels(...)")
                return
        if call.keywords or len(call.args) != len(declared.labels):
            self.faults.append(f"{where} does not give {declared.labels} in their order")
            return
        for label, argument in zip(declared.labels, call.args, strict=True):
            try:
                self.values[declared.name][label] |= self._resolve(argument, place)
            except (UnresolvedError, RecursionError) as error:
                self.faults.append(f"{where}: what {label} can be is not known: {error}")

    # Following

    def _resolve(self, node: ast.expr, place: _Place) -> set[str]:
        known = self._known(node, place)
        if known is not None:
            return known
        match node:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.IfExp(body=body, orelse=orelse):
                return self._resolve(body, place) | self._resolve(orelse, place)
            case ast.Call(func=ast.Name("str"), args=[one]):
                return self._resolve(one, place)
            case ast.Subscript(value=ast.Name(name)):
                return self._mapping(name, place)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(name), attr="get"), args=[_key, default]
            ):
                return self._mapping(name, place) | self._resolve(default, place)
            case ast.Name(name):
                return self._variable(name, place)
        raise UnresolvedError(ast.unparse(node))

    def _known(self, node: ast.expr, place: _Place) -> set[str] | None:
        function = place.function.name if place.function else ""
        text = ast.unparse(node)
        for key in ((place.module, function, text), (place.module, "", text)):
            if key in KNOWN:
                return KNOWN[key](self)
        return None

    def _mapping(self, name: str, place: _Place) -> set[str]:
        value = self._constant(name, place.module)
        if not isinstance(value, ast.Dict):
            raise UnresolvedError(f"{name} is no mapping of {place.module}")
        return set().union(
            *(self._resolve(one, _Place(place.module, None)) for one in value.values)
        )

    def _constant(self, name: str, module: str) -> ast.expr | None:
        for node in self._trees[module].body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(there)], value=value)
                    | ast.AnnAssign(target=ast.Name(there), value=value)
                ) if there == name:
                    return value
        return None

    def _variable(self, name: str, place: _Place) -> set[str]:
        if place.function is not None:
            names = [one.arg for one in place.function.args.args]
            if name in names:
                return self._arguments(place, names.index(name), name)
            assigned = list(_assigned(name, place.function))
            if assigned:
                return set().union(*(self._resolve(one, place) for one in assigned))
        value = self._constant(name, place.module)
        if value is None:
            raise UnresolvedError(name)
        return self._resolve(value, _Place(place.module, None))

    def _arguments(self, place: _Place, position: int, name: str) -> set[str]:
        """What callers give for a parameter. A private function's are in its own module."""
        assert place.function is not None
        called = place.function.name
        found: set[str] = set()
        for caller, node in self._calls_of.get(called, ()):
            if not self._is_to(node, place, caller):
                continue
            given = {one.arg: one.value for one in node.keywords}
            index = position - place.is_method
            if name not in given and index >= len(node.args):
                raise UnresolvedError(f"{caller.module}:{node.lineno} does not give {name}")
            found |= self._resolve(given.get(name) or node.args[index], caller)
        if not found:
            raise UnresolvedError(f"nobody calls {called}")
        return found

    @staticmethod
    def _is_to(node: ast.Call, place: _Place, caller: _Place) -> bool:
        """Whether a call by that name is one of the function at *place*."""
        here = caller.module == place.module
        match node.func:
            case ast.Name():
                return here and not place.is_method
            case ast.Attribute(value=ast.Name("self")):
                return here and place.is_method
            case ast.Attribute(value=ast.Name(base)):
                return not place.is_method and base == Path(place.module).stem
        return False

    # For what is known

    def arguments_of(self, folder: str, callee: str, parameter: int | str) -> set[str]:
        """What *callee* is called with below *folder*: a position, or a keyword's name. An empty
        text counts as nothing."""
        found: set[str] = set()
        for place, node in self._calls_of.get(callee, ()):
            if place.module.startswith(folder):
                given: dict[int | str | None, ast.expr] = dict(enumerate(node.args))
                given |= {one.arg: one.value for one in node.keywords}
                value = given.get(parameter)
                found |= self._resolve(value, place) if value is not None else set()
        return found - {""}

    def names_of_classes(self, folder: str) -> set[str]:
        """The ``name`` of each class below *folder* that has one."""
        found = set()
        for module in (one for one in self._trees if one.startswith(folder)):
            for node in ast.walk(self._trees[module]):
                for one in node.body if isinstance(node, ast.ClassDef) else ():
                    match one:
                        case ast.Assign(
                            targets=[ast.Name("name")], value=ast.Constant(value=str(text))
                        ):
                            found.add(text)
        return found


@cache
def parsed(text: str) -> ast.Module:
    """A module's tree, which nobody may change."""
    return ast.parse(text)


@cache
def _nodes(module: str, text: str) -> list[tuple[_Place, ast.AST]]:
    return list(_walk(parsed(text), _Place(module, None)))


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[_Place, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef):
            inner = _Place(place.module, child, isinstance(node, ast.ClassDef))
        yield inner, child
        yield from _walk(child, inner)


def _assigned(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(there)], value=value) if there == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=there)], value=ast.Tuple(elts=values)):
                for one, value in zip(there, values, strict=True):
                    if isinstance(one, ast.Name) and one.id == name:
                        yield value


def _reasons_to_refuse(program: Program) -> set[str]:
    places = ("dfmeta/proxy/http1.py", "dfmeta/proxy/connection.py")
    return {
        one for place in places for one in program.arguments_of(place, "BadRequestError", "reason")
    }


def _reasons_of_heads(program: Program) -> set[str]:
    # Of bodies the API itself refuses.
    return _reasons_to_refuse(program) - {"body", "body_timeout", "chunks"}


def _reasons_to_close(program: Program) -> set[str]:
    return program.arguments_of("dfmeta/", "Abandoned", 0)


def _limits_of_room(program: Program) -> set[str]:
    return program.arguments_of("dfmeta/proxy/room.py", "Entry", 1)


def _backends(program: Program) -> set[str]:
    named = program.names_of_classes("dfmeta/proxy/")
    return named | program.arguments_of("dfmeta/cmd/", "RemoteStore", 1)


def _sources(program: Program) -> set[str]:
    return program.names_of_classes("dfmeta/ports/")


def _ourselves(program: Program) -> set[str]:
    access = "dfmeta/proxy/access.py"
    return program._resolve(ast.Name("OURSELVES"), _Place(access, None))


def _drops(_program: Program) -> set[str]:
    return {*drops.BY_FLOW.values(), *drops.BY_METER.values()}


KNOWN: Mapping[tuple[str, str, str], Callable[[Program], set[str]]] = {
    ("dfmeta/cmd/watch.py", "", "str(state)"): lambda _: {str(one) for one in PortState},
    ("dfmeta/apps/tally.py", "", "purpose.name"): lambda _: {one.name for one in Purpose},
    ("dfmeta/apps/drops.py", "", "reason"): _drops,
    ("dfmeta/ports/resolver.py", "_ask", "name"): _sources,
    ("dfmeta/ports/resolver.py", "", "asking.source.name"): _sources,
    ("dfmeta/proxy/access.py", "_count_asked", "spent.backend"): _backends,
    ("dfmeta/proxy/access.py", "", "spent.backend"): lambda p: _backends(p) | _ourselves(p),
    ("dfmeta/proxy/connection.py", "", "abandoned.reason"): _reasons_to_close,
    ("dfmeta/proxy/connection.py", "", "error.reason"): _reasons_to_refuse,
    ("dfmeta/admin/connection.py", "_note_refused", "reason"): _reasons_of_heads,
    ("dfmeta/admin/server.py", "_note_closed", "reason"): lambda _: {"too_many", "defect"},
    ("dfmeta/proxy/server.py", "", "entry.limit"): _limits_of_room,
}
"""Module, function ("": any) and expression → the closed set that it comes from."""
