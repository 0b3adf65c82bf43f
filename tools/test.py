"""Check style and types, and run the tests of the tiers core and host.

  tools/test                    everything that has to pass
  tools/test --lint             style and types alone
  tools/test --changed [REF]    tests of core that reach the lines changed since REF
                                (default: the last whole run), and the changed tests
  tools/test tests/core -k key  pytest alone, with these arguments

A failed test of host runs once more, alone, at the end; see doc/source/testing.rst. The last line
is "N passed, N failed", where a check that fails counts as one. The exit status is 0 only if
nothing failed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.harness import failures, reach  # noqa: E402

CACHE = ROOT / ".cache"
REACH = CACHE / "reach"
"""Which tests of core reach which lines, since the last whole run."""
REACH_COMMIT = CACHE / "reach.commit"
FLAKY = CACHE / "flaky.jsonl"
"""A line for each test that failed once: when, its name, the commit and the first failure."""
RETRIED = 3
"""The most tests of a run that run once more."""
WORKERS = {"core": 2, "host": 4}
"""Processes of pytest. Tests of host wait for a part of their time."""
_COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")


@dataclass
class Outcome:
    """What has passed and failed so far."""

    passed: int = 0
    failed: list[failures.Failure] = field(default_factory=list)
    flaky: list[failures.Failure] = field(default_factory=list)

    def check(self, name: str, command: Sequence[str]) -> None:
        """Run a command, which passes or fails as a whole."""
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"== {name}\n{done.stdout}{done.stderr}", end="", flush=True)
        if done.returncode == 0:
            self.passed += 1
        else:
            self.failed.append(failures.Failure(name, done.stdout + done.stderr))

    def pytest(self, *arguments: str, prefix: Sequence[str] = ()) -> list[failures.Failure]:
        """Run pytest, and return what failed; the caller adds it."""
        with tempfile.NamedTemporaryFile(mode="w", suffix=".jsonl") as file:
            # A user without rights writes it too.
            Path(file.name).chmod(0o666)
            command = [*prefix, sys.executable, "-m", "pytest", "--failures", file.name]
            print(f"== pytest {' '.join(arguments)}", flush=True)
            status, last = _run([*command, *arguments])
            failed = failures.read(Path(file.name))
        counts = {kind.rstrip("s"): int(number) for number, kind in _COUNT.findall(last)}
        self.passed += counts.get("passed", 0)
        if status and not failed:
            failed = [failures.Failure(f"pytest {' '.join(arguments)} (status {status})", last)]
        return failed

    def report(self) -> int:
        """Print what failed, and the counts; return the exit status."""
        if self.flaky:
            print(f"== flaky (kept in {FLAKY.relative_to(ROOT)})")
            print("\n".join(failures.printed(self.flaky)))
            print(FLAKY.read_text(encoding="utf-8"), end="")
        if self.failed:
            print("== failed")
            print("\n".join(failures.printed(self.failed)))
        print(f"{self.passed} passed, {len(self.failed)} failed", flush=True)
        return 1 if self.failed else 0


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command with its output shown; return its status and its last line."""
    last = ""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.wait(), last


def lint(outcome: Outcome) -> None:
    """Check style and types."""
    outcome.check("shellcheck", ["shellcheck", "--external-sources", *_scripts()])
    outcome.check("ruff check", ["ruff", "check", "--quiet", "."])
    outcome.check("ruff format", ["ruff", "format", "--quiet", "--check", "."])
    outcome.check("names", [sys.executable, "tools/names.py"])
    pages = ["-W", "--keep-going", "-q", "-b", "dummy", "-d", ".cache/pages", "doc/source"]
    outcome.check("pages", ["sphinx-build", *pages, ".cache/pages"])
    outcome.check("manual pages", [sys.executable, "tools/man.py", "--check"])
    outcome.check("release notes", ["reno", "--quiet", "lint"])
    typed = ["dfmeta", "tests/harness", "tests/host/selftest", "tests/soak/real"]
    programs = [str(path) for path in sorted((ROOT / "tools").glob("*.py"))]
    programs.append(str(ROOT / "tools/dfmeta-cni-zip"))
    options = ["--no-error-summary", "--explicit-package-bases"]
    outcome.check("mypy", ["mypy", *options, *typed, "tests/conftest.py", *programs])


def _scripts() -> list[str]:
    """Return every shell script of the repository, by its first line."""
    listed = subprocess.run(
        ["git", "ls-files", ".ci", "bench", "devstack", "etc", "tests", "tools"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    scripts = []
    for name in listed.stdout.splitlines():
        with (ROOT / name).open("rb") as file:
            if re.match(rb"#!.*sh$|# shellcheck shell=", file.readline().rstrip()):
                scripts.append(name)
    return scripts


def core(outcome: Outcome, *arguments: str) -> None:
    """Run the tests of core, as a user without any rights where this one has them."""
    rootless = ["unshare", "--user", "--"] if os.geteuid() == 0 else []
    chosen = arguments or ("tests/core",)
    outcome.failed += outcome.pytest(
        *chosen, *_spread("core"), "--timeout=60", "-p", "no:cacheprovider", prefix=rootless
    )


def host(outcome: Outcome) -> None:
    """Run the tests of host, and those that failed once more, alone."""
    failed = outcome.pytest("tests/host", *_spread("host"), "--timeout=180")
    names = list(dict.fromkeys(failure.name.partition(" (")[0] for failure in failed))
    again = len(names) <= RETRIED and not any(_is_changed(name) for name in names)
    if not names or not again:
        outcome.failed += failed
        return
    second = outcome.pytest(*names, "--timeout=180", "-n0")
    outcome.failed += second
    twice = {failure.name.partition(" (")[0] for failure in second}
    outcome.flaky = [failure for failure in failed if failure.name.partition(" (")[0] not in twice]
    _keep(outcome.flaky)


def _spread(tier: str) -> list[str]:
    return ["-q", "-n", str(WORKERS[tier]), "--dist", "loadfile", "--no-loadscope-reorder"]


def _is_changed(test: str) -> bool:
    """Return whether the change touches the file of a test: its first failure counts."""
    return test.partition("::")[0] in changed_files(base())


def _keep(flaky: Iterable[failures.Failure]) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    commit = _git("rev-parse", "--short", "HEAD").strip()
    with FLAKY.open("a", encoding="utf-8") as file:
        for failure in flaky:
            row = {"time": now, "test": failure.name, "commit": commit, "error": failure.error}
            file.write(json.dumps(row) + "\n")


def base() -> str:
    """Return the commit that the change begins from: upstream's, or else the one before."""
    upstream = _git("merge-base", "HEAD", "@{upstream}", check=False).strip()
    head = _git("rev-parse", "HEAD").strip()
    return upstream if upstream and upstream != head else "HEAD~1"


def changed_files(ref: str) -> set[str]:
    """Return the paths that differ from a commit, new ones among them."""
    differ = _git("diff", "--name-only", ref, check=False)
    return {*differ.split("\n"), *_git("ls-files", "-o", "--exclude-standard").split("\n")} - {""}


def changed_lines(ref: str) -> dict[str, set[int]]:
    """Return the lines of dfmeta that differ, by the numbers that they had at the commit."""
    lines: dict[str, set[int]] = {}
    path = ""
    for line in _git("diff", "--unified=0", ref, "--", "dfmeta").splitlines():
        if line.startswith("--- "):
            path = line.removeprefix("--- a/")
        elif hunk := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + max(count, 1)))
    return lines


def changed(outcome: Outcome, ref: str) -> None:
    """Run the tests of core that reach the changed lines, and the tests that changed."""
    reaching = reach.tests_of(reach.load(REACH), changed_lines(ref))
    tests = [change for change in changed_files(ref) if re.search(r"(^|/)test_\w+\.py$", change)]
    present = [test for test in tests if (ROOT / test).exists()]
    chosen = [test for test in reaching if test.partition("::")[0] not in present]
    chosen = sorted(test for test in chosen if (ROOT / test.partition("::")[0]).exists())
    chosen += [test for test in present if test.startswith("tests/core/")]
    if chosen:
        core(outcome, *chosen)
    if others := [test for test in present if not test.startswith("tests/core/")]:
        outcome.failed += outcome.pytest(*others, *_spread("host"), "--timeout=180")


def _git(*arguments: str, check: bool = True) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=check).stdout


def everything(outcome: Outcome) -> None:
    """Run all checks and tests, and write the map of core."""
    started = time.monotonic()
    checks = Thread(target=lint, args=[outcome])
    checks.start()
    REACH.mkdir(parents=True, exist_ok=True)
    for old in REACH.iterdir():
        old.unlink()
    os.environ[reach.FOLDER] = str(REACH)
    core(outcome)
    checks.join()
    del os.environ[reach.FOLDER]
    REACH_COMMIT.write_text(_git("rev-parse", "HEAD"), encoding="ascii")
    subprocess.run([sys.executable, "-m", "tests.harness.reach", str(REACH)], cwd=ROOT, check=False)
    host(outcome)
    print(f"== {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say."""
    if "--help" in arguments:
        print(__doc__)
        return 0
    # Nothing of this machine decides: programs, language, time zone and home.
    os.environ["PATH"] = f"{ROOT}/.venv/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.environ |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    # Each process of pytest imports what the first one has compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    outcome = Outcome()
    try:
        if not arguments:
            everything(outcome)
        elif arguments[0] == "--lint":
            lint(outcome)
        elif arguments[0] == "--changed":
            changed(
                outcome, arguments[1] if len(arguments) > 1 else REACH_COMMIT.read_text().strip()
            )
        else:
            outcome.failed += outcome.pytest(*arguments)
    finally:
        # Namespaces and folders that killed processes have left.
        subprocess.run([sys.executable, "-m", "tests.harness.netns"], cwd=ROOT, check=False)
    return outcome.report()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
