"""Each example of doc/source/testing.rst is a test that passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.console import blocks
from tests.harness.netns import ROOT

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


def test_examples_pass(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "pytest", f"--rootdir={ROOT}"]
    ran = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), *SETTINGS, *PLUGINS, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    passed = sum(text.count("\ndef test_") for text in EXAMPLES.values())
    assert f"\n{passed} passed" in ran.stdout


def test_examples_have_the_style_of_the_tests(folder: Path) -> None:
    configured = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    ruff = str(Path(sys.executable).with_name("ruff"))
    # S101: these are tests, though not below tests/.
    checked = [ruff, "check", *configured, "--ignore", "S101", str(folder)]
    for command in (checked, [ruff, "format", "--check", *configured, str(folder)]):
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout
