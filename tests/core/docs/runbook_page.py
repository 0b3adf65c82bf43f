"""What doc/source/runbook.rst has: symptoms, commands, what they print, and which figure moves."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.core.docs.page import Section, sections

PAGE = (Path(__file__).parents[3] / "doc/source/runbook.rst").read_text(encoding="utf-8")
SKIPPED = "..."
"""A line that stands for lines that do not matter."""
UP, STAYS, ABOVE = "goes up", "stays as it is", "is above 0"
_BLOCK = re.compile(r"\.\. code-block:: console\n   :name: (\S+)\n\n(.*)", re.DOTALL)
_FIELD = re.compile(r"^:(Metric|To do|Fixed when): ((?:.*(?:\n   .*)*))", re.MULTILINE)
_MOVES = re.compile(rf"``(dfmeta_\w+)(?:\{{([^}}]*)\}})?``\s+({UP}|{STAYS}|{ABOVE})")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_UNKNOWN = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class Move:
    """What becomes of a figure when the symptom is there."""

    metric: str
    labels: tuple[tuple[str, str], ...]
    how: str


@dataclass(frozen=True)
class Block:
    """A command, and what it prints where this is the cause."""

    name: str
    chapter: str
    command: str
    output: tuple[str, ...]
    fields: dict[str, str]

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every figure of which the page says what becomes of it, when it is this cause."""
        result = _MOVES.findall(" ".join(self.fields["Metric"].split()))
        return tuple(Move(name, tuple(_LABEL.findall(labels)), how) for name, labels, how in result)


def blocks(page: str = PAGE) -> list[Block]:
    """Every block, with the fields of its section."""
    return [block for section in sections(page) for block in _of(section)]


def _of(section: Section) -> Iterator[Block]:
    fields = {
        name: text for paragraph in section.paragraphs for name, text in _FIELD.findall(paragraph)
    }
    for paragraph in section.paragraphs:
        if match := _BLOCK.match(paragraph):
            first, *rest = (line[3:] for line in match[2].splitlines())
            yield Block(
                match[1], section.chapter, first.removeprefix("$ "), tuple(rest), dict(fields)
            )


def missing(block: Block, printed: str, names: dict[str, str]) -> list[str]:
    """Lines of a block that are not in what a command has printed, in their order.

    :param names: placeholder → what stands for it on this host.
    """
    lines, absent = iter(printed.splitlines()), []
    for wanted in block.output:
        if wanted != SKIPPED and not any(_pattern(wanted, names).fullmatch(line) for line in lines):
            absent.append(wanted)
    return absent


def _pattern(line: str, names: dict[str, str]) -> re.Pattern[str]:
    special = "|".join([_UNKNOWN.pattern, *(rf"\b{name}\b" for name in names)])
    parts = []
    for part in re.split(f"({special})", line):
        if part in names:
            # A heading may have the same name.
            parts.append(f"(?:{re.escape(names[part])}|{part})")
        elif _UNKNOWN.fullmatch(part):
            parts.append(r"\S.*?")
        else:
            parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", part))))
    return re.compile("".join(parts) + r"\s*")
