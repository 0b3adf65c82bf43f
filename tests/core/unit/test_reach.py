"""What judges the tests, reach and mutants, finds each statement and changes nothing else."""

import ast
import builtins
from pathlib import Path

import pytest

from tests.harness import reach
from tests.harness.reach import IMPORT
from tools import mutation

SOURCE = '''\
"""A module."""

LIMIT = 3


class Box:
    def size(
        self, of: int
    ) -> int:
        """Return a size."""
        if of > LIMIT and not self.full:
            LOG.info("%d is much", of + 1)
            self.full = True
            return of * 2
        else:
            self.grow()
        try:
            raise ValueError(of)
        except ValueError:
            return 0
'''


def test_statements_are_those_that_run_by_the_lines_of_their_heads() -> None:
    found = {part[:2]: part.inner for part in reach.statements(ast.parse(SOURCE))}
    outside = [(3, 3), (6, 6), (7, 9)]
    inside = [(11, 11), (12, 12), (13, 13), (14, 14), (16, 16), (17, 17), (18, 18), (20, 20)]
    assert found == {**dict.fromkeys(outside, False), **dict.fromkeys(inside, True)}


def test_marks_are_those_of_the_statements_that_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse("def f(x):\n    if x:\n        return 1\n    return 2\nf(0)")
    marks = bytearray(9)
    monkeypatch.setattr(builtins, reach._NAME, marks, raising=False)
    parts = reach.statements(tree, 2)
    exec(compile(tree, "", "exec"), {})
    assert sorted(part.first for part, mark in zip(parts, marks[2:], strict=False) if mark) == [
        *(1, 2, 4, 5)
    ]
    assert marks[:2] == bytes(2)


def test_a_changed_line_has_the_tests_that_reach_it() -> None:
    known = {"a.py": {1: {IMPORT}, 5: {"x"}, 6: {"x", "y"}, 9: set[str]()}}
    for line, tests in ((5, "x"), (6, "xy"), (7, "xy"), (9, ""), (1, "xy"), (2, "xy"), (0, "xy")):
        assert reach.tests_of(known, {"a.py": [line]}) == set(tests), line
    assert reach.tests_of(known, {"b.py": [1]}) == set()


def test_each_mutant_changes_its_statement_alone_and_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "dfmeta").mkdir()
    (tmp_path / "dfmeta/a.py").write_text(SOURCE)
    changes = set()
    for mutant, line in mutation.mutants_of("dfmeta/a.py", tree := ast.parse(SOURCE)):
        changed = ast.unparse(tree)
        moved = mutation.change(mutant, b"\n" + SOURCE.encode())
        assert moved is not None
        assert (ast.unparse(moved[0]), moved[1]) == (changed, line + 1), mutant
        changes.add((line, mutant.kind, mutant.after))
    assert ast.unparse(tree) == ast.unparse(ast.parse(SOURCE)), "all are undone"
    assert changes == {
        (3, "constant", "LIMIT = 4"),
        (11, "comparison", "if of <= LIMIT and (not self.full):"),
        (11, "and/or", "if of > LIMIT or not self.full:"),
        (11, "not dropped", "if of > LIMIT and self.full:"),
        (11, "if True", "if True:"),
        (11, "if False", "if False:"),
        (13, "assignment dropped", "pass"),
        (13, "constant", "self.full = False"),
        (14, "return None", "return None"),
        (14, "arithmetic", "return of // 2"),
        (14, "constant", "return of * 3"),
        (16, "call dropped", "pass"),
        (20, "constant", "return 1"),
    }
    assert mutation.listed(tmp_path, 9)[0] in mutation.listed(tmp_path, 1, "a.py")
