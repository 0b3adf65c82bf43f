"""``dfmeta store backup`` and ``dfmeta store restore``."""

from __future__ import annotations

from pathlib import Path

import click

from dfmeta.cli.agreed import agreed, yes_option
from dfmeta.cli.common import config_options, ending, load_config
from dfmeta.cli.progress import shown


@click.command(
    "backup",
    epilog=ending("dfmeta store backup store.bak", failed="FILE is there or cannot be written"),
)
@config_options
@click.argument("file")
def backup(config_files: tuple[str, ...], file: str) -> None:
    """Write the whole store into FILE, which is new and its owner's alone. The daemon runs on."""
    from dfmeta.store.db import backup as copies

    conf = load_config(config_files)
    with shown(f"writing {file}"):
        count = copies.backup(conf.store.connection, Path(file))
    click.echo(f"{file}: {_records(count)}")


@click.command(
    "restore",
    epilog=ending(
        "dfmeta store restore store.bak",
        failed="FILE is not such a copy, or the answer was no",
    ),
)
@config_options
@yes_option
@click.option(
    "--copy",
    metavar="FILE",
    help="Where the store as it is now is kept, in the place of an earlier copy. Without it: "
    "beside the store, as STORE.before-restore. Empty: nowhere.",
)
@click.argument("file")
def restore(config_files: tuple[str, ...], *, yes: bool, copy: str | None, file: str) -> None:
    """Make the store what it was when FILE was written. The daemon runs on.

    On a terminal it asks first; a script is not asked. The copy of the store as it was before is
    itself a FILE to restore.
    """
    from dfmeta.store.db import backup as copies

    conf = load_config(config_files)
    url = conf.store.connection
    agreed(f"Replace all that is in the store by {file}?", yes=yes)
    with shown(f"restoring {file}"):
        keep = copies.before_restore(url) if copy is None else Path(copy) if copy else None
        done = copies.restore(url, Path(file), keep=keep)
    now = f"{_records(done.records)} as in {file}"
    if done.kept is not None:
        click.echo(f"{now}; what was in the store before is in {done.kept}")
    elif keep is not None:
        click.echo(f"{now}; there was no whole store before that a copy could be made of")
    else:
        click.echo(f"{now}; what was in the store before is gone")


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
