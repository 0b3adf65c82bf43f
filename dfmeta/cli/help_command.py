"""``dfmeta help`` and ``dfmeta version``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

import click

from dfmeta.cli.common import CONFIG_FILE, ending
from dfmeta.wiring.process import PROG


@click.command(
    "help",
    epilog=ending("dfmeta help", "dfmeta help store put", failed="nothing can be written"),
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, like its --help."""
    meant, left = command_meant(words, ctx.find_root())
    if left:
        raise click.UsageError(f"No such command {left[0]!r}.", meant)
    click.echo(meant.get_help())


@click.command("version", epilog=ending("dfmeta version", failed="nothing can be written"))
def show_version() -> None:
    """Show the version of dfmeta, like --version."""
    click.echo(f"{PROG}, version {metadata.version(PROG)}")


def command_meant(words: Sequence[str], root: click.Context) -> tuple[click.Context, Sequence[str]]:
    """Return the command that the words of a command line name, and the words after it."""
    ctx, left = root, [*words]
    while left and isinstance(ctx.command, click.Group):
        if left[0].startswith("-"):
            del left[: 2 if left[0] == CONFIG_FILE else 1]
            continue
        found = ctx.command.get_command(ctx, left[0])
        if found is None:
            break
        ctx = click.Context(found, info_name=left.pop(0), parent=ctx)
    return ctx, left
