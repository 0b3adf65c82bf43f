"""``dfmeta store backup`` and ``dfmeta store restore``."""

from __future__ import annotations

from pathlib import Path

import click

from dfmeta.cmd.common import config_options, ending, load_config
from dfmeta.cmd.progress import shown


@click.command(
    "backup",
    epilog=ending("dfmeta store backup store.bak", failed="FILE is there or cannot be written"),
)
@config_options
@click.argument("file")
def backup(config_files: tuple[str, ...], file: str) -> None:
    """Write the whole store into FILE, which is new and its owner's alone. The daemon runs on."""
    from dfmeta.store import backup as copies

    conf = load_config(config_files)
    with shown(f"writing {file}"):
        count = copies.backup(conf.store.connection, Path(file))
    click.echo(f"{file}: {count} records")


@click.command(
    "restore",
    epilog=ending("dfmeta store restore store.bak", failed="FILE is not such a copy"),
)
@config_options
@click.argument("file")
def restore(config_files: tuple[str, ...], file: str) -> None:
    """Make the store what it was when FILE was written. The daemon runs on."""
    from dfmeta.store import backup as copies

    conf = load_config(config_files)
    with shown(f"restoring {file}"):
        count = copies.restore(conf.store.connection, Path(file))
    click.echo(f"{count} records as in {file}; what was in the store before is gone")
