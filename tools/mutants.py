"""Judge the tests of core by mutants: small faults in dfmeta that a test should notice.

The list of mutants is the same in each run: of all that can be made, those whose digest is lowest.
So a change of the product replaces only the mutants of the lines that it changes. A mutant is named
by its file, its function and the text of its statement, and is found again in another commit. The
tests that reach its line run in a process of their own, where an import hook changes the module; no
file of the product is written. A test kills a mutant if it fails or takes too long.

A line that no test reaches lets its mutants survive. Tests of documents are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.harness import reach
from tools import mutation
from tools.mutation import Mutant

ROOT: Final = Path(__file__).resolve().parents[1]
_FUNCTIONS, _SECONDS = 60, 40.0
"""Most test functions for a mutant, and about the most time of the CPU that they may take."""
_LIMIT: Final = 150
"""Seconds after which a mutant counts as killed."""
_FOLDERS: Final = (("tests/core/unit", "tests/core/flows"), ("tests/unit", "tests/flows"))
"""Core, by commit."""
_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) ([^\[\s]+)", re.MULTILINE)
_WRONG_USE: Final = 4
"""Exit status of pytest when it does not find a test."""


class Result(NamedTuple):
    """A mutant after its tests."""

    mutant: Mutant
    state: str
    """``killed``, ``survived``, ``not reached`` or ``absent`` in this commit."""
    line: int = 0
    killer: str = ""
    """The test that failed."""


class Core:
    """The tests of a commit, and what they reach."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Take the map of a folder, or make it there."""
        self._root = root
        if not any(folder.glob("*.json")):
            self._make(folder)
        self._reached = reach.read(folder)
        self._sizes = Counter(
            test
            for statements in self._reached.tests.values()
            for tests in statements
            for test in tests
        )

    def judge(self, mutant: Mutant) -> Result:
        """Run the tests that reach a mutant."""
        path = self._root / mutant.file
        change = mutation.change(mutant, path.read_bytes()) if path.exists() else None
        if change is None:
            return Result(mutant, "absent")
        tests = self._near(mutant.file, change[1])
        if not tests:
            return Result(mutant, "not reached", change[1])
        failed = self.failures(tests, mutant)
        return Result(mutant, "killed" if failed else "survived", change[1], "".join(failed[:1]))

    def failures(self, tests: Sequence[str], mutant: Mutant | None = None) -> list[str]:
        """Return the tests that fail; with a mutant, only the first."""
        if not tests:
            return []
        environment = os.environ | {"PYTHONPATH": str(ROOT / "tools")}
        options = ["-n0", "--timeout=60"]
        if mutant is not None:
            environment[mutation.MUTANT] = json.dumps(mutant)
            options += ["-x", "-p", "mutation"]
        process = subprocess.Popen(
            [*_PYTEST, *options, *tests],
            cwd=self._root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LIMIT if mutant else None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return ["(time limit)"]
        gone = {
            test
            for test in tests
            if re.search(rf"not found: .*{re.escape(test)}$", output, re.MULTILINE)
        }
        if process.returncode == _WRONG_USE and gone:  # since the map was made
            return self.failures([test for test in tests if test not in gone], mutant)
        return _FAILED.findall(output) or ["(no report)"] * (process.returncode != 0)

    def _make(self, folder: Path) -> None:
        options = ["-n2", "--dist=loadfile", "--timeout=300"]
        if not (self._root / "tests/harness/reach.py").exists():
            shutil.copy(reach.__file__, folder / "dfmeta_reach.py")
            options += ["-p", "dfmeta_reach"]
        environment = {"PYTHONPATH": str(folder), reach.FOLDER: str(folder)}
        folders = next(folder for folder in _FOLDERS if (self._root / folder[0]).exists())
        command = [*_PYTEST, *options, *folders]
        subprocess.run(command, cwd=self._root, env=os.environ | environment, check=False)

    def _near(self, file: str, line: int) -> list[str]:
        """Return tests that reach a line, the nearest first chosen: see _distance."""
        statements = self._reached.statements.get(file, [])
        tests: set[str] = set()
        for statement, reaching in zip(statements, self._reached.tests.get(file, []), strict=True):
            if not statement.inner and statement.first <= line <= statement.last:
                tests.update(*self._reached.tests[file])
            elif statement.first <= line <= statement.last:
                tests.update(reaching)
        tests -= self._reached.failed | {reach.IMPORT}
        chosen: list[str] = []
        seconds = 0.0
        for test in sorted(
            tests, key=lambda test: (_distance(file, test), self._sizes[test], test)
        ):
            seconds += self._reached.seconds[test]
            if len(chosen) == _FUNCTIONS or (chosen and seconds > _SECONDS):
                break
            chosen.append(test)
        return sorted(chosen)


def _distance(file: str, test: str) -> int:
    """Return 0 for the test file that is named as the module, 1 for the same package."""
    module, tests = Path(file), Path(test.partition("::")[0])
    if tests.stem == f"test_{module.stem}":
        return 0
    return 1 if tests.parent.name == module.parent.name or module.stem in tests.stem else 2


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Have the files of a commit in a folder, with the libraries and programs of this one."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # for programs that tests start as another user
        root = Path(folder, "dfmeta")
        subprocess.run([*git, "add", "--quiet", "--detach", root, commit], check=True)
        try:
            for name in (".cache", ".venv"):
                (root / name).symlink_to(ROOT / name)
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", root], check=True)


def _show(result: Result) -> None:
    mutant = result.mutant
    place = f"{mutant.file}:{result.line} {mutant.function} ({mutant.kind})"
    print(f"{result.state}: {place} {result.killer}")
    print(f"    - {mutant.before}\n    + {mutant.after}", flush=True)


def _judge(core: Core, mutants: Iterable[Mutant]) -> Iterator[Result]:
    """Yield the result of each mutant, and print those that are not killed."""
    with ThreadPoolExecutor(2) as pool:
        results = []
        for result in pool.map(core.judge, mutants):
            results.append(result)
            if result.state != "killed":
                _show(result)
    # A test that fails without a mutant as well has killed none.
    failures = core.failures(sorted({result.killer for result in results if "::" in result.killer}))
    for result in results:
        if result.state == "killed" and result.killer in failures:
            doubtful = result._replace(state="doubtful")
            _show(doubtful)
            yield doubtful
        else:
            yield result


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="tools/mutants", description=__doc__)
    parser.add_argument("--base", metavar="REF", help="measure this commit, with this list")
    parser.add_argument("--list", action="store_true", help="print the list, for --these")
    parser.add_argument("--these", type=Path, metavar="FILE", help="the list that --list printed")
    parser.add_argument("--only", default="", metavar="FILE", help="mutants of these modules alone")
    parser.add_argument("--number", type=int, default=200, help="mutants in the list; %(default)s")
    parser.add_argument("--map", type=Path, metavar="FOLDER", help="keep the map of tests here")
    given = parser.parse_args()
    if given.these:
        lines = given.these.read_text().splitlines()
        mutants = [
            mutant
            for mutant in (Mutant(*json.loads(line)) for line in lines)
            if given.only in mutant.file
        ]
    else:
        mutants = mutation.listed(ROOT, given.number, given.only)
    if given.list:
        print("\n".join(map(json.dumps, mutants)))
        return
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(_checkout(given.base)) if given.base else ROOT
        folder = given.map or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        core = Core(root, folder)
        counts = Counter(result.state for result in _judge(core, mutants))
    reached = counts["killed"] + counts["survived"]
    print(", ".join(f"{state} {number}" for state, number in counts.most_common()))
    for of, number in (("all", reached + counts["not reached"]), ("those reached", reached)):
        print(f"{100 * counts['killed'] / max(number, 1):.1f} % of {of} ({number}) are killed")


if __name__ == "__main__":
    main()
