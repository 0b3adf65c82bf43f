"""Reads the reST of a page: its sections, their paragraphs, and the rows of tables."""

import re
from dataclasses import dataclass

_CHAPTER = "="
_HEADING = re.compile(r"^(\S.*)\n(=+|-+|~+)$", re.MULTILINE)
ROW = re.compile(r"^   \* - .*(?:\n     .+)*", re.MULTILINE)
"""A row of a list table, as it is written."""
_LINES = re.compile(
    r"^\.\. csv-table::.*\n(?: {3}:.*\n)* {3}:delim: ;\n(?: {3}:.*\n)*\n((?: {3}.+(?:\n|\Z))+)",
    re.MULTILINE,
)
"""A table whose cells are parted by semicolons; its lines are a group."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, up to the next heading of any level."""

    title: str
    mark: str
    paragraphs: tuple[str, ...]
    chapter: str

    @property
    def text(self) -> str:
        """All of it, on one line."""
        return " ".join(" ".join(self.paragraphs).split())


def sections(page: str) -> list[Section]:
    """The page's sections in their order."""
    result, chapter = [], ""
    marks = [mark for mark in _HEADING.finditer(page) if len(mark[1]) == len(mark[2])]
    ends = [mark.start() for mark in marks[1:]] + [len(page)]
    for mark, end in zip(marks, ends, strict=True):
        chapter = mark[1] if mark[2][0] == _CHAPTER else chapter
        body = paragraphs(page[mark.end() : end])
        result.append(Section(mark[1], mark[2][0], tuple(body), chapter))
    return result


def paragraphs(text: str) -> list[str]:
    """Paragraphs; a directive or a paragraph with what is indented below it is one."""
    result: list[str] = []
    for part in re.split(r"\n[ \t]*\n", text.strip("\n")):
        if result and part.startswith(" "):
            result[-1] += f"\n\n{part}"
        elif part.strip() and not part.startswith(".. _"):
            result.append(part)
    return result


def rows(text: str) -> list[tuple[str, ...]]:
    """The rows of all tables in *text*, with the words of each cell on one line."""
    result = (re.split(r"\n     -", row.removeprefix("   * -")) for row in ROW.findall(text))
    lines = (line.split(";") for table in _LINES.findall(text) for line in table.splitlines())
    return [tuple(" ".join(cell.split()) for cell in row) for row in (*result, *lines)]
