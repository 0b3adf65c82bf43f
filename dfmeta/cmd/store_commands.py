"""``dfmeta store``: the records of the configured database, from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from dfmeta.cmd.common import (
    TABLE,
    config_options,
    format_option,
    load_config,
    print_rows,
    timestamp,
)
from dfmeta.exceptions import RecordError, StoreError
from dfmeta.store import checks
from dfmeta.store.repository import (
    KEEP,
    Keep,
    PutResult,
    Record,
    Repository,
    Summary,
    parse_document,
)

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
FIELDS: Final = {
    "id": "id",
    "hostname": "hostname",
    "name": "name",
    "project_id": "project",
    "availability_zone": "availability zone",
    "ssh_keys": "ssh keys",
    "meta": "meta",
    "userdata_bytes": "user-data, bytes",
    "password_set": "password set",
    "http_tokens": "http tokens",
    "created_at": "created",
    "updated_at": "updated",
}
_WORDS: Final = {**FIELDS, "userdata": "user-data"}
"""What a put changed, for people."""
_EMPTY_REMOVES: Final = "Empty: remove it."


@click.group("store")
def store() -> None:
    """Put, read and remove instances' metadata."""


@store.command("put")
@config_options
@click.argument("instance_id")
@click.option("--hostname", help=f"Host name, with or without a domain. {_EMPTY_REMOVES}")
@click.option("--name", help=f"The instance's name, free text. {_EMPTY_REMOVES}")
@click.option(
    "--user-data", metavar="FILE", help=f"Any bytes; - reads standard input. {_EMPTY_REMOVES}"
)
@click.option(
    "--ssh-key",
    "ssh_keys",
    multiple=True,
    metavar="KEY|@FILE",
    help="An OpenSSH public key, or a file of them. Repeatable; together they take the place of "
    "all keys before. Empty: no key.",
)
@click.option("--project", help=f"Id of the project that owns the instance. {_EMPTY_REMOVES}")
@click.option("--availability-zone", help=f"Where the instance runs. {_EMPTY_REMOVES}")
@click.option(
    "--meta",
    multiple=True,
    metavar="KEY=VALUE",
    help="For the guest to read. Repeatable; keys that are not named stay.",
)
@click.option(
    "--http-tokens",
    metavar="MODE|default",
    help="Whether the guest may ask with a token, or has to: off, optional or required. default: "
    "what the daemon's configuration says.",
)
def put(
    config_files: tuple[str, ...],
    instance_id: str,
    *,
    user_data: str | None,
    project: str | None,
    http_tokens: str | None,
    **members: Any,
) -> None:
    """Create the record of INSTANCE_ID, or change what is named of it and nothing else."""
    record_id = checks.instance_id(instance_id)
    document = _document_patch(**members)
    project_id: str | Keep | None = KEEP
    if project is not None:
        project_id = checks.text_value("--project", project) or None
    tokens: str | Keep | None = KEEP
    if http_tokens is not None:
        tokens = checks.http_tokens("--http-tokens", http_tokens)
    userdata = KEEP if user_data is None else _read_userdata(user_data)
    with _open(config_files) as repository:
        result = repository.put(
            record_id,
            document=document,
            userdata=userdata,
            project_id=project_id,
            http_tokens=tokens,
        )
    click.echo(_sentence(record_id, result))


def _document_patch(
    *,
    hostname: str | None,
    name: str | None,
    availability_zone: str | None,
    ssh_keys: tuple[str, ...],
    meta: tuple[str, ...],
) -> dict[str, object]:
    """Return what the options change in a document; an empty value removes (RFC 7396: null)."""
    patch: dict[str, object] = {}
    if hostname is not None:
        patch["hostname"] = checks.hostname("--hostname", hostname) or None
    if name is not None:
        patch["name"] = checks.text_value("--name", name) or None
    if availability_zone is not None:
        zone = checks.text_value("--availability-zone", availability_zone)
        patch["availability_zone"] = zone or None
    if ssh_keys:
        patch["ssh_keys"] = _read_keys(ssh_keys) or None
    if meta:
        patch["meta"] = dict(checks.meta_item("--meta", item) for item in meta)
    return patch


@store.command("get")
@config_options
@format_option
@click.argument("instance_id")
@click.option("--user-data", is_flag=True, help="Write the user-data alone, byte for byte.")
@click.option("--password", is_flag=True, help="Write what the guest posted, byte for byte.")
def get(
    config_files: tuple[str, ...],
    instance_id: str,
    *,
    fmt: str,
    user_data: bool,
    password: bool,
) -> None:
    """Show the record of INSTANCE_ID."""
    if user_data and password:
        raise click.UsageError("--user-data and --password exclude each other: name one of them")
    record_id = checks.instance_id(instance_id)
    with _open(config_files) as repository:
        record = repository.get(record_id)
    if record is None:
        raise _no_record(record_id)
    if user_data:
        _write_bytes(record.userdata, record_id=record_id, what="user-data")
    elif password:
        _write_bytes(record.password, record_id=record_id, what="password")
    elif fmt == TABLE:
        row = _full_row(record)
        rows = [{"field": title, "value": row.get(key)} for key, title in FIELDS.items()]
        print_rows(rows, {"field": "FIELD", "value": "VALUE"}, fmt)
    else:
        print_rows([_full_row(record)], {key: key for key in FIELDS}, fmt)


@store.command("list")
@config_options
@format_option
def list_records(config_files: tuple[str, ...], *, fmt: str) -> None:
    """List all records."""
    with _open(config_files) as repository:
        print_rows(_list_rows(repository.list()), LIST_COLUMNS, fmt)


@store.command("delete")
@config_options
@click.argument("instance_id")
def delete(config_files: tuple[str, ...], instance_id: str) -> None:
    """Remove the record of INSTANCE_ID, user-data and password included."""
    record_id = checks.instance_id(instance_id)
    with _open(config_files) as repository:
        if not repository.delete(record_id):
            raise _no_record(record_id)
    click.echo(f"{record_id}: deleted")


def _open(config_files: Sequence[str]) -> Repository:
    return Repository(load_config(config_files).store.connection)


def _no_record(record_id: str) -> StoreError:
    return StoreError(cause=f"no record of {record_id}; dfmeta store list shows what there is")


def _read_keys(values: Sequence[str]) -> list[str]:
    """Return the keys of all ``--ssh-key`` options, each a key itself or ``@FILE``."""
    keys: list[str] = []
    for value in values:
        if value.startswith("@"):
            content = _read_file("--ssh-key", value[1:]).decode("utf-8", "surrogateescape")
            keys += checks.ssh_keys("--ssh-key", content, name=value)
        else:
            keys += checks.ssh_keys("--ssh-key", value)
    return keys


def _read_userdata(name: str) -> bytes | None:
    """Return the bytes of a file or of stdin; None for an empty name."""
    if not name:
        return None
    if name == "-":
        content = sys.stdin.buffer.read(checks.USERDATA_MAX + 1)
    else:
        content = _read_file("--user-data", name)
    return checks.userdata("--user-data", content, name=name)


def _read_file(option: str, name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            return file.read(checks.USERDATA_MAX + 1)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(
            what=option, value=name, cause=cause, remedy="Name a file that can be read"
        ) from error


def _write_bytes(content: bytes | None, *, record_id: str, what: str) -> None:
    if content is None:
        raise StoreError(cause=f"{record_id} has no {what}")
    sys.stdout.buffer.write(content)


def _sentence(record_id: str, result: PutResult) -> str:
    what = ", ".join(_WORDS[member] for member in result.changed)
    if result.created:
        return f"{record_id}: created, with {what}" if what else f"{record_id}: created, empty"
    return f"{record_id}: changed {what}" if what else f"{record_id}: nothing to change"


def _full_row(record: Record) -> dict[str, object]:
    """Return what ``get`` shows: the document as it is stored, no user-data and no password."""
    document = parse_document(record.id, record.metadata)
    return {
        **{key: document.get(key) for key in FIELDS},
        "id": record.id,
        "project_id": record.project_id,
        "userdata_bytes": None if record.userdata is None else len(record.userdata),
        "password_set": record.password is not None,
        "http_tokens": record.http_tokens,
        "created_at": timestamp(record.created_at),
        "updated_at": timestamp(record.updated_at),
    }


def _list_rows(summaries: Iterator[Summary]) -> Iterator[dict[str, object]]:
    """Yield what ``list`` shows. A broken document is shown as one and hides no other record."""
    for summary in summaries:
        try:
            document = parse_document(summary.id, summary.metadata)
        except StoreError:
            document = {"name": "(broken document)"}
        keys = document.get("ssh_keys")
        yield {
            "id": summary.id,
            "hostname": document.get("hostname"),
            "name": document.get("name"),
            "project_id": summary.project_id,
            "ssh_keys": len(keys) if isinstance(keys, list) else 0,
            "userdata_bytes": summary.userdata_bytes,
            "password_set": summary.password_set,
            "updated_at": timestamp(summary.updated_at),
        }
