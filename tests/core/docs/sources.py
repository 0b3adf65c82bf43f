"""dfmeta's modules, for tests that compare a page with the code."""

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


def sources() -> dict[str, str]:
    """Every module of dfmeta: path from the root → text."""
    paths = sorted((ROOT / "dfmeta").rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@cache
def parsed(text: str) -> ast.Module:
    """A module's tree, which no caller may change."""
    tree = ast.parse(text)
    # It stays to the end: each collection would look through all of them.
    gc.freeze()
    return tree
