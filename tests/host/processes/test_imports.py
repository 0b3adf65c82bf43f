"""Programs should import no more than they use: a start is cheap, and a worker holds little."""

import subprocess
import sys

from tests.harness.netns import ROOT

SWITCH = {"os_ken", "ovs", "pyroute2"}
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "dfmeta").rglob("*.py"))


def brought_along(*names: str) -> set[str]:
    """Return the packages that a process has once it has imported *names*."""
    program = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


def test_the_proxy_and_the_store_run_without_the_switch() -> None:
    # Migrations run inside Alembic alone.
    paths = [
        path
        for path in MODULES
        if path.parts[1] in ("proxy", "store") and "migrations" not in path.parts
    ]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert not brought_along(*names) & SWITCH


def test_a_worker_has_nothing_of_the_switch_or_of_the_store() -> None:
    assert not brought_along("dfmeta.cmd.serving") & (SWITCH | {"sqlalchemy"})


def test_each_program_imports_what_it_uses_alone() -> None:
    commands = ("ports_command", "token_command", "devices_command", "store_commands")
    without_hub = (
        "dfmeta.cli.doctor_command",
        "dfmeta.wiring.services",
        "dfmeta.store.lookup.upstream",
    )
    for names, unused in (
        (("dfmeta.cmd.store", "dfmeta.cmd.central"), SWITCH),
        (("dfmeta.cmd.agent", "dfmeta.cmd.daemon"), {"sqlalchemy", "alembic"}),
        ((*without_hub, "dfmeta.store.db.database"), {"eventlet"}),
        ([f"dfmeta.cli.{name}" for name in commands], SWITCH - {"pyroute2"} | {"eventlet"}),
    ):
        assert not brought_along(*names) & unused, names


def test_the_help_imports_no_command() -> None:
    help_text = "from click.testing import CliRunner as R; from dfmeta.cli.ctl import cli; "
    program = help_text + "R().invoke(cli, ['--help']); import sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    packages = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not packages & (SWITCH | {"sqlalchemy", "eventlet", "httplib2", "jsonschema"})
