"""Parts that the commands share: configuration files, rows for operators and for programs,
confirmation before data is lost, and the progress of long work.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from oslo_config import cfg

import dfmeta.conf
from dfmeta.errors import printable
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.throttle import PROGRESS
from dfmeta.wiring.process import PROG

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dfmeta.cli.terminal import Styles

TABLE: Final = "table"
JSON: Final = "json"
SENTENCE: Final = 200
"""Largest number of characters of a command's sentence in the help of its group."""
CONFIG_FILE: Final = "--config-file"
_CONFIG_FILES: Final = f"{__name__}.config_files"
_PLAIN: Final = re.compile(r"[\w@%+.][\w@%+.-]*", re.ASCII)
"""A word that every shell takes as it stands, and no command as an option."""


Row = Mapping[str, object]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def command(name: str, *examples: str, failed: str) -> Callable[[F], click.Command]:
    """Return the decorator of a command; its help ends with examples and the exit status.

    :param failed: the condition for status 1, as a clause.
    """
    lines = "\n".join(f"  {example}" for example in examples)
    epilog = (
        f"\b\nExamples:\n{lines}\n\n"
        f"Exit status: 0, or 1 when {failed}, or 2 when the command line, the configuration or "
        "other input is wrong; the last line on stderr names the cause and the remedy."
    )
    return click.command(name, epilog=epilog)


class Group(click.Group):
    """A group whose help shows the complete first sentence of each command's help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.sentences(ctx))

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the names of the commands, and the first sentences of their help."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, it.get_short_help_str(limit=SENTENCE)) for name, it in commands if it]

    def subcommand(self, name: str, *examples: str, failed: str) -> Callable[[F], click.Command]:
        """Return the decorator of a command of this group: see :func:`command`."""

        def add(function: F) -> click.Command:
            made = command(name, *examples, failed=failed)(function)
            self.add_command(made)
            return made

        return add


def group(name: str) -> Callable[[F], Group]:
    """Return the decorator of a group that takes ``--config-file`` for the commands in it."""
    return lambda function: click.group(name, cls=Group)(config_before(function))


def config_files_option(function: F) -> F:
    """Give a command ``--config-file``, repeatable, as ``config_files: tuple[str, ...]``.

    Files that are named before the command, see :func:`config_before`, come first.
    """
    return _config_option(expose=True)(function)


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the configuration of ``--config-file`` as ``conf: cfg.ConfigOpts``."""

    @config_files_option
    @functools.wraps(function)
    def command(config_files: tuple[str, ...], **values: Any) -> Any:
        return function(load_config(config_files), **values)

    return command


def listing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a listing the options of :func:`config_options`, ``--format`` and ``--wide``."""
    return config_options(format_option(wide_option(function)))


def config_before(function: F) -> F:
    """Give a group ``--config-file``, for the commands in it."""
    return _config_option(expose=False)(function)


def _config_option(*, expose: bool) -> Callable[[F], F]:
    return click.option(
        CONFIG_FILE,
        "--config-dir",
        "config_files",
        multiple=True,
        metavar="PATH",
        expose_value=expose,
        callback=_config_files,
        help="Configuration file of the daemon, or a directory of files that end in .conf. "
        "Repeatable; a later file overrides an earlier one.",
    )


def _config_files(
    ctx: click.Context, _option: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    files: tuple[str, ...] = (*ctx.meta.get(_CONFIG_FILES, ()), *value)
    ctx.meta[_CONFIG_FILES] = files
    return files


def format_option(function: F) -> F:
    """Give a listing ``--format table|json`` as ``fmt: str``."""
    return click.option(
        "--format",
        "fmt",
        type=click.Choice([TABLE, JSON]),
        default=TABLE,
        show_default=True,
        help="Output format: a table to read, or an array of JSON objects for programs.",
    )(function)


def wide_option(function: F) -> F:
    """Give a listing ``--wide`` as ``wide: bool``."""
    return click.option(
        "--wide",
        is_flag=True,
        help="Show all columns on a terminal, even if lines are longer than its width.",
    )(function)


def load_config(files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration that the daemon would have with the same files.

    :raises ConfigError: when a file or a value in it is wrong.
    """
    return dfmeta.conf.load(files, prog=PROG)


def completions(words: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Return the words that begin with the incomplete word, for a shell.

    Trust: names may come from tenants, and bash writes them into the operator's command line as
    they are: only words of letters, digits and ``@%+._-`` that are no options are returned.

    :param words: words with the texts that zsh and fish show beside them.
    """
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(word, help=text if _PLAIN.fullmatch(text) else None)
        for word, text in dict(words).items()
        if word.startswith(incomplete) and _PLAIN.fullmatch(word)
    ]


def print_rows(
    rows: Iterable[Row],
    columns: Mapping[str, str],
    fmt: str,
    *,
    styles: Styles | None = None,
    drop: Sequence[str] = (),
    wide: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Print rows to stdout: as a drawn table on a terminal, as plain text in a pipe.

    :param columns: key in a row to heading, in order.
    :param fmt: ``table``: drawn on a terminal; in a pipe aligned text, one line for each row,
        with complete values. ``json``: an array of objects with the columns' keys.
    :param styles: colours on a terminal; without effect if NO_COLOR is set.
    :param drop: columns that are left out on a narrow terminal, the least important one first.
    :param wide: show all columns on a terminal.
    :param notes: for each row a text that stands below it in a pipe; empty: none.
    """
    picked = [{key: row.get(key) for key in columns} for row in rows]
    if fmt == JSON:
        click.echo(json.dumps(picked, indent=2))
        return
    if sys.stdout.isatty():
        # rich takes longer to import than a listing for a pipe takes in all.
        from dfmeta.cli import terminal

        cells = [{key: printable_cell(value) for key, value in row.items()} for row in picked]
        terminal.draw_table(columns, cells, styles=styles or {}, drop=drop, wide=wide)
        return
    table = [list(columns.values())]
    table += [[cell_text(value) for value in row.values()] for row in picked]
    widths = [max(len(line[column]) for line in table) for column in range(len(columns))]
    below = iter(["", *notes] if notes else [""] * len(table))
    for line, note in zip(table, below, strict=True):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
        if note:
            click.echo(f"    {cell_text(note)}")


def cell_text(value: object) -> str:
    """Return a value as a table shows it: on one line, with control characters escaped.

    Another program may have written the value; it must not move the cursor of the operator's
    terminal.
    """
    cell = printable_cell(value)
    return cell if isinstance(cell, str) else ", ".join(cell)


def printable_cell(value: object) -> str | list[str]:
    """Return a value as :func:`cell_text` does; a list or a mapping as the list of its items."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return [cell_text(item) for item in value] or "-"
    if isinstance(value, Mapping):
        return [f"{cell_text(key)}={cell_text(item)}" for key, item in value.items()] or "-"
    text = str(value)
    if text.isprintable():
        return text or "-"
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def yes_option(function: F) -> F:
    """Give a command ``--yes`` as ``yes: bool``."""
    return click.option(
        "--yes", is_flag=True, help="Do not ask for confirmation, even on a terminal."
    )(function)


def confirm(question: str, *, yes: bool) -> None:
    """Ask a question, and return if the answer is yes.

    :param yes: do not ask.
    :raises click.exceptions.Exit: with status 1 when the answer is no.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(1)


@dataclass
class Work:
    """A piece of work and its progress."""

    what: str
    """Name of the work, as it is shown."""
    unit: str = ""
    """Name of its parts."""
    total: int | None = None
    """Number of its parts; None: unknown."""
    done: int = 0

    def line(self) -> str:
        """Return the progress as text."""
        share = f" of {self.total:,}" if self.total else ""
        return f"{self.what}: {self.done:,}{share} {self.unit}".rstrip() if self.done else self.what


@contextlib.contextmanager
def shown(what: str, *, unit: str = "", total: int | None = None) -> Iterator[Work]:
    """Show the progress of the block's work, in lines on stderr; of a short one, none.

    A thread writes them, since the work may be a single call.
    """
    work, done = Work(printable(what), unit, total), threading.Event()

    def write() -> None:
        pause = CHECK_INTERVAL
        while not done.wait(pause):
            click.echo(f"{PROG}: {work.line()}", err=True)
            pause = PROGRESS

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield work
    finally:
        done.set()
        thread.join()


def counted(items: Iterable[T], what: str, *, unit: str, total: int | None = None) -> Iterator[T]:
    """Yield *items*, and show the number of those that were yielded."""
    with shown(what, unit=unit, total=total) as work:
        for item in items:
            yield item
            work.done += 1
