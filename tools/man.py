"""Make the manual pages of etc/man from the pages of doc/source.

  tools/man           write them
  tools/man --check   exit with status 1 if one differs, in a word, from what would be written

They are files of the repository, so that ``pip install`` needs no Sphinx.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "etc/man"
MADE: Final = ROOT / ".cache/man"
DOCTREES: Final = ROOT / ".cache/pages"
"""Those of ``tools/test --lint``."""
_MARKUP: Final = re.compile(
    r"^(\.\\\"|\.TH|\.de|\.ft|\.\.$).*|^\.[A-Za-z]+ ?[\d.]*[a-z]?$", re.MULTILINE
)
_ESCAPE: Final = re.compile(r"\\(f.|[%&^|]|X'.*?')|^\.[A-Z]{1,2} ", re.MULTILINE)


def words(page: str) -> list[str]:
    """Return the words of a manual page, without markup: releases of docutils differ in that."""
    _head, _, text = page.partition(".SH NAME")
    return re.findall(r"\w+", _ESCAPE.sub("", _MARKUP.sub("", text)).lower())


def made() -> dict[Path, str]:
    """Make the pages in the cache; return their texts by the path below ``etc/man``."""
    shutil.rmtree(MADE, ignore_errors=True)
    source = str(ROOT / "doc/source")
    options = ["-W", "-q", "-b", "man", "-d", str(DOCTREES), source, str(MADE)]
    subprocess.run([sys.executable, "-m", "sphinx", *options], check=True)
    return {path.relative_to(MADE): path.read_text("utf-8") for path in MADE.glob("man?/*")}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    pages = made()
    present = {path.relative_to(PAGES): path for path in PAGES.glob("man?/*")}
    if "--check" not in arguments:
        for name, text in pages.items():
            (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
            (PAGES / name).write_text(text, encoding="utf-8")
        return 0
    stale = present.keys() ^ pages.keys()
    stale |= {
        name
        for name in present.keys() & pages.keys()
        if words(present[name].read_text(encoding="utf-8")) != words(pages[name])
    }
    for name in sorted(stale):
        print(f"etc/man/{name} is not what doc/source says: run tools/man", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
