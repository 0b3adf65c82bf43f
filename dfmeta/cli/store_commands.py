"""``dfmeta store``: the store's records on the command line."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

import click
from oslo_config import cfg

from dfmeta.cli import common, store_edit, store_import, store_target
from dfmeta.errors import NoRecordError
from dfmeta.store.api.client import UNKNOWN, StoreClient
from dfmeta.store.api.representations import timestamp
from dfmeta.store.db import HEAD
from dfmeta.store.db.record import Record, parse_document
from dfmeta.store.guest.defaults import EVERYWHERE

EXAMPLE: Final = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
READING: Final = "reading the store"
LIST_COLUMNS: Final = {
    "id": "ID",
    "hostname": "HOSTNAME",
    "name": "NAME",
    "project_id": "PROJECT",
    "ssh_keys": "KEYS",
    "userdata_bytes": "USER-DATA",
    "password_set": "PASSWORD",
    "updated_at": "UPDATED",
}
LIST_DROP: Final = (
    "password_set",
    "project_id",
    "userdata_bytes",
    "ssh_keys",
    "updated_at",
    "name",
    "hostname",
)
"""Columns that are left out on a narrow terminal, the least important one first."""
FIELDS: Final = {
    "id": "id",
    "hostname": "hostname",
    "name": "name",
    "project_id": store_edit.WORDS["project_id"],
    "availability_zone": store_edit.WORDS["availability_zone"],
    "ssh_keys": store_edit.WORDS["ssh_keys"],
    "meta": "meta",
    "addresses": "addresses",
    "userdata_bytes": "user-data, bytes",
    "vendor_data": store_edit.WORDS["vendor_data"],
    "network_config": store_edit.WORDS["network_config"],
    "password_set": "password set",
    "http_tokens": store_edit.WORDS["http_tokens"],
    "created_at": "created",
    "updated_at": "updated",
}


@common.group("store")
def store() -> None:
    """Write, read and delete instances' metadata.

    Without --url the commands use the database that the configuration names, which this user must
    be able to write; with --url they use the admin API of a running store.
    """


for _command in (store_edit.put, store_edit.delete, store_import.import_records):
    store.add_command(_command)


@store.subcommand(
    "get",
    f"dfmeta store get {EXAMPLE}",
    f"dfmeta store get {EXAMPLE} --user-data",
    f"dfmeta store get {EXAMPLE} --format json",
    failed="there is no such record, or the store does not answer",
)
@store_target.store_options
@common.format_option
@store_target.target_options
@click.option("--user-data", is_flag=True, help="Print the user-data alone, byte for byte.")
@click.option(
    "--password", is_flag=True, help="Print the password that the guest posted, byte for byte."
)
@click.option(
    "--document", is_flag=True, help="Print the document alone, in the form that put --json reads."
)
def get(
    store: store_target.StoreChoice,
    choice: store_target.TargetChoice,
    *,
    fmt: str,
    user_data: bool,
    password: bool,
    document: bool,
) -> None:
    """Show the record of INSTANCE.

    User-data and password are not shown with it: --user-data and --password print them alone.
    """
    if user_data + password + document > 1:
        raise click.UsageError(
            "--user-data, --password and --document exclude each other: give one of them"
        )
    conf = store.conf()
    with store.opened(conf) as records:
        target = choice.find(conf, records)
        record = records.get(target.record_id)
        addresses = records.addresses(target.record_id) if record else ()
    if record is None:
        raise store_target.no_record(target)
    if user_data:
        _write_bytes(record.userdata, target=target, what="user-data")
    elif password:
        _write_bytes(record.password, target=target, what="password")
    elif document:
        click.echo(json.dumps(parse_document(record.id, record.metadata), indent=2))
    elif fmt == common.TABLE:
        row = _full_row(record, addresses)
        rows = [{"field": title, "value": row.get(key)} for key, title in FIELDS.items()]
        common.print_rows(rows, {"field": "FIELD", "value": "VALUE"}, fmt)
    else:
        common.print_rows([_full_row(record, addresses)], {key: key for key in FIELDS}, fmt)


@store.subcommand(
    "list", "dfmeta store list", "dfmeta store list --default", failed="the store does not answer"
)
@store_target.store_options
@common.format_option
@common.wide_option
@click.option("--default", is_flag=True, help="List the defaults instead of instances' records.")
def list_records(store: store_target.StoreChoice, *, fmt: str, wide: bool, default: bool) -> None:
    """List all records, one on each line."""
    with store.opened(store.conf()) as records:
        if default and isinstance(records, StoreClient):
            raise store_target.no_defaults("--default", EVERYWHERE)
        rows = list(
            common.counted(store_target.rows_of(records, defaults=default), READING, unit="records")
        )
        common.print_rows(rows, LIST_COLUMNS, fmt, drop=LIST_DROP, wide=wide)


@store.subcommand("schema", "dfmeta store schema", failed="the database cannot be opened")
@common.config_options
def show_schema(conf: cfg.ConfigOpts) -> None:
    """Show the schema of the database, and that of this dfmeta."""
    from dfmeta.store.db.database import schema_of

    present = schema_of(conf.store.connection)
    click.echo(f"schema {present or 'none, the database is empty'}; this dfmeta's is {HEAD}")


@store.subcommand(
    "backup", "dfmeta store backup store.bak", failed="FILE exists or cannot be written"
)
@common.config_options
@click.argument("file")
def backup(conf: cfg.ConfigOpts, file: str) -> None:
    """Write a backup of the whole store to a new FILE with mode 0600. The daemon keeps running."""
    from dfmeta.store.db import backup as copies

    with common.shown(f"writing {common.cell_text(file)}"):
        count = copies.backup(conf.store.connection, Path(file))
    click.echo(f"{common.cell_text(file)}: {_records(count)}")


@store.subcommand(
    "restore",
    "dfmeta store restore store.bak",
    failed="FILE is not a backup of the store, or the answer was no",
)
@common.config_options
@common.yes_option
@click.option(
    "--copy",
    metavar="FILE",
    help="File for a copy of the current store, which replaces an earlier copy. Default: "
    "STORE.before-restore, beside the store. Empty: no copy.",
)
@click.argument("file")
def restore(conf: cfg.ConfigOpts, *, yes: bool, copy: str | None, file: str) -> None:
    """Restore the store from the backup FILE. The daemon keeps running.

    On a terminal the command asks for confirmation; in a script it does not. The copy of the store
    that it keeps can be restored in the same way.
    """
    from dfmeta.store.db import backup as copies

    url = conf.store.connection
    common.confirm(f"Replace the whole content of the store by {common.cell_text(file)}?", yes=yes)
    with common.shown(f"restoring {common.cell_text(file)}"):
        keep = copies.before_restore(url) if copy is None else Path(copy) if copy else None
        count, kept = copies.restore(url, Path(file), keep=keep)
    now = f"{_records(count)} as in {common.cell_text(file)}"
    if kept:
        click.echo(f"{now}; the earlier content of the store is in {common.cell_text(keep)}")
    elif keep is not None:
        click.echo(f"{now}; no copy was made, since there was no intact store before")
    else:
        click.echo(f"{now}; the earlier content of the store is deleted")


def _write_bytes(content: bytes | None, *, target: store_target.Target, what: str) -> None:
    if content is None:
        raise NoRecordError(
            cause=f"{target.shown} has no {what}",
            remedy="dfmeta store get without that option shows the record",
        )
    sys.stdout.buffer.write(content)


def _full_row(record: Record, addresses: tuple[str, ...]) -> dict[str, object]:
    """Return the row of ``get``: the document as it is stored, without user-data and password."""
    document = parse_document(record.id, record.metadata)
    return {
        **{key: document.get(key) for key in FIELDS},
        "id": record.id,
        "project_id": record.project_id,
        "addresses": list(addresses),
        "userdata_bytes": None if record.userdata is None else len(record.userdata),
        "password_set": None if record.created_at == UNKNOWN else record.password is not None,
        "http_tokens": record.http_tokens,
        "created_at": _moment(record.created_at),
        "updated_at": _moment(record.updated_at),
    }


def _moment(moment: datetime) -> str | None:
    return None if moment == UNKNOWN else timestamp(moment)


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
