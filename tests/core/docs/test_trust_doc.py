"""Each test that doc/source/trust.rst names should be there, and each claim should name one."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "doc/source/trust.rst").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"``(\w[\w/]*\.py::\w+)``", PAGE)))
ACTORS = re.findall(r"^(\S.*)\n=+$", PAGE, re.MULTILINE)[1:]
WANTED = (
    "A guest",
    "Another guest of the same network",
    "Another tenant",
    "The host's LAN",
    "An unprivileged user of the host",
    "Nova",
    "Programs that write OVSDB",
    "A client of the store's admin API",
    "An upstream store",
    "A compromised proxy worker",
    "A compromised daemon",
)


@cache
def functions(path: Path) -> frozenset[str]:
    """Names of a module's functions."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in module.body if isinstance(node, ast.FunctionDef))


def test_named_tests_exist() -> None:
    for name in NAMED:
        path, _, function = name.partition("::")
        assert (TESTS / path).exists(), name
        assert function in functions(TESTS / path), name


def test_each_actor_has_a_chapter_whose_claims_name_a_test_and_which_ends_with_its_risk() -> None:
    assert tuple(ACTORS) == WANTED
    for actor in WANTED:
        claims, risk, _rest = PAGE.partition(f"\n{actor}\n=")[2].partition("\n*Remaining risk:*")
        assert risk, actor
        assert not re.search(r"^=+$", claims.partition("\n")[2], re.MULTILINE), actor
        attempts = re.findall(r"^(\S.*\n(?:   .*\n|\n(?=   ))+)", claims, re.MULTILINE)
        assert attempts, actor
        untested = [
            attempt for attempt in attempts if not re.search(r"``\w[\w/]*\.py::test_\w+``", attempt)
        ]
        assert untested == []
