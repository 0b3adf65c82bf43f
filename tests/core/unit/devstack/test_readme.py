"""The page of devstack's plugin should have its settings and its phases."""

import re
from pathlib import Path

PLUGIN = Path(__file__).parents[4] / "devstack"


def test_the_page_has_every_setting_with_its_default_and_every_phase() -> None:
    page = (PLUGIN / "README.rst").read_text(encoding="utf-8")
    table = re.findall(r"^   \* - ``(\w+)``\n     -(?: ``(.+)``)?\n", page, re.MULTILINE)
    settings = (PLUGIN / "settings").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^(\w+)=\$\{\1:-(.+)\}$", settings, re.MULTILINE))
    assert len(defaults) > 5
    assert dict(table) == {**defaults, "METADATA_PROXY_SHARED_SECRET": ""}
    plugin = (PLUGIN / "plugin.sh").read_text(encoding="utf-8")
    phases = {
        phase.strip() for phase in re.findall(r'^ *"([a-z -]+)"\*?\) ?', plugin, re.MULTILINE)
    }
    assert len(phases) == 7
    for phase in phases:
        assert f"   * - ``{phase}``\n" in page
