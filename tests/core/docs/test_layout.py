"""The rules of DESIGN.md, "Layout", should hold in every module, by the import statements.

What dfmeta imports should be declared, and what is declared should be imported.
"""

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

from dfmeta import conf
from dfmeta.cmd import daemon
from tests.core.docs.sources import parsed
from tools import bounds

ROOT = Path(__file__).parents[3]
MODULES = sorted((ROOT / "dfmeta").rglob("*.py"))
BASE = {"model", "errors"}
VALUES = BASE | {"metrics", "packets", "runtime"}
LOW = VALUES | {"identity", "flows"}
# What a part may import of dfmeta, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "model": set(),
    "errors": set(),
    "metrics": BASE,
    "packets": BASE,
    "runtime": BASE | {"metrics"},
    "http": BASE | {"metrics", "runtime"},
    "identity": BASE | {"runtime"},
    "flows": BASE | {"identity"},
    "devices": BASE,
    "ovsdb": LOW,
    "host": LOW,
    "neutron": BASE | {"runtime"},
    "store": VALUES | {"devices", "guest", "http"},
    "sources": VALUES | {"devices", "neutron", "ovsdb"},
    "attach": VALUES | {"neutron", "ovsdb", "store"},
    "apps": LOW | {"ovsdb"},
    "proxy": LOW | {"attach", "http", "store"},
    "doctor": LOW | {"apps", "host", "http", "neutron", "ovsdb", "proxy", "sources", "store"},
    "guest": set(),
    "admin": LOW | {"attach", "doctor", "http", "proxy"},
    "conf": BASE | {"flows", "http", "identity"},
}
_BELOW = MAY_IMPORT.keys() - {"__init__", "guest"}
MAY_IMPORT["wiring"] = _BELOW - {"apps"}
MAY_IMPORT["cli"] = _BELOW - {"admin"} | {"wiring"}
MAY_IMPORT["cmd"] = _BELOW | {"wiring"}
# Rooms of a part: which others of them each may import. The part's own modules import none of
# them.
ROOMS: dict[str, dict[str, set[str]]] = {
    "store": {
        "db": set(),
        "guest": {"db"},
        "auth": set(),
        "api": {"db", "guest", "auth"},
        "lookup": {"db", "guest", "api"},
    },
    "proxy": {"backends": set(), "engines": {"backends"}},
}
# Libraries that only some parts may know.
ONLY_IN: dict[str, set[str]] = {
    "eventlet": {"runtime"},
    "os_ken": {"flows", "packets", "apps"},
    "ovsdbapp": {"ovsdb"},
    "ovs": {"ovsdb"},
    "pyroute2": {"host"},
    "oslo_config": {"conf", "wiring", "cli", "cmd"},
    "sqlalchemy": {"store"},
    "keystoneauth1": {"conf", "neutron"},
    "alembic": {"store"},
    "jwt": {"store"},
    "jsonschema": {"devices"},
    "jinja2": {"admin"},
    "httplib2": {"http"},
}
# What has no place where nothing may wait, look at a clock or open a socket.
NOT_IN_FLOWS = {"eventlet", "socket", "time", "random", "os", "logging", "subprocess", "datetime"}
TABLE_NUMBERS = {200, 201}
ASKS_TIME = {"time.monotonic", "time.time", "time.sleep"}
SETUP = (ROOT / "setup.cfg").read_text(encoding="utf-8")
DECLARED = {requirement.name: requirement for requirement in bounds.requirements(SETUP)}
INSTALLED = packages_distributions()
# Declared and imported nowhere, and why.
ARGUED = {"psycopg": "SQLAlchemy imports it, for the URL of a database that names it"}


def part(path: Path) -> str:
    """The part of dfmeta that a module belongs to: a package, or a module at the top."""
    first = path.relative_to(ROOT / "dfmeta").parts[0]
    return first.removesuffix(".py")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path: Path) -> ast.Module:
    return parsed(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> Sequence[str]:
    """Dotted names of what a module imports, wherever in it the statement stands."""
    return imported(ast.walk(tree(path)))


def imported(nodes: Iterable[ast.AST]) -> Sequence[str]:
    """Dotted names of what some nodes import."""
    result: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            result += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import, line {node.lineno}"
            result += (f"{node.module}.{alias.name}" for alias in node.names)
    return result


def distributions(names: Iterable[str]) -> dict[str, set[str]]:
    """Package of others that some names are of → the distributions that it is in."""
    packages = {name.split(".")[0] for name in names} - {"dfmeta"} - sys.stdlib_module_names
    return {package: {*map(bounds.normalized, INSTALLED.get(package, ()))} for package in packages}


def of_dfmeta(path: Path) -> set[str]:
    """Parts of dfmeta that a module imports, its own left out."""
    result = {name.split(".")[1] for name in imports(path) if name.startswith("dfmeta.")}
    return result - {part(path)}


def room_of(path: Path) -> str:
    """The room of a part that a module stands in; empty for the part's own modules."""
    inside = path.relative_to(ROOT / "dfmeta").parts
    return inside[1] if len(inside) > 2 else ""


def test_rooms_import_one_way() -> None:
    for of, rooms in ROOMS.items():
        present = {room_of(module) for module in MODULES if part(module) == of} - {"", "migrations"}
        assert present == rooms.keys(), of
    for path in MODULES:
        rooms = ROOMS.get(part(path), {})
        room = room_of(path)
        imported = {
            name.split(".")[2]
            for name in imports(path)
            if name.startswith(f"dfmeta.{part(path)}.") and name.split(".")[2] in rooms
        }
        assert imported - {room} <= rooms.get(room, set()), name(path)


def test_imports_point_one_way() -> None:
    stray = {name(path): of_dfmeta(path) - MAY_IMPORT[part(path)] for path in MODULES}
    assert {path: parts for path, parts in stray.items() if parts} == {}


def test_the_registry_imports_of_keys_the_scheme_alone() -> None:
    registry = ROOT / "dfmeta" / "identity" / "registry.py"
    assert {name for name in imports(registry) if name.startswith("dfmeta.identity.key")} == {
        f"dfmeta.identity.key.{name}" for name in ("IN_PORT", "Keys")
    }


def test_libraries_are_confined() -> None:
    for path in MODULES:
        for library in {name.split(".")[0] for name in imports(path)} & ONLY_IN.keys():
            assert part(path) in ONLY_IN[library], f"{name(path)} imports {library}"


def test_only_the_clock_asks_the_kernel_for_the_time() -> None:
    asking = {name(path) for path in MODULES if ASKS_TIME & set(attributes(path))}
    # These run in a guest, or in a process that imports nothing of dfmeta.
    plugin = {f"dfmeta/guest/cni/{module}.py" for module in ("cni", "devices", "host_api")}
    own = plugin | {"dfmeta/guest/tag_devices.py", "dfmeta/cmd/holder.py"}
    assert asking == own | {"dfmeta/runtime/clock.py", "dfmeta/ovsdb/watcher.py"}


def attributes(path: Path) -> Iterator[str]:
    """Yield each attribute of a name that a module uses, dotted."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id.lstrip('_')}.{node.attr}"


def test_the_pipeline_is_pure() -> None:
    for path in (module for module in MODULES if part(module) == "flows"):
        assert not {name.split(".")[0] for name in imports(path)} & NOT_IN_FLOWS, name(path)


def test_values_need_no_third_party() -> None:
    for path in (module for module in MODULES if part(module) in ("model", "errors", "doctor")):
        assert not distributions(imports(path)), name(path)


def test_a_program_of_guests_needs_nothing_but_python() -> None:
    for path in (module for module in MODULES if part(module) == "guest"):
        others = [name for name in imports(path) if not name.startswith("dfmeta.guest.cni.")]
        stray = {name.split(".")[0] for name in others} - sys.stdlib_module_names
        assert not stray, f"{name(path)} imports {stray}"


def test_no_table_has_a_number_outside_the_pipeline() -> None:
    for path in MODULES:
        if part(path) in ("flows", "apps", "identity", "doctor") and path.stem != "pipeline":
            lines = [
                node.lineno
                for node in ast.walk(tree(path))
                if isinstance(node, ast.Constant) and node.value in TABLE_NUMBERS
            ]
            assert not lines, f"{name(path)}, lines {lines}"


def test_no_module_is_longer_than_it_may_be() -> None:
    for path in MODULES:
        # A guest gets its program as one file, and doctor's checks are one literal.
        longest = {"tag_devices": 900, "table": 700}.get(path.stem, 600)
        assert len(path.read_text(encoding="utf-8").splitlines()) <= longest, name(path)


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public functions, classes and methods under *node*, by dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name.startswith("_"):
                continue
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}{child.name}.")


def test_every_public_name_has_a_docstring() -> None:
    for path in MODULES:
        module = tree(path)
        assert not module.body or ast.get_docstring(module), f"{name(path)} itself"
        bare = [
            dotted
            for dotted, node in public(module)
            if not ast.get_docstring(node)  # type: ignore[arg-type]
        ]
        assert not bare, f"{name(path)}: {', '.join(bare)}"


def test_every_option_has_a_sentence_of_help() -> None:
    groups = (*dict(conf.own_opts()).items(), ("command line", daemon.CLI))
    for group, options in groups:
        for option in options:
            text = getattr(option, "help", None) or ""
            assert text.endswith("."), f"[{group}] {option}"
            assert text == " ".join(text.split()), f"[{group}] {option}: doubled blanks"


def test_every_group_of_options_has_a_title_and_help() -> None:
    for group, _options in conf.GROUPS:
        assert group.title
        assert group.help.endswith(".")


def test_imported_packages_are_declared_and_declared_ones_imported_or_argued() -> None:
    result = distributions(name for path in MODULES for name in imports(path))
    assert result.keys() >= {"click", "ovs", "yaml"}, "the search itself finds them"
    assert [package for package, dists in result.items() if not dists & DECLARED.keys()] == []
    assert DECLARED.keys() - set().union(*result.values()) == ARGUED.keys()


def test_packages_of_an_extra_are_imported_where_they_are_used() -> None:
    for path in MODULES:
        for package, dists in distributions(imported(tree(path).body)).items():
            assert any(not DECLARED[dist].extra for dist in dists & DECLARED.keys()), (
                path,
                package,
            )
