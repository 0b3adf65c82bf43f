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
ALL_RUN = {
    "executed_lines": [1],
    "missing_lines": [],
    "executed_branches": [],
    "missing_branches": [],
}
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
    measured = json.loads(path.read_text())
    files = measured["files"]
    assert files[MODULE]["executed_lines"]
    assert files[MODULE]["missing_lines"], "functions that nothing has called"
    assert "dfmeta/registry.py" not in files
    # To read all of dfmeta takes seconds: another process has run all but a part of it.
    others = [one for one in (ROOT / "dfmeta").rglob("*.py") if one.parent.name != "flows"]
    assert others
    measured["files"] = {str(one.relative_to(ROOT)): ALL_RUN for one in others}
    (tmp_path / "other.json").write_text(json.dumps(measured))
    for minimum, status in (("0", 0), ("90", 1)):
        report = run(tmp_path, "-m", "tests.harness.measured", minimum)
        assert report.returncode == status, report.stderr
        *modules, total = report.stdout.splitlines()
        assert len(modules) == 15
        assert all(one.startswith("  0.0 %  dfmeta/flows/") for one in modules)
        assert total.endswith("of lines and branches")


def test_without_a_folder_nothing_is_changed(tmp_path: Path) -> None:
    program = f"import os\ndel os.environ[{FOLDER!r}]\n" + PROGRAM
    assert run(tmp_path, "-c", program).returncode == 0
    assert list(tmp_path.iterdir()) == []
