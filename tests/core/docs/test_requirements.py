"""What dfmeta imports should be declared, and what is declared should be imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.core.docs.sources import parsed
from tools import bounds

SETUP = (bounds.ROOT / "setup.cfg").read_text(encoding="utf-8")
DECLARED = {one.name: one for one in bounds.requirements(SETUP)}
MODULES = sorted((bounds.ROOT / "dfmeta").rglob("*.py"))
# Declared and imported nowhere, and why.
ARGUED = {"psycopg": "SQLAlchemy imports it, for the URL of a database that names it"}


@cache
def imported_by(path: Path) -> frozenset[str]:
    """The packages that a module imports, wherever in it the statement stands."""
    return frozenset(imported(ast.walk(tree(path))))


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """The packages that some nodes import: not dfmeta's own, and not Python's."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - {"dfmeta"} - sys.stdlib_module_names


@cache
def tree(path: Path) -> ast.Module:
    return parsed(path.read_text(encoding="utf-8"))


INSTALLED = packages_distributions()


def distributions(names: set[str]) -> dict[str, set[str]]:
    """Which distributions each of some packages is in."""
    return {name: {bounds.normalized(one) for one in INSTALLED.get(name, ())} for name in names}


def test_imported_packages_are_declared_directly() -> None:
    names = set[str]().union(*map(imported_by, MODULES))
    assert names >= {"click", "ovs", "yaml", "packaging"}, "the search itself finds them"
    found = distributions(names)
    assert [name for name, them in found.items() if not them & DECLARED.keys()] == []


def test_declared_packages_are_imported_or_argued() -> None:
    names = set[str]().union(*map(imported_by, MODULES))
    used = set().union(*distributions(names).values())
    assert DECLARED.keys() - used == ARGUED.keys()


def test_packages_of_an_extra_are_imported_where_they_are_used() -> None:
    for path in MODULES:
        at_once = distributions(imported(iter(tree(path).body)))
        for name, them in at_once.items():
            assert any(not DECLARED[one].extra for one in them & DECLARED.keys()), (path, name)
