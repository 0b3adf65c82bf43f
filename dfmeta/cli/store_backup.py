"""``dfmeta store backup`` and ``dfmeta store restore``."""

from __future__ import annotations

from pathlib import Path

import click

from dfmeta.cli.common import cell_text, config_options, ending, load_config
from dfmeta.cli.confirm import agreed, yes_option
from dfmeta.cli.progress import shown


@click.command(
    "backup",
    epilog=ending("dfmeta store backup store.bak", failed="FILE exists or cannot be written"),
)
@config_options
@click.argument("file")
def backup(config_files: tuple[str, ...], file: str) -> None:
    """Write a backup of the whole store to a new FILE with mode 0600. The daemon keeps running."""
    from dfmeta.store.db import backup as copies

    conf = load_config(config_files)
    with shown(f"writing {cell_text(file)}"):
        count = copies.backup(conf.store.connection, Path(file))
    click.echo(f"{cell_text(file)}: {_records(count)}")


@click.command(
    "restore",
    epilog=ending(
        "dfmeta store restore store.bak",
        failed="FILE is not a backup of the store, or the answer was no",
    ),
)
@config_options
@yes_option
@click.option(
    "--copy",
    metavar="FILE",
    help="File for a copy of the current store, which replaces an earlier copy. Default: "
    "STORE.before-restore, beside the store. Empty: no copy.",
)
@click.argument("file")
def restore(config_files: tuple[str, ...], *, yes: bool, copy: str | None, file: str) -> None:
    """Restore the store from the backup FILE. The daemon keeps running.

    On a terminal the command asks for confirmation; in a script it does not. The copy of the store
    that it keeps can be restored in the same way.
    """
    from dfmeta.store.db import backup as copies

    conf = load_config(config_files)
    url = conf.store.connection
    agreed(f"Replace the whole content of the store by {cell_text(file)}?", yes=yes)
    with shown(f"restoring {cell_text(file)}"):
        keep = copies.before_restore(url) if copy is None else Path(copy) if copy else None
        done = copies.restore(url, Path(file), keep=keep)
    now = f"{_records(done.records)} as in {cell_text(file)}"
    if done.kept is not None:
        click.echo(f"{now}; the earlier content of the store is in {cell_text(done.kept)}")
    elif keep is not None:
        click.echo(f"{now}; no copy was made, since there was no intact store before")
    else:
        click.echo(f"{now}; the earlier content of the store is deleted")


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
