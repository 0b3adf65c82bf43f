"""doc/source/architecture.rst should name what is there, and every package."""

import ast
import re
from collections.abc import Iterator

from tests.core.docs.test_layout import MAY_IMPORT, ROOMS
from tests.harness.netns import ROOT

PAGE = (ROOT / "doc/source/architecture.rst").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"``((?:dfmeta|tests|etc)/[\w./-]+)``", PAGE)))
NAMED = sorted(
    {
        (path, name)
        for path, name in re.findall(
            r"``(dfmeta/[\w/]+\.py)``\s+\(?``([A-Za-z_]\w*(?:\.\w+)?)``", PAGE
        )
    }
)


def defined(path: str) -> Iterator[str]:
    """What a module defines at its top, and the methods of its classes by dotted name."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{member.name}" for member in node.body if hasattr(member, "name")
            )


def test_paths_and_names_of_the_page_exist() -> None:
    assert (len(PATHS) > 50, len(NAMED) > 30) == (True, True)
    assert [path for path in PATHS if not (ROOT / path).exists()] == []
    assert [(path, name) for path, name in NAMED if name not in set(defined(path))] == []


def floors() -> list[set[str]]:
    """The parts on each floor of the drawing, from the top."""
    drawing = PAGE[PAGE.index("::\n") : PAGE.index("``tests/core/docs/test_layout.py``")]
    result = [
        re.findall(r"^   (\w+) {2,}\S", word, re.MULTILINE) for word in drawing.split("   ---")
    ]
    return [set(names) for names in result]


def test_every_package_has_a_paragraph_and_a_place_in_the_drawing() -> None:
    packages = {path.parent.name for path in (ROOT / "dfmeta").glob("*/__init__.py")}
    assert packages == set(re.findall(r"^``dfmeta/(\w+)/``$", PAGE, re.MULTILINE))
    assert packages <= set().union(*floors())


def test_the_drawing_has_the_order_that_imports_have() -> None:
    drawn = floors()
    everything = set().union(*drawn)
    for number, floor in enumerate(drawn):
        below = set().union(*drawn[number + 1 :])
        for package in floor:
            assert MAY_IMPORT[package] & everything <= below, package


def test_every_room_is_named() -> None:
    for part in ROOMS:
        rooms = {path.parent.name for path in (ROOT / "dfmeta" / part).glob("*/__init__.py")}
        assert rooms == set(re.findall(rf"``dfmeta/{part}/(\w+)/``", PAGE)), part
