"""The index should have a line on each page, and say what the demo does to a machine."""

from __future__ import annotations

import re

from tests.harness.netns import ROOT

SOURCE = ROOT / "doc/source"
INDEX = (SOURCE / "index.rst").read_text(encoding="utf-8")


def test_each_page_of_the_index_has_a_line() -> None:
    listed = re.findall(r"^   ([\w-]+)$", INDEX, re.MULTILINE)
    said = re.findall(r"^\* :doc:`([\w-]+)`: \S.*\.$", INDEX, re.MULTILINE)
    assert len(listed) > 30
    assert said == listed


def test_the_index_says_what_the_demo_installs() -> None:
    setup = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    assert "apt install" in setup
    assert "That demo installs Debian packages that are missing" in " ".join(INDEX.split())
    assert "without installing" not in INDEX
