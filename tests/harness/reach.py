"""Which tests reach which lines of dfmeta, and how much of dfmeta they reach.

Where ``DFMETA_TEST_REACH`` names a folder, each statement of dfmeta begins with a mark when its
module is compiled, and each process of pytest writes a file there when it ends. A test's own marks
are those that are set while it runs, with its fixtures. Programs that tests start are not measured.

``python -m tests.harness.reach FOLDER`` prints the share of the lines that tests or an import have
reached, and the modules with the lowest share.
"""

import ast
import builtins
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

import pytest

FOLDER: Final = "DFMETA_TEST_REACH"
"""Environment variable."""
PACKAGE: Final = "dfmeta"
IMPORT: Final = ""
"""In place of a test: lines outside functions, which run when their module is imported."""
_NAME: Final = "__dfmeta_reach__"
"""Name of the marks among Python's own, since a compiled module has no other names."""
_ROOM: Final = 1 << 16
"""Marks of all modules together."""
_SHOWN: Final = 10
"""Modules that a report names."""

Map = dict[str, dict[int, set[str]]]
"""Path of a module → line → tests."""


class Statement(NamedTuple):
    """Lines of a statement; of one that contains others, those of its head."""

    first: int
    last: int
    inner: bool
    """Whether it is inside a function."""


def statements(tree: ast.Module, mark: int = -1) -> list[Statement]:
    """Return the statements of a module.

    :param mark: put a mark before each, with numbers from this one on; -1: change nothing.
    """
    result: list[Statement] = []
    pending: list[tuple[list[ast.stmt], bool]] = [(tree.body, False)]
    while pending:
        body, inner = pending.pop()
        marked: list[ast.stmt] = []
        for statement in body:
            if not _executable(statement):
                marked.append(statement)
                continue
            if mark >= 0:
                marked.append(_mark(statement, mark + len(result)))
            marked.append(statement)
            nested = list(_bodies(statement))
            function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            pending.extend((part, inner or function) for part in nested)
            first = min(
                [statement.lineno, *(decorator.lineno for decorator in _decorators(statement))]
            )
            last = min(
                [nested[0][0].lineno - 1] if nested else [statement.end_lineno or statement.lineno]
            )
            result.append(Statement(first, max(first, last), inner))
        body[:] = marked
    return result


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return getattr(statement, "decorator_list", [])


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement, but those that only a type checker reads."""
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
        return
    for field in ("body", "orelse", "finalbody"):
        if getattr(statement, field, None):
            yield getattr(statement, field)
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _executable(statement: ast.stmt) -> bool:
    """Return whether a test can reach a statement: it is no text, declaration or stub."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        return ast.unparse(statement.exc) != "NotImplementedError"
    if isinstance(statement, ast.ImportFrom):
        return statement.module != "__future__"
    return not isinstance(statement, ast.Global | ast.Nonlocal | ast.Pass)


def _mark(statement: ast.stmt, number: int) -> ast.stmt:
    marks = ast.Subscript(ast.Name(_NAME, ast.Load()), ast.Constant(number), ast.Store())
    mark = ast.copy_location(ast.Assign([marks], ast.Constant(1)), statement)
    return ast.fix_missing_locations(mark)


class _Recorder:
    """Sets the marks into modules, and notes which are set in each test."""

    def __init__(self) -> None:
        self._marks = bytearray(_ROOM)
        self._used = 0
        self._modules: dict[str, tuple[int, list[Statement]]] = {}
        """Path → number of its first mark, and its statements."""
        self.reached: defaultdict[str, set[int]] = defaultdict(set)
        self.failed: set[str] = set()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None
        assert spec.origin is not None
        self._root = Path(spec.origin).resolve().parents[1]
        self._get_code = SourceFileLoader.get_code
        setattr(builtins, _NAME, self._marks)

    def code(self, loader: SourceFileLoader, name: str) -> CodeType | None:
        """Return a module's code, with marks if it is one of dfmeta's."""
        path = Path(loader.path)
        if not path.is_relative_to(self._root / PACKAGE):
            return self._get_code(loader, name)
        tree = ast.parse(path.read_bytes())
        key = str(path.relative_to(self._root))
        # A module that is imported again has the same marks.
        begin = self._modules[key][0] if key in self._modules else self._used
        parts = statements(tree, begin)
        if key not in self._modules:
            self._modules[key] = begin, parts
            self._used += len(parts)
        return compile(tree, str(path), "exec", dont_inherit=True)

    def take(self, test: str) -> None:
        """Note the marks that are set as those of a test, and clear them."""
        result = bytes(self._marks[: self._used])
        self._marks[: self._used] = bytes(len(result))
        self.reached[test].update(mark.start() for mark in re.finditer(b"\x01", result))

    def write(self, folder: str) -> None:
        """Write what this process has reached."""
        self.take(IMPORT)
        names = list(self._modules)
        begins = [begin for begin, _ in self._modules.values()]
        tests: dict[str, dict[str, list[int]]] = {}
        for test, marks in self.reached.items():
            own: defaultdict[str, list[int]] = defaultdict(list)
            for mark in sorted(marks):
                place = bisect_right(begins, mark) - 1
                own[names[place]].append(mark - begins[place])
            tests[test] = own
        modules = {path: parts for path, (_, parts) in self._modules.items()}
        written = {
            "modules": modules,
            "tests": tests,
            "failed": sorted(self.failed),
            "seconds": self.seconds,
        }
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(written))


def _begin() -> _Recorder | None:
    """Mark the modules that are imported from now on, where it is wanted."""
    if FOLDER not in os.environ:
        return None
    recorder = _Recorder()
    setattr(SourceFileLoader, "get_code", lambda self, name: recorder.code(self, name))  # noqa: B010
    return recorder


_RECORDER: Final = _begin()


def function_of(test: str) -> str:
    """Return the id of a test without its parameters."""
    return test.partition("[")[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test reaches."""
    if _RECORDER is None:
        return (yield)
    test, begin = function_of(item.nodeid), time.process_time()
    _RECORDER.take(IMPORT)
    try:
        return (yield)
    finally:
        _RECORDER.take(test)
        _RECORDER.seconds[test] += time.process_time() - begin


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test."""
    if _RECORDER is not None and report.failed:
        _RECORDER.failed.add(function_of(report.nodeid))


def pytest_unconfigure() -> None:
    """Keep what this process has reached."""
    if _RECORDER is not None:
        _RECORDER.write(os.environ[FOLDER])


class Reached(NamedTuple):
    """What all processes have reached together."""

    statements: dict[str, list[Statement]]
    """Path of a module → its statements."""
    tests: dict[str, list[set[str]]]
    """Path of a module → for each statement the tests that reach it, or :data:`IMPORT`."""
    failed: set[str]
    """Tests that failed."""
    seconds: dict[str, float]
    """Test → its seconds of the CPU, of all parameters together."""


def read(folder: Path) -> Reached:
    """Return what the processes have written to a folder."""
    reached = Reached({}, {}, set(), {})
    for file in folder.glob("*.json"):
        written = json.loads(file.read_text())
        for path, parts in written["modules"].items():
            if path not in reached.statements:
                reached.statements[path] = [Statement(*part) for part in parts]
                reached.tests[path] = [set() for _ in parts]
        for test, modules in written["tests"].items():
            for path, marks in modules.items():
                # Another process may have imported the module before it was edited.
                if len(reached.statements[path]) == len(written["modules"][path]):
                    for mark in marks:
                        reached.tests[path][mark].add(test)
        reached.failed.update(written["failed"])
        for test, seconds in written["seconds"].items():
            reached.seconds[test] = reached.seconds.get(test, 0) + seconds
    return reached


def load(folder: Path) -> Map:
    """Return the tests that reach each line; :data:`IMPORT` for a line outside functions.

    A test is ``file::function``, without its parameters. Lines of one statement share their set.
    """
    reached = read(folder)
    return {
        path: {
            line: tests - {IMPORT} if part.inner else {IMPORT}
            for part, tests in zip(parts, reached.tests[path], strict=True)
            for line in range(part.first, part.last + 1)
        }
        for path, parts in reached.statements.items()
    }


def tests_of(reached: Map, changed: Mapping[str, Iterable[int]]) -> set[str]:
    """Return the tests that reach changed lines.

    A line without a statement counts as the one before it. A line outside functions is reached by
    each test that reaches a function of its module.

    :param changed: path of a module → numbers of lines, as they were when the map was made.
    """
    result: set[str] = set()
    for path, lines in changed.items():
        known = reached.get(path, {})
        numbers = sorted(known)
        for line in lines:
            place = bisect_right(numbers, line)
            tests = known[numbers[place - 1]] if place else {IMPORT}
            if IMPORT in tests:
                tests = set(itertools.chain.from_iterable(known.values()))
            result |= tests
    return result - {IMPORT}


def main() -> int:
    """Print the coverage of the processes that wrote to a folder."""
    root = Path(__file__).resolve().parents[2]
    reached = read(Path(sys.argv[1]))
    shares: dict[str, tuple[int, int]] = {}
    for file in (root / PACKAGE).rglob("*.py"):
        path = str(file.relative_to(root))
        parts = reached.statements.get(path)
        if parts is None:
            parts = statements(ast.parse(file.read_bytes()))
        shares[path] = sum(map(bool, reached.tests.get(path, []))), len(parts)
    worst = sorted(
        (path for path in shares if shares[path][1]), key=lambda path: _percent(shares[path])
    )
    for path in worst[:_SHOWN]:
        sys.stdout.write(f"{_percent(shares[path]):5.1f} %  {path}\n")
    total = sum(have for have, _ in shares.values()), sum(of for _, of in shares.values())
    sys.stdout.write(f"{_percent(total):5.1f} %  of {total[1]} statements\n")
    return 0


def _percent(share: tuple[int, int]) -> float:
    return 100 * share[0] / share[1]


if __name__ == "__main__":
    sys.exit(main())
