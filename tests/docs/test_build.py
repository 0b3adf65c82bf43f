"""The pages should build without a warning, and load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "doc/source"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as HTML."""
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-W", "ignore", "-m", "sphinx", "-W", "--keep-going", "-q", "-E"]
    options = ["-b", "html", "-d", str(folder / "doctrees"), str(SOURCE), str(folder)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("page", sorted(one.stem for one in SOURCE.glob("*.rst")))
def test_a_page_loads_nothing_from_elsewhere(built: Path, page: str) -> None:
    text = (built / f"{page}.html").read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
    assert loaded
    assert not [one for one in loaded if re.match(r"(https?:)?//", one)]


def test_no_style_sheet_loads_anything_from_elsewhere(built: Path) -> None:
    for sheet in (built / "_static").glob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//\S+", text), sheet.name


def test_the_picture_is_shown(built: Path) -> None:
    assert 'src="_images/pipeline.svg"' in (built / "pipeline.html").read_text(encoding="utf-8")
    assert (built / "_images/pipeline.svg").exists()
