"""``dfmeta store delete``, and the copy of a deleted record."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from pathlib import Path
from typing import Final

import click

from dfmeta.cli.common import CONFIG_FILE, ending
from dfmeta.cli.confirm import agreed, yes_option
from dfmeta.cli.store_target import (
    Asked,
    StoreChoice,
    Target,
    no_record,
    store_options,
    target_options,
)
from dfmeta.errors import StoreError
from dfmeta.store.api.client import StoreClient
from dfmeta.store.db.record import Record, parse_document

FOLDER: Final = "deleted"
"""Name of the directory of copies in state_path."""
_EXAMPLE: Final = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"


@click.command(
    "delete",
    epilog=ending(
        f"dfmeta store delete {_EXAMPLE}",
        failed="there is no such record, or the answer was no",
    ),
)
@store_options
@target_options
@yes_option
@click.option(
    "--copy",
    "folder",
    metavar="DIRECTORY",
    help="Directory for a copy of the record; a later copy of the same record replaces an earlier "
    "one. Default: deleted in state_path, and no copy with --url. Empty: no copy.",
)
def delete(store: StoreChoice, asked: Asked, *, yes: bool, folder: str | None) -> None:
    """Delete the record of INSTANCE, including user-data and password.

    On a terminal the command asks for confirmation; in a script it does not. It prints the command
    that restores the record from its copy. The copy does not contain the password that the guest
    has posted.
    """
    conf = store.conf()
    with store.opened(conf) as records:
        target = asked.find(conf, records)
        if folder is None:
            here = not isinstance(records, StoreClient)
            folder = str(Path(conf.df_metadata.state_path) / FOLDER) if here else ""
        agreed(f"Delete the record of {target.shown}?", yes=yes)
        back = ""
        if folder and (record := records.get(target.record_id)) is not None:
            options = _keep(record, records.addresses(record.id), folder=Path(folder))
            back = shlex.join([*_command(store, asked, target), *options]) if options else ""
        if not records.delete(target.record_id):
            raise no_record(target)
    click.echo(f"{target.shown}: deleted")
    if back:
        click.echo(f"A copy is kept. To restore it: {back}")


def _command(store: StoreChoice, asked: Asked, target: Target) -> list[str]:
    """Return the beginning of the command that restores a record."""
    words = ["dfmeta", "store", "put"]
    for option, values in (
        (CONFIG_FILE, store.config_files),
        ("--url", [store.url] if store.url else []),
        ("--token-file", [store.token_file] if store.token_file else []),
        ("--ca-file", [store.ca_file] if store.ca_file else []),
    ):
        words += [word for value in values for word in (option, value)]
    if not target.default:
        return [*words, target.record_id]
    name = target.record_id.split(":", 2)[2:]
    return [*words, asked.option, *name]


def _keep(record: Record, addresses: tuple[str, ...], *, folder: Path) -> list[str]:
    """Write a record's contents into files with mode 0600.

    :returns: the options of a put that restores them; an empty list if there is nothing to keep.
    :raises StoreError: when a file cannot be written.
    """
    options: list[str] = []
    document = None
    if record.metadata is not None:
        document = json.dumps(parse_document(record.id, record.metadata), indent=2).encode()
    name = record.id.replace(":", "-").replace("/", "-").replace("*", "all")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for option, suffix, content in (
            ("--json", ".json", document),
            ("--user-data", ".user-data", record.userdata),
        ):
            path = folder.absolute() / f"{name}{suffix}"
            path.unlink(missing_ok=True)
            if content is not None:
                _write(path, content)
                options += [option, str(path)]
    except OSError as error:
        raise StoreError(
            cause=f"{error.filename or folder}: the copy cannot be written: {error.strerror}",
            remedy="Name another directory with --copy, or give --copy '' to delete without a "
            "copy. Nothing was deleted",
        ) from error
    for option, value in (("--project", record.project_id), ("--http-tokens", record.http_tokens)):
        options += [option, value] if value else []
    return [*options, *(word for one in addresses for word in ("--address", one))]


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(content)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
