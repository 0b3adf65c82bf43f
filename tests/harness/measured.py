"""Coverage of dfmeta by the tests, with SlipCover.

It changes modules as they are imported, so that a test takes as long as without it. Where
``DFMETA_TEST_COVERAGE`` names a directory, each process of pytest writes there what it has run; a
fork of one that has imported dfmeta continues its measurement. The programs that tests start are
not measured.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import slipcover

from tests.harness.netns import ROOT

FOLDER: Final = "DFMETA_TEST_COVERAGE"
"""Environment variable."""
_SOURCE: Final = ROOT / "dfmeta"
_EXCLUDED: Final = ["raise NotImplementedError", "@overload", r"\.\.\.$"]
"""Lines that no test has to reach, further to ``if TYPE_CHECKING``."""
_NEVER: Final = 1 << 30
"""Hits of a line after which its module is changed back; that takes longer than it saves."""
_SHOWN: Final = 15
"""Modules that a report shows, the least covered ones."""
_measurement: Any = None


def begin() -> None:
    """Measure dfmeta's modules that are imported from now on, where it is wanted."""
    global _measurement
    if FOLDER in os.environ and _measurement is None:
        _measurement = _new()
        matcher = slipcover.FileMatcher(sources=[str(_SOURCE)])
        slipcover.ImportManager(_measurement, matcher).__enter__()
        slipcover.wrap_spec_from_file_location(_measurement, matcher)  # Alembic's migrations


def save() -> None:
    """Write what this process has run, if it is measured."""
    if _measurement is not None:
        text = json.dumps(_measurement.get_coverage())
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(text)


def main() -> int:
    """Print the coverage: ``measured.py MINIMUM``; return 1 if it is less, in percent."""
    total = _new().get_coverage()
    for path in Path(os.environ[FOLDER]).glob("*.json"):
        slipcover.merge_coverage(total, json.loads(path.read_text()))
    # Of modules that a process has imported, the lines and branches are known.
    known = [str(ROOT / name) for name in total["files"]]
    slipcover.merge_coverage(total, _new(source=[str(_SOURCE)], omit=known).get_coverage())
    percent = {name: one["summary"]["percent_covered"] for name, one in total["files"].items()}
    for name in sorted(percent, key=percent.__getitem__)[:_SHOWN]:
        one = total["files"][name]
        lines = ",".join(map(str, one["missing_lines"]))
        branches = ",".join(f"{begin}->{end}" for begin, end in one["missing_branches"])
        sys.stdout.write(f"{percent[name]:5.1f} %  {name}  {lines}  {branches}\n")
    covered = float(total["summary"]["percent_covered"])
    sys.stdout.write(f"{covered:5.1f} %  of lines and branches\n")
    return covered < float(sys.argv[1])


def _new(**of: list[str]) -> Any:
    return slipcover.Slipcover(branch=True, d_miss_threshold=_NEVER, exclude_also=_EXCLUDED, **of)


if __name__ == "__main__":
    sys.exit(main())
