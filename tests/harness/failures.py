"""A pytest plugin that writes failures to a file, for the end of a long log.

``--failures FILE`` adds a line of JSON for each test that failed, each module that could not be
collected, and each worker that crashed while it ran a test. ``python -m tests.harness.failures
FILE`` prints them: the end of each error, then all names, so that the last lines of a log name
every failed test. ``tools/test`` collects the failures of all its runs this way.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

LINES = 30
"""Number of lines of an error that are printed, from its end."""
SHOWN = 20
"""Number of errors that are printed; further failures are printed by name only."""


@dataclass(frozen=True)
class Failure:
    """The name of a test or a check, and its error."""

    name: str
    error: str


class Recorder:
    """Appends each failure to a file at once, so that a killed run keeps earlier failures."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: dict[str, None] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember that a test runs."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget a test that has ended."""
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test that failed, or the test that ran while its worker crashed."""
        if report.failed:
            # xdist's own report of a crash has the phase "???" and names the worker.
            part = f" ({report.when})" if report.when in ("setup", "teardown") else ""
            self._add(f"{report.nodeid}{part}", report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that could not be collected."""
        if report.failed:
            self._add(f"{report.nodeid} (collection)", report.longreprtext)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Record an error of pytest itself or of a plugin."""
        self._add("pytest (internal error)", str(excrepr))

    def pytest_keyboard_interrupt(self) -> None:
        """Record the tests that ran when the run was stopped, for example by a time limit."""
        for nodeid in self._running:
            self._add(f"{nodeid} (ran when the run was stopped)", "")

    def _add(self, name: str, error: str) -> None:
        append(self._path, Failure(name, error))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file."""
    parser.addoption("--failures", type=Path, help="append failures to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Record failures only in the process that the workers report to."""
    path = config.getoption("--failures")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


def append(path: Path, failure: Failure) -> None:
    """Add a failure to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(failure)) + "\n")


def read(path: Path) -> list[Failure]:
    """Return all failures in the file, in their order."""
    return [Failure(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def printed(failures: Iterable[Failure]) -> Iterator[str]:
    """Yield the lines to print: ends of errors, then the name of each failure."""
    result = list(failures)
    for line in result[:SHOWN]:
        lines = line.error.splitlines()
        yield f"-- {line.name}"
        if len(lines) > LINES:
            yield "..."
        yield from lines[-LINES:]
    yield from (f"FAILED {failure.name}" for failure in result)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        append(Path(sys.argv[1]), Failure(sys.argv[2], sys.stdin.read()))
    else:
        sys.stdout.writelines(f"{line}\n" for line in printed(read(Path(sys.argv[1]))))
