"""Each example of doc/source/testing.rst should be a test that passes, and its lists whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import fixtures
from tests.harness.console import blocks
from tests.harness.netns import ROOT
from tests.soak.real import conftest as real

PAGE = (ROOT / "doc/source/testing.rst").read_text(encoding="utf-8")
EXAMPLES = {one.caption: one.text for one in blocks(PAGE) if one.kind == "python"}
SETTINGS = ("-q", "--timeout=120", "-p", "no:cacheprovider", "--noconftest")
PLUGINS = ("-p", "tests.core.docs.conftest", "-p", "tests.harness.fixtures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, each a module."""
    place = tmp_path_factory.mktemp("examples")
    for name, text in EXAMPLES.items():
        (place / name).write_text(text + "\n")
    return place


def test_the_examples_pass(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "pytest", f"--rootdir={ROOT}"]
    ran = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), *SETTINGS, *PLUGINS, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    passed = sum(text.count("\ndef test_") for text in EXAMPLES.values())
    assert f"\n{passed} passed" in ran.stdout


def test_the_examples_are_of_the_style_of_all_others(folder: Path) -> None:
    configured = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    ruff = str(Path(sys.executable).with_name("ruff"))
    # S101: these are tests, though not below tests/.
    checked = [ruff, "check", *configured, "--ignore", "S101", str(folder)]
    for command in (checked, [ruff, "format", "--check", *configured, str(folder)]):
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


def test_there_is_an_example_for_each_tier() -> None:
    tiers = re.findall(r"^   \* - tests/(\w+)$", PAGE, re.MULTILINE)
    assert set(tiers) == {
        one.name for one in (ROOT / "tests").iterdir() if any(one.glob("test_*.py"))
    }
    titles = re.findall(r"^(\w+)\n-+$", PAGE, re.MULTILINE)
    # A machine takes minutes: the page names the fixture of that tier instead.
    assert titles == [one for one in tiers if one not in ("harness_selftest", "real")]
    assert hasattr(real, "node")
    assert "``node``" in PAGE
    assert len(EXAMPLES) == len(titles)


def test_every_module_of_the_harness_that_the_page_names_is_there() -> None:
    table = PAGE.partition("\nThe harness\n")[2].partition("\nReading a failure\n")[0]
    named = set(re.findall(r"(\w+\.py)", table))
    there = {one.name: one for one in (ROOT / "tests/harness").glob("*.py")}
    assert named <= there.keys()
    for path in there.values():
        assert path.read_text(encoding="utf-8").startswith(('"""', "#!")), path.name


def test_every_fixture_that_the_page_names_is_there() -> None:
    text = PAGE.partition("Fixtures that most tests need:")[2].partition("\n\n")[0]
    names = re.findall(r"``(\w+)``", text)
    assert len(names) > 5
    assert [name for name in names if not hasattr(fixtures, name)] == []


def test_every_program_that_the_page_names_is_there() -> None:
    for name in re.findall(r"``(tools/[\w.]+)", PAGE):
        assert (ROOT / name).exists()
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()


def test_the_page_says_how_tools_test_runs_them() -> None:
    script = (ROOT / "tools/test").read_text(encoding="utf-8")
    assert "--dist loadfile" in script
    for number, word in (("2", "two"), ("4", "four")):
        assert f"$(workers {number})" in script
        assert f"{word} modules at a time" in PAGE
    minimum = re.findall(r"^minimum=(.*)$", script, re.MULTILINE)[0]
    assert f"a coverage of {minimum} % of lines and branches" in " ".join(PAGE.split())
