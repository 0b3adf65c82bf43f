"""The end of a log names every test that failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.failures import LINES, SHOWN, Failure, printed, read
from tests.harness.netns import ROOT
from tests.harness.poll import wait_for

FAILING = """
import os
import pytest

@pytest.fixture
def broken():
    raise OSError("no such bridge")

@pytest.fixture
def untidy():
    yield
    raise OSError("it stays")

def test_good():
    pass

def test_long():
    raise AssertionError("\\n".join(f"line {n}" for n in range(100)))

def test_setup(broken):
    pass

def test_teardown(untidy):
    pass

def test_crash():
    os._exit(3)
"""
ENDLESS = """
import pathlib
import time

def test_endless():
    pathlib.Path(__file__).with_name("begun").touch()
    time.sleep(1000)
"""


def start(folder: Path, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run pytest on a module of its own, as tools/test does."""
    (folder / "test_it.py").write_text(module)
    options = ["--failures", str(folder / "failures"), "-c", "/dev/null", "--rootdir", str(folder)]
    # No others: to import each plugin that is installed takes longer than these tests.
    options += ["-p", "xdist", *arguments, str(folder / "test_it.py")]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.harness.failures", *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )


def failed(folder: Path) -> dict[str, str]:
    return {one.name: one.error for one in read(folder / "failures")}


def test_failures_of_workers_and_their_crashes_are_named(tmp_path: Path) -> None:
    with start(tmp_path, FAILING, "--numprocesses", "1") as process:
        assert process.wait(60) == 1
    errors = failed(tmp_path)
    assert errors.keys() == {
        "test_it.py::test_long",
        "test_it.py::test_setup (setup)",
        "test_it.py::test_teardown (teardown)",
        "test_it.py::test_crash",
    }
    assert "line 99" in errors["test_it.py::test_long"]
    assert "no such bridge" in errors["test_it.py::test_setup (setup)"]
    assert "it stays" in errors["test_it.py::test_teardown (teardown)"]
    crash = errors["test_it.py::test_crash"]
    assert "worker 'gw0' crashed while running 'test_it.py::test_crash'" in crash


def test_a_module_that_cannot_be_collected_is_named(tmp_path: Path) -> None:
    with start(tmp_path, "import nothing_of_this_name\n") as process:
        assert process.wait(60) == 2
    (error,) = failed(tmp_path).items()
    assert error[0] == "test_it.py (collection)"
    assert "nothing_of_this_name" in error[1]


def test_a_run_that_is_stopped_names_the_test_that_ran(tmp_path: Path) -> None:
    with start(tmp_path, ENDLESS) as process:
        wait_for((tmp_path / "begun").exists, "the test to begin")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 2
    assert failed(tmp_path).keys() == {"test_it.py::test_endless (ran when the run was stopped)"}


def test_ends_of_errors_come_first_and_all_names_last() -> None:
    found = [
        Failure(f"test_{n}", "\n".join(f"line {line} of {n}" for line in range(LINES + 5)))
        for n in range(SHOWN + 2)
    ]
    lines = list(printed(found))
    names = [f"FAILED test_{n}" for n in range(SHOWN + 2)]
    assert lines[-len(names) :] == names
    assert lines[:3] == ["-- test_0", "...", "line 5 of 0"]
    assert f"line {LINES + 4} of 0" in lines
    assert "line 4 of 0" not in lines
    assert f"-- test_{SHOWN}" not in lines


def test_a_check_can_be_added_to_what_tests_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.harness.failures", str(tmp_path / "failures")]
    subprocess.run([*command, "ruff"], cwd=ROOT, input=b"E501 in x.py", check=True)
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out == "-- ruff\nE501 in x.py\nFAILED ruff\n"
