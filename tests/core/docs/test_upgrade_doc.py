"""The page on upgrades should have the formats and names of today."""

from __future__ import annotations

import re
from pathlib import Path

from dfmeta import conf
from dfmeta.cmd.central import GRACE
from dfmeta.flows.pipeline import COOKIE_VERSION
from dfmeta.state import FILE, VERSION
from dfmeta.store.db.schema import HEAD, REVISIONS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/upgrade.rst").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_the_formats_are_those_of_the_code() -> None:
    assert f"version {COOKIE_VERSION} in the cookie" in TEXT
    assert f"``{FILE}`` in ``state_path`` - format {VERSION} " in TEXT
    assert f"schema {HEAD} " in TEXT
    assert f"dfmeta store schema --to {REVISIONS[-2]}" in TEXT
    assert f"closed after {round(GRACE)} seconds" in TEXT


def test_every_former_name_of_an_option_is_listed_and_no_other() -> None:
    known = {
        (f"[{one.group or group or 'DEFAULT'}] {one.name}", f"[{group or 'DEFAULT'}] {option.name}")
        for group, options in conf.own_opts()
        for option in options
        for one in option.deprecated_opts
    }
    assert set(re.findall(r"^   \* - ``(\[.+)``\n     - ``(.+)``\n", PAGE, re.MULTILINE)) == known
