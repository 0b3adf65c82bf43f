"""doc/source/store-central.rst should say what dfmeta-store does."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from dfmeta import conf
from dfmeta.cmd import central
from dfmeta.conf.daemons import READS, RELOADED, STORE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/store-central.rst").read_text(encoding="utf-8")
CODE = ast.parse((ROOT / "dfmeta/cmd/central.py").read_text(encoding="utf-8"))
TEXT = " ".join(PAGE.split())
UNIT = (ROOT / "etc/systemd/dfmeta-store.service").read_text(encoding="utf-8")
OPTIONS = {one.name: one for _group, options in conf.own_opts() for one in options}


def calls(name: str) -> list[ast.Call]:
    """Calls of a method by that name."""
    return [
        node
        for node in ast.walk(CODE)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    ]


def texts(call: ast.Call) -> list[Any]:
    """Its arguments that are written out."""
    return [one.value for one in call.args if isinstance(one, ast.Constant)]


def test_what_the_page_says_of_a_reload_holds() -> None:
    fixed = READS[STORE] - RELOADED[STORE]
    assert {("store", "connection"), ("store", "guest_listen")} <= fixed
    assert {("df_metadata", "admin_listen"), ("df_metadata", "state_path")} <= fixed
    assert ("store", "token_file") in RELOADED[STORE]
    assert ("store", "lookup_base_url") in RELOADED[STORE]


def test_the_page_names_what_readiness_can_miss() -> None:
    names = [texts(call)[0] for call in calls("watch") if texts(call)]
    assert names == ["threads", "store", "proxy"]
    assert f"what is missing: {', '.join(f'``{name}``' for name in names)}" in TEXT


def test_the_page_has_the_time_that_it_takes_to_end() -> None:
    assert f"after {central.GRACE:g} seconds" in TEXT


def test_the_pages_examples_are_options_that_there_are() -> None:
    blocks = re.findall(r"\.\. code-block:: ini\n\n((?:    .*\n|\n)+)", PAGE)
    names = [name for block in blocks for name in re.findall(r"^ +(\w+) = ", block, re.MULTILINE)]
    assert {"guest_listen", "trusted_proxies", "admin_listen"} <= set(names) <= OPTIONS.keys()


def test_the_unit_has_a_user_of_its_own_and_no_capability() -> None:
    assert "dfmeta-store --config-file /etc/dfmeta/dfmeta-store.conf" in UNIT
    assert re.search(r"^User=(?!root)\w+$", UNIT, re.MULTILINE)
    assert "CAP_" not in UNIT
    assert re.search(r"^CapabilityBoundingSet=$", UNIT, re.MULTILINE)
    assert "Type=notify" in UNIT
