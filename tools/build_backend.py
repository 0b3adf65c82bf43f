"""What pip and ``build`` call: setuptools, with ``CHANGELOG.rst`` in a source distribution.

Only a source distribution of a checkout needs reno.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from tools.changelog import CHANGELOG, changelog, in_git

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

RENO: Final = "reno>=4.1,<5"


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the packages that a source distribution needs besides those of pyproject.toml."""
    return [
        *build_meta.get_requires_for_build_sdist(config_settings),
        *([RENO] if in_git() else []),
    ]


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build a source distribution, and return the name of its file."""
    if text := changelog():
        CHANGELOG.write_text(text, encoding="utf-8")
    else:
        print("This copy has no git: the source distribution gets no changelog", file=sys.stderr)
    return str(build_meta.build_sdist(sdist_directory, config_settings))
