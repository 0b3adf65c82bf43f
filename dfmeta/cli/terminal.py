"""Tables and findings on a terminal.

Identifiers and commands are never broken over lines. On a narrow terminal complete columns are left
out, the least important one first, and texts are wrapped between words. A line that is still too
long is left to the terminal to wrap, so that it can be copied as one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.text import Text

GAP: Final = "  "
WIDTH: Final = 80
"""Characters in a line of a terminal whose width is unknown."""
TEXT: Final = 20
"""Smallest width of a column of text, in characters."""

Parts = tuple[str, ...]
"""A cell: pieces that are not broken over lines, joined with spaces."""
Styles = Mapping[str, Mapping[str, str]]
"""Column → beginning of a cell's text → style of rich for the cell."""


def width() -> int:
    """Return the width of stdout's terminal in characters; the variable COLUMNS overrides it."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def words(text: str) -> Parts:
    """Return the words of a text; a command between backquotes counts as one word."""
    pieces = text.split("`")
    marked = (one.replace(" ", "\0") if number % 2 else one for number, one in enumerate(pieces))
    return tuple(one.replace("\0", " ") for one in "`".join(marked).split())


def items(texts: Sequence[str]) -> Parts:
    """Return the parts of a list: each item with its comma."""
    return (*(f"{one}," for one in texts[:-1]), *texts[-1:])


def draw_table(
    headings: Mapping[str, str],
    rows: Sequence[Mapping[str, Parts]],
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
    room = width()
    widths = _widths(headings, rows, drop=drop, room=None if wide else room)
    lines = [*_lines({key: (headings[key],) for key in widths}, widths, {}, style="bold")]
    whole = _whole(widths, [*widths])
    lines.append(_text("\u2500" * (whole if wide else min(whole, room))))
    for row in rows:
        lines += _lines(row, widths, styles)
    if left_out := [heading for key, heading in headings.items() if key not in widths]:
        said = f"not shown for lack of space: {', '.join(left_out)}; --wide shows all columns"
        lines += [_text(line, "dim") for line in _wrapped(words(said), room)]
    _say(lines)


def draw_findings(
    rows: Iterable[Mapping[str, str]], lead: Sequence[str], text: Sequence[str], *, styles: Styles
) -> None:
    """Draw rows on stdout: short columns, and to their right the texts below each other.

    :param lead: the short columns.
    :param text: the columns of texts; an empty text is left out.
    """
    listed = list(rows)
    widths = {key: max((_width(row[key]) for row in listed), default=0) for key in lead}
    margin = sum(widths.values()) + len(GAP) * len(lead)
    room = width() - margin
    lines: list[Text] = []
    for row in listed:
        shown = [line for key in text for line in _wrapped(words(row.get(key, "")), room)]
        first = _text("")
        for key, size in widths.items():
            first.append(row[key], _style(row[key], styles.get(key, {})))
            first.append(" " * (size - _width(row[key])) + GAP)
        first.append(shown[0] if shown else "")
        lines += [first, *(_text(" " * margin + line) for line in shown[1:])]
    _say(lines)


def _widths(
    headings: Mapping[str, str],
    rows: Sequence[Mapping[str, Parts]],
    *,
    drop: Sequence[str],
    room: int | None,
) -> dict[str, int]:
    """Return the width of each column that is shown.

    :param room: largest width of a line; None: unlimited.
    """
    full, least = {}, {}
    for key, heading in headings.items():
        cells = [row[key] for row in rows]
        full[key] = max(map(_width, [heading, *(" ".join(cell) for cell in cells)]))
        longest = max(map(_width, [heading, *(part for cell in cells for part in cell)]))
        least[key] = max(longest, min(full[key], TEXT))
    if room is None:
        return full
    kept = list(headings)
    for key in drop:
        if _whole(least, kept) <= room:
            break
        kept.remove(key)
    left = max(room - _whole(least, kept), 0)
    widths = {}
    for key in kept:
        more = min(left, full[key] - least[key])
        widths[key], left = least[key] + more, left - more
    return widths


def _whole(widths: Mapping[str, int], kept: Sequence[str]) -> int:
    return sum(widths[key] for key in kept) + len(GAP) * (len(kept) - 1)


def _lines(
    row: Mapping[str, Parts], widths: Mapping[str, int], styles: Styles, *, style: str = ""
) -> Iterator[Text]:
    """Yield the lines of a row."""
    columns = {key: _wrapped(row[key], size) or [""] for key, size in widths.items()}
    for number in range(max(map(len, columns.values()))):
        line, gap = _text(""), ""
        for key, size in widths.items():
            shown = columns[key][number] if number < len(columns[key]) else ""
            drawn = style or _style(" ".join(row[key]), styles.get(key, {}))
            line.append(gap)
            line.append(shown, drawn)
            gap = " " * (size - _width(shown)) + GAP
        line.rstrip()
        yield line


def _wrapped(parts: Parts, room: int) -> list[str]:
    """Return the lines of a cell; a part that is longer than *room* gets a line of its own."""
    lines: list[str] = []
    for part in parts:
        if lines and _width(lines[-1]) + 1 + _width(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _style(text: str, styles: Mapping[str, str]) -> str:
    return next((style for beginning, style in styles.items() if text.startswith(beginning)), "")


# rich is imported only when a table is drawn: its import would delay output to a pipe.


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _say(lines: Iterable[Text]) -> None:
    from rich.console import Console

    # In one call: otherwise a pager or a test could read a part of the table.
    text = _text("\n").join(lines)
    Console(file=sys.stdout, highlight=False).print(text, soft_wrap=True)


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
