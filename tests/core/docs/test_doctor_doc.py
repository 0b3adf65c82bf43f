"""doc/source/doctor.rst should have every check of ``dfmeta doctor``, and nothing else.

Commands that it gives as remedies are those of the code; a word in capitals stands for a value.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dfmeta.doctor.offload import DRIVER

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/doctor.rst").read_text(encoding="utf-8")
MODULES = [
    *sorted((ROOT / "dfmeta/doctor").glob("*.py")),
    *sorted((ROOT / "dfmeta/cli").glob("doctor_*.py")),
    ROOT / "dfmeta/flows/port_down.py",
    ROOT / "dfmeta/host/ipv6.py",
    ROOT / "dfmeta/proxy/remedies.py",
    ROOT / "dfmeta/http/failures.py",
]
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in MODULES}
FIELDS = ("Looks at", "Wrong when", "Remedy")
VERDICTS = {"ok", "warning", "wrong", "unknown"}
_ENTRY = re.compile(r"^``([a-z0-9_-]+)``\n((?:   .*\n)+)", re.MULTILINE)
_LITERAL = re.compile(r"``([^`]+)``")
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")
_COMMAND = re.compile(r"[a-z][a-z0-9-]+ \S")


def entries(page: str) -> dict[str, str]:
    """Check → what stands under it, on one line."""
    return {one[1]: " ".join(one[2].split()) for one in _ENTRY.finditer(page)}


def names(text: str) -> frozenset[str]:
    """Names of the checks that a module's findings have; ``?`` for one that cannot be told."""
    return frozenset(_names(ast.parse(text)))


def _names(module: ast.Module) -> Iterator[str]:
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            known = {**_assigned(module.body), **_assigned(list(ast.walk(function)))}
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _is_verdict(call):
                    yield from _values(call.args[0], known) or ["?"]


def _is_verdict(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in VERDICTS


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> dict[str, list[str]]:
    """Name → the texts that it may stand for."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        if pairs and isinstance(pairs[0][0], ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
            pairs = list(zip(pairs[0][0].elts, pairs[0][1].elts, strict=False))
        for target, value in pairs:
            if isinstance(target, ast.Name):
                found[target.id] = _values(value, found) or [
                    f"={ast.unparse(value).partition('[')[0]}"
                ]
    return found


def _values(value: ast.expr, known: Mapping[str, list[str]]) -> list[str]:
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Tuple(elts=parts):
            return [one for part in parts for one in _values(part, known)]
        case ast.Dict(values=parts):
            return [one for part in parts for one in _values(part, known)]
        case ast.Name(id=name):
            found = known.get(name, [])
            # It stands for an entry of a table of the module's.
            return [text for one in found for text in known.get(one[1:], [one])]
        case _:
            return []


def strings(text: str) -> str:
    """Every text that a module has, each in one piece up to a value that is put in."""
    nodes = ast.walk(ast.parse(text))
    found = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\0".join(one for one in found if isinstance(one, str))


def test_the_element_for_a_virtio_card_is_that_of_the_remedy() -> None:
    page = (ROOT / "doc/source/store-kvm.rst").read_text(encoding="utf-8")
    assert DRIVER in "".join(line.strip() for line in page.splitlines())


def test_the_page_has_each_check_with_remedies_of_the_code() -> None:
    there = entries(PAGE)
    assert there.keys() == {name for text in SOURCES.values() for name in names(text)}
    said = "\0".join(map(strings, SOURCES.values()))
    for name, text in there.items():
        parts = re.split(rf":({'|'.join(FIELDS)}): ", text)
        assert tuple(parts[1::2]) == FIELDS, name
        for command in filter(_COMMAND.match, _LITERAL.findall(parts[-1])):
            pieces = [piece.strip() for piece in _PLACEHOLDER.split(command)]
            assert all(piece in said for piece in pieces), f"{name}: {command}"
