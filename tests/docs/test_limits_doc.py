"""doc/source/limits.rst should say what the code has, and this check should notice when not."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from dfmeta import conf
from tests.docs.limits_page import Row, faults, rows
from tests.harness import ovs
from tests.harness.netns import run
from tests.harness.neutron_agent import PYTHON

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "doc/source/limits.rst").read_text(encoding="utf-8")
ROWS = rows(PAGE)
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")


def test_each_number_is_the_codes() -> None:
    assert faults(PAGE) == []


def test_each_row_is_read() -> None:
    tables = PAGE.split("     - above it\n")[1:]
    marks = (re.findall(r"^   \* - ", one.partition("\n\n")[0], re.MULTILINE) for one in tables)
    wanted = sum(map(len, marks))
    assert len(ROWS) == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.held_by)
def test_another_number_is_noticed(row: Row) -> None:
    place = PAGE.index(f"``{row.held_by}``")
    start = PAGE.rindex("\n     - ", 0, place - 8)
    damaged = PAGE[:start] + "\n     - 987654321\n     - " + PAGE[place:]
    assert [one for one in faults(damaged) if one.startswith(row.what)]


def test_what_is_not_there_is_not_there() -> None:
    names = {one.name for _group, options in conf.own_opts() for one in options}
    wrong = f"{PAGE}\n   There is no option ``port``.\n"
    assert [names & {*re.findall(r"no option ``(\w+)``", one)} for one in (PAGE, wrong)] == [
        set(),
        {"port"},
    ]


def test_the_versions_are_those_of_the_tests() -> None:
    wanted = SETUP["options"]["python_requires"].removeprefix(">=")
    assert f"{wanted} or newer" in PAGE
    declared = re.findall(r"Python :: (3\.\d+)", SETUP["metadata"]["classifiers"])
    assert f"{', '.join(declared[:-1])} and {declared[-1]} are declared" in " ".join(PAGE.split())
    vswitchd = ovs.UNPACKED / "usr/lib/openvswitch-switch/ovs-vswitchd"
    (number,) = re.findall(r"\(Open vSwitch\) (\S+)", run([str(vswitchd), "--version"]).stdout)
    assert f"- {number}, userspace" in PAGE
    command = "from importlib.metadata import version; print(version('neutron'))"
    assert f"- {run([str(PYTHON), '-I', '-c', command]).stdout.strip()}, its own" in PAGE
