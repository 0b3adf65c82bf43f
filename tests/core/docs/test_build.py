"""The pages should build without a warning, and load nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.core.docs.built import Pages

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "doc/source"


PAGES = sorted(str(one.relative_to(SOURCE).with_suffix("")) for one in SOURCE.rglob("*.rst"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_from_elsewhere(pages: Pages, page: str) -> None:
    text = (pages.html / f"{page}.html").read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
    assert loaded
    assert not [one for one in loaded if re.match(r"(https?:)?//", one)]


def test_no_style_sheet_loads_anything_from_elsewhere(pages: Pages) -> None:
    for sheet in (pages.html / "_static").glob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//\S+", text), sheet.name


def test_the_picture_is_shown(pages: Pages) -> None:
    text = (pages.html / "pipeline.html").read_text(encoding="utf-8")
    assert 'src="_images/pipeline.svg"' in text
    assert (pages.html / "_images/pipeline.svg").exists()
