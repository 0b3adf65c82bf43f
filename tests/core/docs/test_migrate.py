"""The pages on migration should say what Neutron's code and dfmeta's have."""

import configparser
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from dfmeta import conf
from dfmeta.cli.ctl import COMMANDS
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


def test_the_new_options_are_listed_with_their_defaults() -> None:
    known = {}
    for group, options in conf.own_opts():
        for option in options:
            default = "" if option.default in (None, []) else option.default
            if isinstance(default, list):
                default = ",".join(map(str, default))
            known[f"[{group or 'DEFAULT'}] {option.name}"] = str(default)
    for name in PAGES:
        named = {row.new: row.new_default for row in rows(name) if row.new != "none"}
        assert named == {option: known[option] for option in named}
        assert not [row for row in rows(name) if row.new == "none" and row.new_default]
        others = {row.old for row in rows(name)}
        others |= {"[agent] extensions", "[ovs] bridge_mappings", "[ovs] integration_bridge"}
        assert set(re.findall(r"``(\[\w+\] \w+)``", page(name))) <= known.keys() | others


def test_the_new_configuration_is_one_that_dfmeta_takes(tmp_path: Path) -> None:
    own = {f"[{group or 'DEFAULT'}] {one.name}" for group, many in conf.own_opts() for one in many}
    for name in PAGES:
        (caption,) = [one for one in blocks(name) if one.startswith("/etc/dfmeta/")]
        text = blocks(name)[caption]
        file = tmp_path / "dfmeta.conf"
        file.write_text(text)
        loaded = conf.load([str(file)], prog="test")
        assert loaded.df_metadata.backend == ("store" if name == "migrate-hollow" else "nova")
        assert options_of(text) <= own, name


@pytest.mark.parametrize("name", OF_NEUTRON)
def test_copied_values_arrive_under_their_new_names(name: str) -> None:
    """Each value of the old example that has a counterpart stands in the new one."""
    new = configparser.RawConfigParser(default_section="")
    new.read_string(blocks(name)["/etc/dfmeta/dfmeta.conf"])
    names = {row.old: row.new for row in rows(name)}
    # The number of workers is not to be copied.
    left = {"none", "[df_metadata] proxy_workers"}
    former = [text for one, text in blocks(name).items() if one.startswith("/etc/neutron/")]
    assert former
    for text in former:
        old = configparser.RawConfigParser(default_section="")
        old.read_string(text)
        for option in options_of(text):
            if names[option] not in left:
                group, key = names[option].strip("[").split("] ")
                assert new[group][key] == old[option[1:].split("]")[0]][option.split()[1]]


def test_every_command_exists() -> None:
    for name in ("migrate", *PAGES):
        named = re.findall(r"^ {4,}dfmeta (\w+)", page(name), re.MULTILINE)
        assert set(named) <= COMMANDS.keys()
        assert "dfmeta-agent --config-file /etc/dfmeta/dfmeta.conf --cleanup" in page(name)
