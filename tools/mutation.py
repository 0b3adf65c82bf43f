"""Mutants: small faults in dfmeta that a test should notice; see tools/mutants.

As a plugin of pytest, it puts the mutant of the environment variable ``DFMETA_MUTANT`` in place of
the module when the module is imported.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

MUTANT: Final = "DFMETA_MUTANT"
"""Environment variable: a mutant as JSON."""
_SEED: Final = "dfmeta"
_LINES: Final = 300
"""Lines of a module for each of its mutants, at least."""
_EXCLUDED: Final = ("dfmeta/conf/", "dfmeta/metrics.py", "dfmeta/store/db/migrations/")
"""Declarations, of which texts are the most part."""
_TURNED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    operator: opposite
    for pair in [
        (ast.Eq, ast.NotEq),
        (ast.Lt, ast.GtE),
        (ast.Gt, ast.LtE),
        (ast.Is, ast.IsNot),
        (ast.In, ast.NotIn),
        (ast.And, ast.Or),
        (ast.Add, ast.Sub),
        (ast.Mult, ast.FloorDiv),
        (ast.LShift, ast.RShift),
        (ast.BitOr, ast.BitAnd),
    ]
    for operator, opposite in (pair, pair[::-1])
}
_LOG: Final = re.compile(r"(self\.)?_?log\b|complain|warnings\.", re.IGNORECASE)
"""Calls whose effect is a text for an operator."""
_TYPES: Final = {"annotation", "returns", "decorator_list", "type_params"}
"""Fields of the syntax tree that no call of a function reads."""


_PARTS: Final = (ast.expr, ast.withitem, ast.keyword, ast.comprehension)


class Mutant(NamedTuple):
    """A fault, by the text around it."""

    file: str
    function: str
    kind: str
    before: str
    after: str
    number: int
    """Number among those with the same text."""

    @property
    def rank(self) -> str:
        """Return the digest that decides on its place in the list."""
        return hashlib.sha256("\t".join(map(str, (_SEED, *self))).encode()).hexdigest()


def mutants_of(file: str, tree: ast.Module) -> Iterator[tuple[Mutant, int]]:
    """Yield the mutants of a module and their lines; meanwhile the tree is the mutant's."""
    seen: Counter[tuple[str, ...]] = Counter()
    for function, body, place, statement in _statements(tree, ""):
        before = _head(statement)
        for kind in _changes(body, place, statement):
            key = (file, function, kind, before, _head(body[place]))
            if not re.search(r"[\n\t]", before) and before != key[-1]:
                yield Mutant(*key, seen[key]), statement.lineno
                seen[key] += 1


def _statements(of: Any, name: str) -> Iterator[tuple[str, list[ast.stmt], int, ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(of, field, [])
        for place, statement in enumerate(body):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                yield from _statements(statement, f"{name}.{statement.name}".lstrip("."))
            elif "TYPE_CHECKING" not in _head(statement):
                if not isinstance(of, ast.Module | ast.ClassDef) or _is_number(statement):
                    yield name, body, place, statement
                yield from _statements(statement, name)
    for part in (*getattr(of, "handlers", ()), *getattr(of, "cases", ())):
        yield from _statements(part, name)


def _is_number(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Constant)


def _head(statement: ast.stmt) -> str:
    """Return the text of a statement without the statements in it."""
    bare = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(bare, field):
            setattr(bare, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(bare).removesuffix("pass").strip() or "pass"


def _changes(body: list[ast.stmt], place: int, statement: ast.stmt) -> Iterator[str]:
    """Change a statement in each way, and yield the kind of the change."""
    if isinstance(statement, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Constant) or (isinstance(call, ast.Call) and _LOG.match(_text(call))):
        return
    stored = [*getattr(statement, "targets", []), getattr(statement, "target", None)]
    if isinstance(call, ast.Call) or isinstance(statement, ast.AugAssign):
        yield from _put(body, place, ast.Pass(), "call dropped" if call else "assignment dropped")
    elif not isinstance(statement, ast.For) and any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in stored
    ):
        yield from _put(body, place, ast.Pass(), "assignment dropped")
    if isinstance(statement, ast.If):
        for value in (True, False):
            yield from _put(statement, "test", ast.Constant(value), f"if {value}")
    if isinstance(statement, ast.Return) and not isinstance(statement.value, ast.Constant | None):
        yield from _put(statement, "value", ast.Constant(None), "return None")
    yield from _expressions(statement)


def _text(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _expressions(of: ast.AST) -> Iterator[str]:
    for field, value in ast.iter_fields(of):
        values = value if isinstance(value, list) else [value]
        for number, node in enumerate(values):
            if field in _TYPES or not isinstance(node, _PARTS) or isinstance(node, ast.JoinedStr):
                continue
            where: tuple[Any, Any] = (value, number) if isinstance(value, list) else (of, field)
            condition = field in ("test", "ifs")
            match node:
                case ast.Compare(ops=[turned]):
                    yield from _put(node.ops, 0, _TURNED[type(turned)](), "comparison")
                case ast.BoolOp():
                    yield from _put(node, "op", _TURNED[type(node.op)](), "and/or")
                case ast.UnaryOp(op=ast.Not()):
                    yield from _put(*where, node.operand, "not dropped")
                case ast.Name() | ast.Attribute() | ast.Call() if condition:
                    yield from _put(*where, ast.UnaryOp(ast.Not(), node), "not added")
                case ast.BinOp() if type(node.op) in _TURNED and not _is_text(node):
                    yield from _put(node, "op", _TURNED[type(node.op)](), "arithmetic")
                case ast.Constant(value=bool() as constant):
                    yield from _put(*where, ast.Constant(not constant), "constant")
                case ast.Constant(value=int() | float() as constant):
                    yield from _put(*where, ast.Constant(constant + 1), "constant")
                case ast.Constant(value=str() as text) if isinstance(of, ast.Compare) and text:
                    yield from _put(*where, ast.Constant(text + "x"), "constant")
            yield from _expressions(node)


def _is_text(operation: ast.BinOp) -> bool:
    parts = (operation.left, operation.right)
    return any(isinstance(part, ast.JoinedStr) for part in parts) or any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts
    )


def _put(of: Any, field: Any, new: Any, kind: str) -> Iterator[str]:
    """Put a node in another's place until the iteration goes on."""
    get, put = (list.__getitem__, list.__setitem__) if isinstance(of, list) else (getattr, setattr)
    old = get(of, field)
    put(of, field, new)
    yield kind
    put(of, field, old)


def listed(root: Path, number: int, only: str = "") -> list[Mutant]:
    """Return the mutants of lowest digest: at most one of a function, and more of a long module.

    :param only: part of the path of the only modules to take.
    """
    candidates: list[Mutant] = []
    room: dict[str, int] = {}
    for path in sorted((root / "dfmeta").rglob("*.py")):
        file, text = str(path.relative_to(root)), path.read_text()
        if not file.startswith(_EXCLUDED) and only in file:
            candidates.extend(mutant for mutant, _ in mutants_of(file, ast.parse(text)))
            room[file] = 1 + text.count("\n") // _LINES
    chosen: dict[tuple[str, str], Mutant] = {}
    for mutant in sorted(candidates, key=lambda candidate: candidate.rank):
        if mutant[:2] not in chosen and (only or room[mutant.file]) and len(chosen) < number:
            room[mutant.file] -= 1
            chosen[mutant[:2]] = mutant
    return sorted(chosen.values())


def change(mutant: Mutant, source: bytes) -> tuple[ast.Module, int] | None:
    """Return the mutant's module and line; None if the module has no such statement."""
    tree = ast.parse(source)
    for candidate, line in mutants_of(mutant.file, tree):
        if candidate == mutant:
            return ast.fix_missing_locations(tree), line
    return None


def _begin(mutant: Mutant) -> None:
    """Change the mutant's module when it is imported."""
    file, get_code = Path.cwd() / mutant.file, SourceFileLoader.get_code

    def changed(loader: SourceFileLoader, name: str) -> CodeType | None:
        if Path(loader.path) != file:
            return get_code(loader, name)
        result = change(mutant, file.read_bytes())
        assert result is not None, mutant
        return compile(result[0], file, "exec", dont_inherit=True)

    setattr(SourceFileLoader, "get_code", changed)  # noqa: B010


if MUTANT in os.environ:
    _begin(Mutant(*json.loads(os.environ[MUTANT])))
