"""Coverage should have what the tests have run, and fail below the minimum."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.harness.measured import FOLDER
from tests.harness.netns import ROOT

MODULE = "dfmeta/state.py"
PROGRAM = """
import os, sys
from tests.harness import measured
measured.begin()
import dfmeta.state
if not os.fork():
    measured.save()
    os._exit(0)
os.wait()
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, FOLDER: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_fork_writes_what_was_run_before_and_a_report_adds_the_rest(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", PROGRAM).returncode == 0
    (path,) = tmp_path.glob("*.json")
    files = json.loads(path.read_text())["files"]
    assert files[MODULE]["executed_lines"]
    assert files[MODULE]["missing_lines"], "functions that nothing has called"
    assert "dfmeta/registry.py" not in files
    for minimum, status in (("0", 0), ("90", 1)):
        report = run(tmp_path, "-m", "tests.harness.measured", minimum)
        assert report.returncode == status, report.stderr
        *modules, total = report.stdout.splitlines()
        assert len(modules) == 15
        assert modules[0].startswith("  0.0 %")
        assert total.endswith("of lines and branches")


def test_without_a_folder_nothing_is_changed(tmp_path: Path) -> None:
    program = f"import os\ndel os.environ[{FOLDER!r}]\n" + PROGRAM
    assert run(tmp_path, "-c", program).returncode == 0
    assert list(tmp_path.iterdir()) == []
