"""Tables and findings on a terminal.

Identifiers and commands are never broken over lines. On a narrow terminal complete columns are left
out, the least important one first, and texts are wrapped between words. A line that is still too
long is left to the terminal to wrap, so that it can be copied as one line.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

Cell = str | list[str]
"""A text, or the texts of a list's items; control characters are escaped already."""
Styles = Mapping[str, Mapping[str, str]]
"""Column → beginning of a cell's text → style of rich for the cell."""
GAP: Final = 2
"""Characters between two columns."""
WIDTH: Final = 80
"""Characters in a line of a terminal whose width is unknown."""
TEXT: Final = 20
"""Smallest width of a column of text, in characters."""
GLUE: Final = "\ue000"
"""A space at which no line breaks. No cell has this character, which is not printable."""
UNLIMITED: Final = 10_000


def width() -> int:
    """Return the width of stdout's terminal in characters; the variable COLUMNS overrides it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def draw_table(
    headings: Mapping[str, str],
    rows: Sequence[Mapping[str, Cell]],
    *,
    styles: Styles,
    drop: Sequence[str],
    wide: bool,
) -> None:
    """Draw a table on stdout.

    :param headings: column → its heading, in order.
    :param drop: columns that may be left out, the least important one first.
    :param wide: show all columns, even in lines longer than the terminal's width.
    """
    texts = [{key: _breakable(row[key]) for key in headings} for row in rows]
    widths = _widths(headings, texts, drop=drop, room=UNLIMITED if wide else width())
    table = Table(
        *(headings[key] for key in widths),
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box has the other character
        header_style="bold",
    )
    for row in texts:
        cells = ((key, "\n".join(_wrapped(row[key], size))) for key, size in widths.items())
        table.add_row(*(Text(cell, _style(cell, styles.get(key, {}))) for key, cell in cells))
    left_out = ", ".join(heading for key, heading in headings.items() if key not in widths)
    note = f"not shown for lack of space: {left_out}; --wide shows all columns"
    _draw(table, *(Text(line, "dim") for line in _wrapped(note, width()) if left_out))


def draw_findings(
    rows: Iterable[Mapping[str, str]], lead: Sequence[str], text: Sequence[str], *, styles: Styles
) -> None:
    """Draw rows on stdout: short columns, and to their right the texts below each other.

    :param lead: the short columns.
    :param text: the columns of texts; an empty text is left out.
    """
    rows = list(rows)
    margin = sum(GAP + max((cell_len(row[key]) for row in rows), default=0) for key in lead)
    table = Table.grid(padding=(0, GAP, 0, 0))
    for row in rows:
        texts = (_breakable(row[key]) for key in text if row.get(key))
        lines = [line for each in texts for line in _wrapped(each, width() - margin)]
        cells = (Text(row[key], _style(row[key], styles.get(key, {}))) for key in lead)
        table.add_row(*cells, Text("\n".join(lines)))
    _draw(table)


def _breakable(cell: Cell) -> str:
    """Return the text of a cell, with a :data:`GLUE` for each space where no line may break.

    A line may break between the items of a list, else between the words of a text; a command
    between backquotes counts as one word.
    """
    if isinstance(cell, str):
        return re.sub("`[^`]*`", lambda command: command[0].replace(" ", GLUE), cell)
    return ", ".join(item.replace(" ", GLUE) for item in cell)


def _widths(
    headings: Mapping[str, str],
    rows: Sequence[Mapping[str, str]],
    *,
    drop: Sequence[str],
    room: int,
) -> dict[str, int]:
    """Return the width of each column that is shown.

    :param room: largest width of a line.
    """
    full, least = {}, {}
    for key, heading in headings.items():
        cells = [row[key] for row in rows]
        full[key] = max(map(cell_len, [heading, *cells]))
        longest = max(map(cell_len, [heading, *(word for cell in cells for word in cell.split())]))
        least[key] = max(longest, min(full[key], TEXT))
    kept = list(headings)
    for key in drop:
        if _line(least, kept) <= room:
            break
        kept.remove(key)
    left = max(room - _line(least, kept), 0)
    widths = {}
    for key in kept:
        more = min(left, full[key] - least[key])
        widths[key], left = least[key] + more, left - more
    return widths


def _line(widths: Mapping[str, int], columns: Sequence[str]) -> int:
    return sum(widths[key] for key in columns) + GAP * (len(columns) - 1)


def _wrapped(text: str, room: int) -> list[str]:
    """Return the lines of a cell; a word that is longer than *room* gets a line of its own."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _style(text: str, styles: Mapping[str, str]) -> str:
    return next((style for beginning, style in styles.items() if text.startswith(beginning)), "")


def _draw(*parts: RenderableType) -> None:
    console = Console(file=sys.stdout, width=UNLIMITED, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    lines = capture.get().replace(GLUE, " ").rstrip("\n").split("\n")
    # In one call: otherwise a pager or a test could read a part of the table.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
