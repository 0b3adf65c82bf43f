"""The pages on migration should say what Neutron's code and dfmeta's have."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from dfmeta import conf
from dfmeta.cli.ctl import COMMANDS
from dfmeta.cmd import central
from dfmeta.flows.pipeline import PURPOSES, TABLES, Layout
from dfmeta.proxy.limits import BACKLOG
from tests.core.docs import page as reader

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "doc/source"
OF_NEUTRON = ("migrate-neutron-agent", "migrate-metadata-path", "migrate-ovn")
PAGES = (*OF_NEUTRON, "migrate-hollow")
BLOCK = re.compile(
    r"^\.\. code-block:: ini\n   :caption: (?P<caption>.+)\n\n(?P<text>(?:   .*\n|\n)+)",
    re.MULTILINE,
)


class Row(NamedTuple):
    """A row of a table of options, without the marks."""

    old: str
    old_default: str
    new: str
    new_default: str
    text: str


def page(name: str) -> str:
    return (SOURCE / f"{name}.rst").read_text(encoding="utf-8")


def rows(name: str) -> list[Row]:
    """The rows of a page's table."""
    return [Row(*(cell.strip("`") for cell in one)) for one in reader.rows(page(name))[1:]]


def blocks(name: str) -> dict[str, str]:
    """Caption of each example → its text."""
    return {
        one["caption"]: re.sub("^   ", "", one["text"], flags=re.MULTILINE)
        for one in BLOCK.finditer(page(name))
    }


def options_of(text: str) -> set[str]:
    """``[group] name`` of what an ini file sets."""
    ini = configparser.RawConfigParser(default_section="")
    ini.read_string(text)
    return {f"[{group}] {name}" for group in ini.sections() for name in ini[group]}


@pytest.mark.parametrize("name", PAGES)
def test_the_new_options_are_there_with_these_defaults(name: str) -> None:
    known = {}
    for group, options in conf.own_opts():
        for option in options:
            default = "" if option.default in (None, []) else option.default
            if isinstance(default, list):
                default = ",".join(map(str, default))
            known[f"[{group or 'DEFAULT'}] {option.name}"] = str(default)
    named = {row.new: row.new_default for row in rows(name) if row.new != "none"}
    assert named == {option: known[option] for option in named}
    assert not [row for row in rows(name) if row.new == "none" and row.new_default]


@pytest.mark.parametrize("name", PAGES)
def test_every_option_in_the_text_is_one_of_somebodys(name: str) -> None:
    known = {
        f"[{group or 'DEFAULT'}] {one.name}" for group, many in conf.own_opts() for one in many
    }
    known |= {row.old for row in rows(name)}
    known |= {"[agent] extensions", "[ovs] bridge_mappings", "[ovs] integration_bridge"}
    assert set(re.findall(r"``(\[\w+\] \w+)``", page(name))) <= known


@pytest.mark.parametrize("name", PAGES)
def test_the_new_configuration_is_one_that_dfmeta_takes(name: str, tmp_path: Path) -> None:
    (caption,) = [one for one in blocks(name) if one.startswith("/etc/dfmeta/")]
    text = blocks(name)[caption]
    file = tmp_path / "dfmeta.conf"
    file.write_text(text)
    loaded = conf.load([str(file)], prog="test")
    assert loaded.df_metadata.backend == ("store" if name == "migrate-hollow" else "nova")
    assert options_of(text) <= {
        f"[{group or 'DEFAULT'}] {one.name}" for group, many in conf.own_opts() for one in many
    }


@pytest.mark.parametrize("name", OF_NEUTRON)
def test_the_old_configuration_has_options_of_the_table(name: str) -> None:
    old = {one: text for one, text in blocks(name).items() if one.startswith("/etc/neutron/")}
    assert old
    for text in old.values():
        assert options_of(text) <= {row.old for row in rows(name)}


@pytest.mark.parametrize("name", OF_NEUTRON)
def test_what_is_copied_arrives_under_its_new_name(name: str) -> None:
    """Each value of the old example that has a counterpart stands in the new one."""
    new = configparser.RawConfigParser(default_section="")
    new.read_string(blocks(name)["/etc/dfmeta/dfmeta.conf"])
    names = {row.old: row.new for row in rows(name)}
    # The number of workers is not to be copied.
    left = {"none", "[df_metadata] proxy_workers"}
    for caption, text in blocks(name).items():
        old = configparser.RawConfigParser(default_section="")
        old.read_string(text)
        for option in options_of(text) if caption.startswith("/etc/neutron/") else ():
            if names[option] not in left:
                group, key = names[option].strip("[").split("] ")
                assert new[group][key] == old[option[1:].split("]")[0]][option.split()[1]]


@pytest.mark.parametrize("name", ["migrate", *PAGES])
def test_every_command_is_there(name: str) -> None:
    named = re.findall(r"^ {4,}dfmeta (\w+)", page(name), re.MULTILINE)
    assert set(named) <= COMMANDS.keys()
    assert "dfmeta-agent --config-file /etc/dfmeta/dfmeta.conf --cleanup" in page(name)


def test_the_pages_have_the_codes_numbers() -> None:
    layout = Layout()
    tables = [layout.number(stage) for stage in TABLES if stage is not min(TABLES)]
    assert f"dfmeta's are {tables[0]} and {tables[1]}" in page("migrate-ovn")
    hooks = {layout.priority(purpose) for purpose in PURPOSES if layout.priority(purpose) >= 300}
    assert "hooks have\n  300" in page("migrate-ovn")
    assert min(hooks) == 300
    for name in ("migrate-neutron-agent", "migrate-ovn"):
        assert f"queue has {BACKLOG} places" in page(name)
    assert f"{central.GRACE:g} seconds" in page("migrate-hollow")
