"""The page on migration should say what Neutron's code and dfmeta's have."""

import configparser
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from dfmeta import conf
from dfmeta.cli.ctl import COMMANDS
from tests.core.docs import page as reader

PAGE = (Path(__file__).parents[3] / "doc/source/migrate.rst").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"^(?P<margin> *)\.\. code-block:: ini\n"
    r"(?P=margin)   :caption: (?P<caption>.+)\n\n"
    r"(?P<text>(?:(?P=margin)   .*\n|\n)+)",
    re.MULTILINE,
)
_NAME = re.compile(r"``(?:\[(\w+)\])? ?(\w*)``(?: \(([^)]*)\))?")


NEUTRON = "Options of Neutron"


def default_of(value: object) -> str:
    """A default as a configuration has it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


KNOWN = {
    f"[{group or 'DEFAULT'}] {option.name}": default_of(option.default)
    for group, many in conf.own_opts()
    for option in many
}
"""Name of each option of dfmeta → its default."""


class Option(NamedTuple):
    """An option as a cell of a table has it: ``[group] name``, and its default if that is there."""

    name: str
    default: str | None


class Row(NamedTuple):
    """The counterparts of some options of Neutron; without any, those have none."""

    former: list[Option]
    present: list[Option]


def options(cell: str) -> list[Option]:
    """The options of a cell; a group holds for the names after it."""
    listed, group = [], ""
    for match in _NAME.finditer(cell):
        group = match[1] or group
        listed.append(Option(f"[{group}] {match[2]}".strip(), match[3]))
    return listed


def table(chapter: str) -> list[tuple[str, ...]]:
    """The rows of a chapter's table, without its heading."""
    (section,) = (section for section in reader.sections(PAGE) if section.title == chapter)
    return [row for part in section.paragraphs for row in reader.rows(part)][1:]


def rows() -> list[Row]:
    """The table of Neutron's options."""
    return [Row(options(first), counterparts(first, second)) for first, second, _ in table(NEUTRON)]


def counterparts(first: str, second: str) -> list[Option]:
    """dfmeta's options of a row: "none", "same", another group, or other names."""
    if second == "none":
        return []
    if second.startswith("same"):
        default = second.removeprefix("same").strip(" ()") or None
        return [Option(name, "" if default == "unset" else default) for name, _ in options(first)]
    if re.fullmatch(r"``\[\w+\]``", second):
        group = second.strip("`")
        return [Option(f"{group} {name.split()[1]}", None) for name, _ in options(first)]
    return options(second)


def test_each_counterpart_exists_with_its_default() -> None:
    assert len(rows()) > 20
    for row in rows():
        for name, default in row.present:
            assert name in KNOWN, name
            assert default in (None, KNOWN[name]), name


def test_counterparts_of_the_flags_exist() -> None:
    flags = table("hollow-metadataservice")
    assert len(flags) > 10
    for _flags, named, _difference in flags:
        assert {option.name for option in options(named)} <= KNOWN.keys(), named


def test_new_configurations_are_accepted(tmp_path: Path) -> None:
    backends = {}
    for block in _BLOCK.finditer(PAGE):
        text = textwrap.dedent(block["text"])
        ini = configparser.RawConfigParser(default_section="")
        ini.read_string(text)
        assert {f"[{group}] {name}" for group in ini.sections() for name in ini[group]} <= {*KNOWN}
        file = tmp_path / "dfmeta.conf"
        file.write_text(text)
        loaded = conf.load([str(file)], prog="test")
        backends[block["caption"]] = loaded.df_metadata.backend
    assert backends == {"/etc/dfmeta/dfmeta.conf": "nova", "/etc/dfmeta/dfmeta-store.conf": "store"}


def test_every_command_exists() -> None:
    named = re.findall(r"^ {4,}dfmeta (\w+)", PAGE, re.MULTILINE)
    assert named
    assert set(named) <= COMMANDS.keys()
