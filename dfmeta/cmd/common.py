"""What the commands share: configuration files, and rows for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
from oslo_config import cfg

import dfmeta.conf
from dfmeta.cmd.last_words import PROG

TABLE: Final = "table"
JSON: Final = "json"

Row = Mapping[str, object]
F = TypeVar("F", bound=Callable[..., Any])


def ending(*examples: str, failed: str) -> str:
    """Return what stands at the end of a command's help: examples, and what its status says.

    :param failed: when the status is 1, as a clause.
    """
    lines = "\n".join(f"  {one}" for one in examples)
    return (
        f"\b\nExamples:\n{lines}\n\n"
        f"Exit status: 0, or 1 when {failed}, or 2 when the command line, the configuration or "
        "what is given is wrong; the last line on stderr says what and why."
    )


def config_options(function: F) -> F:
    """Give a command ``--config-file``, repeatable, as ``config_files: tuple[str, ...]``."""
    return click.option(
        "--config-file",
        "config_files",
        multiple=True,
        metavar="FILE",
        help="The daemon's configuration. Repeatable; a later file overrides an earlier one.",
    )(function)


def format_option(function: F) -> F:
    """Give a listing ``--format table|json`` as ``fmt: str``."""
    return click.option(
        "--format",
        "fmt",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="A table for people, or an array of JSON objects for programs.",
    )(function)


def load_config(files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration that the daemon would have with the same files.

    :raises ConfigError: a file or a value in it is wrong.
    """
    return dfmeta.conf.load(files, prog=PROG)


Styles = Mapping[str, Mapping[str, str]]
"""Key in a row → the beginning of a cell's text → how rich is to draw it."""


def print_rows(
    rows: Iterable[Row], columns: Mapping[str, str], fmt: str, *, styles: Styles | None = None
) -> None:
    """Print rows to stdout: for people on a terminal, for programs in a pipe.

    :param columns: key in a row to heading, in order.
    :param styles: colours, for a terminal alone; none where NO_COLOR is set.
    :param fmt: ``table``: drawn on a terminal, aligned text without lines, cuts and breaks in a
        pipe. ``json``: an array of objects with the columns' keys.
    """
    picked = [{key: row.get(key) for key in columns} for row in rows]
    if fmt == JSON:
        click.echo(json.dumps(picked, indent=2))
        return
    cells = [[cell_text(value) for value in row.values()] for row in picked]
    if sys.stdout.isatty():
        drawn = [(styles or {}).get(key, {}) for key in columns]
        _draw(list(columns.values()), cells, drawn)
        return
    table = [list(columns.values()), *cells]
    widths = [max(len(line[column]) for line in table) for column in range(len(columns))]
    for line in table:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def cell_text(value: object) -> str:
    """Return a value as a table shows it: on one line, with control characters escaped.

    A record may hold what another program wrote; it is not to move the operator's cursor.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(cell_text(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{cell_text(key)}={cell_text(item)}" for key, item in value.items()) or "-"
        )
    text = str(value)
    if text.isprintable():
        return text or "-"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _style(text: str, styles: Mapping[str, str]) -> str:
    return next((style for beginning, style in styles.items() if text.startswith(beginning)), "")


def _draw(headings: list[str], cells: list[list[str]], styles: Sequence[Mapping[str, str]]) -> None:
    """Draw a table on the terminal; what does not fit is folded, but the first column never is.

    Cells are text: rich's markup in them means nothing.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=number == 0)
    for line in cells:
        pairs = zip(line, styles, strict=True)
        table.add_row(*(Text(cell, style=_style(cell, known)) for cell, known in pairs))
    Console().print(table)
