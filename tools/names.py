"""Check identifiers: they are nouns of the field, and a class name of dfmeta exists once.

A name such as ``found`` tells nothing about its value. A few of them are harmless; where they are
more than a fiftieth of the names bound in a tree, each is listed.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("dfmeta", "tests", "bench", "tools")
EMPTY = frozenset(
    {"asked", "found", "known", "mine", "one", "ours", "own", "said", "there", "those", "told"}
)
SHARE = 0.02
"""Largest share of such names among the names bound: parameters, and variables as often as they
are assigned."""


def bindings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return line and name of each parameter and of each assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def faults() -> Iterator[str]:
    """Return a line for each name that is to be changed."""
    classes = defaultdict(list)
    for top in TREES:
        count, empty = 0, []
        for path in sorted((ROOT / top).rglob("*.py")):
            place, tree = path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))
            names = list(bindings(tree))
            count += len(names)
            empty += [f"{place}:{line}: {name}" for line, name in names if name.strip("_") in EMPTY]
            if top == "dfmeta":
                for node in ast.walk(tree):
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        classes[node.name].append(f"{place}:{node.lineno}")
        if len(empty) > SHARE * count:
            yield from empty
            yield f"{top}: {len(empty)} of {count} names say nothing about their values"
    for name, places in classes.items():
        if len(places) > 1:
            yield f"the class {name} exists twice: {', '.join(places)}"


if __name__ == "__main__":
    lines = list(faults())
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
