"""The documentation, built once for all tests that look at it."""

from __future__ import annotations

import fcntl
import html
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "doc/source"
KINDS = ("html", "man")
# Trees of documents stay to the end: to look for garbage in them takes a third of the time. The
# second kind has all that the first has read.
_PROGRAM = f"""
import gc, os, sys
from sphinx.cmd.build import main
gc.disable()
*options, folder = sys.argv[1:]
for kind in {KINDS}:
    if status := main(["-b", kind, *options, os.path.join(folder, kind)]):
        sys.exit(status)
"""


@dataclass(frozen=True)
class Pages:
    """The documentation, built."""

    html: Path
    man: Path

    def text(self, page: str) -> str:
        """The words of a page, on one line."""
        return _words(self.html / f"{page}.html")


@cache
def _words(page: Path) -> str:
    source = page.read_text(encoding="utf-8")
    body = source[source.index('role="main"') : source.index("</article>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", body)).split())


def build(folder: Path) -> Pages:
    """Build them into a folder, unless another process has, or is doing so."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build(folder)
            (folder / "done").touch()
    return Pages(folder / "html", folder / "man")


def _build(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, "-W", "--keep-going", "-q"]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(SOURCE), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
