"""doc/source/pipeline.rst should show each flow as ovs-ofctl prints it."""

import re

from tests.harness.netns import ROOT
from tests.host.docs.printing import PLACEHOLDERS, cases, printed, unwrapped

PAGE = (ROOT / "doc/source/pipeline.rst").read_text(encoding="utf-8")
BLOCK = re.compile(r"\.\. code-block:: text\n   :name: (\S+)\n\n((?:   .*\n)+)")


def test_page_has_each_flow_as_the_switch_prints_it() -> None:
    flows = {name: case.flow for name, case in cases().items()}
    lines = dict(zip(flows, printed(flows.values()), strict=True))
    blocks = {name: unwrapped(text) for name, text in BLOCK.findall(PAGE)}
    assert blocks == lines
    assert [name for name in PLACEHOLDERS if f"``{name}``" not in PAGE] == []
