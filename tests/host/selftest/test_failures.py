"""A log should name every test that failed, and a test of core that uses a process should fail."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.failures import LINES, SHOWN, Failure, printed, read
from tests.harness.netns import ROOT

FAILING = """
import os
import pytest

@pytest.fixture
def broken():
    raise OSError("no such bridge")

def test_good():
    pass

def test_long():
    raise AssertionError("\\n".join(f"line {n}" for n in range(100)))

def test_setup(broken):
    pass

def test_crash():
    os._exit(3)
"""
PROCESS = """
import contextlib
import subprocess
import time

def test_process():
    with contextlib.suppress(Exception):
        subprocess.run(["true"], check=True)

def test_pause():
    time.sleep(0)

def test_neither():
    pass
"""


@contextmanager
def start(folder: Path, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run pytest on a module of its own, as tools/test does; it ends with the test."""
    (folder / "test_it.py").write_text(module)
    options = ["--failures", str(folder / "failures"), "-c", "/dev/null", "--rootdir", str(folder)]
    options += ["-p", "xdist", *arguments, str(folder / "test_it.py")]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.harness.failures", *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def failed(folder: Path) -> dict[str, str]:
    return {failure.name: failure.error for failure in read(folder / "failures")}


def test_failures_and_crashes_of_workers_are_named(tmp_path: Path) -> None:
    with start(tmp_path, FAILING, "--numprocesses", "1") as process:
        assert process.wait() == 1
    errors = failed(tmp_path)
    assert errors.keys() == {
        "test_it.py::test_long",
        "test_it.py::test_setup (setup)",
        "test_it.py::test_crash",
    }
    assert "line 99" in errors["test_it.py::test_long"]
    assert "no such bridge" in errors["test_it.py::test_setup (setup)"]
    crash = errors["test_it.py::test_crash"]
    assert "worker 'gw0' crashed while running 'test_it.py::test_crash'" in crash


def test_ends_of_errors_come_first_and_all_names_last() -> None:
    failures = [
        Failure(f"test_{n}", "\n".join(f"line {line} of {n}" for line in range(LINES + 5)))
        for n in range(SHOWN + 2)
    ]
    lines = list(printed(failures))
    names = [f"FAILED test_{n}" for n in range(SHOWN + 2)]
    assert lines[-len(names) :] == names
    assert lines[:3] == ["-- test_0", "...", "line 5 of 0"]
    assert f"-- test_{SHOWN}" not in lines


@pytest.fixture
def module_of_core() -> Path:
    """A module in the folder of core, which the test removes."""
    return ROOT / "tests/core/unit" / f"test_made_{os.getpid()}.py"


def test_core_test_with_process_or_pause_fails(module_of_core: Path, tmp_path: Path) -> None:
    module_of_core.write_text(PROCESS)
    try:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        options = ["--failures", str(tmp_path / "failures"), str(module_of_core)]
        assert subprocess.run([*command, *options], cwd=ROOT, check=False).returncode == 1
    finally:
        module_of_core.unlink()
    errors = {name.partition("::")[2]: error for name, error in failed(tmp_path).items()}
    assert errors.keys() == {"test_process", "test_pause"}
    assert "may not use subprocess.Popen" in errors["test_process"]
    assert "may not use time.sleep" in errors["test_pause"]
