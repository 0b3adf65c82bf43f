"""A run should repeat at most three failures of host, and report those that pass then as flaky."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.failures import Failure
from tools import test as runner

FIRST = "tests/host/e2e/test_a.py::test_first"
SECOND = "tests/host/e2e/test_b.py::test_second (setup)"


class Runs(runner.Outcome):
    """Runs of pytest whose failures are given."""

    def __init__(self, *failed: Sequence[str]) -> None:
        super().__init__()
        self.results = list(failed)
        self.calls: list[tuple[str, ...]] = []

    def pytest(self, *arguments: str, prefix: Sequence[str] = ()) -> list[Failure]:
        del prefix
        self.calls.append(arguments)
        return [Failure(name, "the log") for name in self.results.pop(0)]


@pytest.fixture(autouse=True)
def flaky_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of flaky tests, and a change that touches no test."""
    file = tmp_path / "flaky.jsonl"
    monkeypatch.setattr(runner, "FLAKY", file)
    monkeypatch.setattr(runner, "base", lambda: "HEAD~1")
    monkeypatch.setattr(runner, "changed_files", lambda _ref: set())
    monkeypatch.setattr(runner, "_git", lambda *_arguments: "abc\n")
    return file


def test_test_that_passes_alone_is_flaky_and_kept(flaky_file: Path) -> None:
    runs = Runs([FIRST, SECOND], [])
    runner.host(runs)
    assert runs.calls[1][:2] == (FIRST, SECOND.partition(" (")[0])
    assert [failure.name for failure in runs.flaky] == [FIRST, SECOND]
    assert runs.failed == []
    rows = [json.loads(line) for line in flaky_file.read_text().splitlines()]
    assert [(row["test"], row["error"]) for row in rows] == [
        (FIRST, "the log"),
        (SECOND, "the log"),
    ]


def test_second_failure_fails_the_run() -> None:
    runs = Runs([FIRST, SECOND], [FIRST])
    runner.host(runs)
    assert [failure.name for failure in runs.failed] == [FIRST]
    assert [failure.name for failure in runs.flaky] == [SECOND]


def test_four_failures_are_not_repeated() -> None:
    runs = Runs([f"tests/host/test_a.py::test_{n}" for n in range(4)])
    runner.host(runs)
    assert (len(runs.calls), len(runs.failed), runs.flaky) == (1, 4, [])


def test_failure_in_a_changed_file_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "changed_files", lambda _ref: {"tests/host/e2e/test_a.py"})
    runs = Runs([FIRST])
    runner.host(runs)
    assert (len(runs.calls), [failure.name for failure in runs.failed]) == (1, [FIRST])


def test_failure_of_core_is_not_repeated() -> None:
    runs = Runs(["tests/core/unit/test_a.py::test_first"])
    runner.core(runs)
    assert (len(runs.calls), len(runs.failed)) == (1, 1)
