"""The documentation, built once for all tests that look at it."""

from __future__ import annotations

import fcntl
import html
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "doc/source"


@dataclass(frozen=True)
class Pages:
    """The documentation, built."""

    html: Path
    man: Path

    def text(self, page: str) -> str:
        """The words of a page, on one line."""
        source = (self.html / f"{page}.html").read_text(encoding="utf-8")
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
    command = [sys.executable, "-W", "ignore", "-m", "sphinx", "-W", "--keep-going", "-q"]
    for kind in ("html", "man"):
        options = ["-b", kind, "-d", str(folder / "doctrees"), str(SOURCE), str(folder / kind)]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
