"""The changelog, which reno writes from the release notes and the tags of git.

A source distribution has it as ``CHANGELOG.rst``, since there is no git in it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CHANGELOG: Final = ROOT / "CHANGELOG.rst"
NOTES: Final = ROOT / "releasenotes/notes"


def in_git() -> bool:
    """Return whether this is a checkout, whose history has the versions of the notes."""
    return (ROOT / ".git").exists()


def changelog() -> str:
    """Return the changelog as reStructuredText; empty in a copy that has neither git nor file."""
    if not in_git():
        return CHANGELOG.read_text(encoding="utf-8") if CHANGELOG.exists() else ""
    from reno import config, formatter, loader

    logging.getLogger("reno").setLevel(logging.WARNING)
    conf = config.Config(str(ROOT))
    with loader.Loader(conf) as notes:
        text: str = formatter.format_report(
            notes, conf, notes.versions, title="Changelog", show_source=False
        )
    # reno's name for all before the first tag.
    return text.replace("\n0.0.0\n=====\n", "\nUnreleased\n==========\n")
