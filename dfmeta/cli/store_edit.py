"""``dfmeta store put`` and ``dfmeta store delete``, with the copy of a deleted record."""

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from oslo_config import cfg

from dfmeta.cli import common, store_target
from dfmeta.errors import RecordError, StoreError
from dfmeta.store.api import checks, client
from dfmeta.store.db.record import KEEP, PutResult, Record, Whole, merge_patch, parse_document
from dfmeta.store.guest import defaults
from dfmeta.wiring.process import PROG

FOLDER: Final = "deleted"
"""Name of the directory of copies in state_path."""
_EXAMPLE: Final = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"
WORDS: Final = {
    "project_id": "project",
    "availability_zone": "availability zone",
    "ssh_keys": "ssh keys",
    "http_tokens": "http tokens",
    "userdata": "user-data",
    "vendor_data": "vendor data",
    "tag_devices": "tag devices",
    "network_config": "network config",
}
"""Member of a record → its name in messages, where the two differ."""
_EMPTY_REMOVES: Final = "Empty: remove it."
_FILES: Final = ("user_data", "vendor_data", "network_config", "json_file")


def _typed(context: click.Context, parameter: click.Parameter, value: bool) -> bool | None:
    """Return None for a flag that was not typed: click 8.2.2, of OpenStack 2025.2, gives False."""
    source = context.get_parameter_source(str(parameter.name))
    return value if source is ParameterSource.COMMANDLINE else None


@common.command(
    "put",
    "dfmeta store put 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10 --hostname web --ssh-key @id.pub",
    "dfmeta store put web --user-data user-data.yaml --meta tier=front",
    "dfmeta store put --default --ssh-key @id.pub",
    failed="the store cannot be written or does not answer",
)
@store_target.store_options
@store_target.target_options
@click.option("--hostname", help=f"Host name, with or without a domain. {_EMPTY_REMOVES}")
@click.option("--name", help=f"Name of the instance, free text. {_EMPTY_REMOVES}")
@click.option(
    "--user-data",
    metavar="FILE",
    help=f"File with the user-data, any bytes; - reads standard input. {_EMPTY_REMOVES}",
)
@click.option(
    "--vendor-data",
    metavar="FILE",
    help="File with the vendor data, which cloud-init processes before the user-data and which the "
    f"user-data overrides: a text in the form of user-data, or a JSON object. {_EMPTY_REMOVES}",
)
@click.option(
    "--tag-devices/--no-tag-devices",
    default=None,
    callback=_typed,
    help="Add the program dfmeta-tag-devices to the vendor data; in the guest it finds devices by "
    "their roles.",
)
@click.option(
    "--network-config",
    metavar="FILE",
    help=f"File with cloud-init's network configuration, YAML or JSON. {_EMPTY_REMOVES}",
)
@click.option(
    "--ssh-key",
    "ssh_keys",
    multiple=True,
    metavar="KEY|@FILE",
    help="An OpenSSH public key, or a file of keys. Repeatable; the keys given replace all earlier "
    "keys. Empty: remove all keys.",
)
@click.option("--project", help=f"Id of the project that owns the instance. {_EMPTY_REMOVES}")
@click.option("--availability-zone", help=f"Availability zone of the instance. {_EMPTY_REMOVES}")
@click.option(
    "--meta",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key and its value for the guest to read. Repeatable; keys that are not named stay.",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="NETWORK",
    help="An address or a network of the instance, for a store that identifies guests by their "
    "address. Repeatable; the addresses given replace all earlier ones. Empty: remove all.",
)
@click.option(
    "--http-tokens",
    metavar="MODE|default",
    help="Use of tokens in the guest's requests: off, optional or required. default: the setting "
    "of the daemon's configuration.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="File with a complete document, a JSON object, which replaces the earlier document; the "
    "other options change it.",
)
def put(store: store_target.StoreChoice, choice: store_target.TargetChoice, **options: Any) -> None:
    """Create the record of INSTANCE, or change the parts of it that the options name.

    INSTANCE is a UUID, or the name of a libvirt domain on this host or of a record.
    """
    if [options[name] for name in _FILES].count(store_target.STDIN) > 1:
        raise click.UsageError("standard input can be read once: name files for the others")
    conf = store.conf()
    values = _values(**options)
    if choice.default_id is not None:
        _check_default(options, values["document"])
    with store.opened(conf) as records:
        target = choice.find(conf, records)
        if not any(given not in (None, ()) for given in options.values()):
            raise click.UsageError(
                "no part of the record is given: give at least one option such as --hostname"
            )
        before = _defaults_of(conf, records, target)
        with common.shown(f"writing {target.shown}"):
            result = records.put(target.record_id, **values)
        lost = _lost(before, records.get(target.record_id)) if before is not None else []
    click.echo(_sentence(target, result))
    if lost:
        click.echo(
            f"{PROG}: {target.shown} had these from the defaults, and loses them: "
            f"{_words_of(lost)}. A record of its own replaces all defaults: put them into the "
            f"record as well, or return to the defaults: dfmeta store delete {target.record_id}",
            err=True,
        )


def _values(
    *,
    json_file: str | None,
    user_data: str | None,
    project: str | None,
    http_tokens: str | None,
    addresses: tuple[str, ...],
    **members: Any,
) -> dict[str, Any]:
    """Return the arguments of the repository's put."""
    patch = _patch(**members)
    values: dict[str, Any] = {"document": patch}
    if json_file is not None:
        document = _checked("--json", json_file, checks.document) or {}
        values["document"] = Whole(merge_patch(document, patch))
    if user_data is not None:
        values["userdata"] = _checked("--user-data", user_data, checks.userdata)
    if project is not None:
        values["project_id"] = checks.text_value("--project", project) or None
    if http_tokens is not None:
        values["http_tokens"] = checks.http_tokens("--http-tokens", http_tokens)
    values["networks"] = checks.networks("--address", addresses) if addresses else KEEP
    return values


def _patch(
    *,
    ssh_keys: tuple[str, ...],
    meta: tuple[str, ...],
    tag_devices: bool | None,
    **texts: str | None,
) -> dict[str, object]:
    """Return the options' changes of a document; an empty value removes (RFC 7396: null)."""
    patch: dict[str, object] = {}
    for member, check in (
        ("hostname", checks.hostname),
        ("name", checks.text_value),
        ("availability_zone", checks.text_value),
    ):
        if (text := texts[member]) is not None:
            patch[member] = check(_option(member), text) or None
    for member, read_file in (
        ("vendor_data", checks.vendor_data),
        ("network_config", checks.network_config),
    ):
        if (name := texts[member]) is not None:
            patch[member] = _checked(_option(member), name, read_file)
    if tag_devices is not None:
        patch["tag_devices"] = tag_devices or None
    if ssh_keys:
        patch["ssh_keys"] = _read_keys(ssh_keys) or None
    if meta:
        patch["meta"] = dict(checks.meta_item("--meta", item) for item in meta)
    return patch


def _option(member: str) -> str:
    return f"--{member.replace('_', '-')}"


def _read(option: str, name: str) -> bytes:
    return store_target.read(option, name, limit=checks.USERDATA_MAX)


def _checked(option: str, name: str, check: Any) -> Any:
    """Return the result of a check of a file's content; None without a name."""
    return check(option, _read(option, name), name=name) if name else None


def _read_keys(values: tuple[str, ...]) -> list[str]:
    """Return the keys of all ``--ssh-key`` options; a value is a key or ``@FILE``."""
    keys: list[str] = []
    for value in values:
        if value.startswith("@"):
            content = _read("--ssh-key", value[1:]).decode("utf-8", "surrogateescape")
            keys += checks.ssh_keys("--ssh-key", content, name=value)
        else:
            keys += checks.ssh_keys("--ssh-key", value)
    return keys


def _check_default(options: dict[str, Any], document: Any) -> None:
    """Refuse options that cannot apply to several instances.

    :raises RecordError: naming the option.
    """
    for option, value in (
        ("--hostname", options["hostname"]),
        ("--json", isinstance(document, Whole) and document.document.get("hostname")),
        ("--address", ", ".join(options["addresses"])),
        ("--project", options["project"]),
    ):
        if value:
            raise RecordError(
                what=option,
                value=value,
                cause="defaults apply to many instances, and this value belongs to one instance",
                remedy="Leave it out: the host name is made from the libvirt domain's name"
                if option in ("--hostname", "--json")
                else "Leave it out, or put it into the instance's record",
            )


def _words_of(members: Iterable[str]) -> str:
    """Return the names of members for messages, with commas between them."""
    return ", ".join(WORDS.get(member, common.cell_text(member)) for member in members)


def _sentence(target: store_target.Target, result: PutResult) -> str:
    what = _words_of(result.changed)
    if not result.compared:
        return f"{target.shown}: written, with {what}; not compared with the earlier record"
    if result.created:
        return f"{target.shown}: created, {f'with {what}' if what else 'empty'}"
    return f"{target.shown}: {f'changed {what}' if what else 'nothing to change'}"


def _defaults_of(
    conf: cfg.ConfigOpts, records: store_target.Records, target: store_target.Target
) -> Record | None:
    """Return the merged defaults that an instance gets before a put gives it a record.

    None if it has a record, or no defaults; an admin API does not give access to defaults.
    """
    if isinstance(records, client.StoreClient) or target.default or not conf.store.defaults:
        return None
    record = records.get(target.record_id)
    if record is not None and not record.empty:
        return None
    domain = store_target.Domains(conf).of(target.record_id)
    project = (domain.project_id if domain else "") or (record.project_id if record else "") or ""
    ids = defaults.layers(host=socket.gethostname(), project_id=project)
    layers = [layer for layer in map(records.get, ids) if layer is not None]
    name = (domain.name or domain.domain_name) if domain else ""
    return defaults.merged(layers, target.record_id, instance_name=name, project_id=project)


def _lost(before: Record, after: Record | None) -> list[str]:
    """Return the members of the defaults that the instance does not get any more.

    :param before: the merged defaults.
    """
    if after is None or after.empty:
        return []
    had, has = (parse_document(each.id, each.metadata) for each in (before, after))
    outside = [
        name
        for name in ("userdata", "http_tokens")
        if getattr(before, name) is not None and getattr(after, name) is None
    ]
    return [*(name for name in had if name not in has), *outside]


@common.command(
    "delete",
    f"dfmeta store delete {_EXAMPLE}",
    failed="there is no such record, or the answer was no",
)
@store_target.store_options
@store_target.target_options
@common.yes_option
@click.option(
    "--copy",
    "folder",
    metavar="DIRECTORY",
    help="Directory for a copy of the record; a later copy of the same record replaces an earlier "
    "one. Default: deleted in state_path, and no copy with --url. Empty: no copy.",
)
def delete(
    store: store_target.StoreChoice,
    choice: store_target.TargetChoice,
    *,
    yes: bool,
    folder: str | None,
) -> None:
    """Delete the record of INSTANCE, including user-data and password.

    On a terminal the command asks for confirmation; in a script it does not. It prints the command
    that restores the record from its copy. The copy does not contain the password that the guest
    has posted.
    """
    conf = store.conf()
    with store.opened(conf) as records:
        target = choice.find(conf, records)
        if folder is None:
            here = not isinstance(records, client.StoreClient)
            folder = str(Path(conf.df_metadata.state_path) / FOLDER) if here else ""
        common.confirm(f"Delete the record of {target.shown}?", yes=yes)
        back = ""
        if folder and (record := records.get(target.record_id)) is not None:
            options = _keep(record, records.addresses(record.id), folder=Path(folder))
            back = shlex.join([*_command(store, choice, target), *options]) if options else ""
        if not records.delete(target.record_id):
            raise store_target.no_record(target)
    click.echo(f"{target.shown}: deleted")
    if back:
        click.echo(f"A copy is kept. To restore it: {back}")


def _command(
    store: store_target.StoreChoice, choice: store_target.TargetChoice, target: store_target.Target
) -> list[str]:
    """Return the beginning of the command that restores a record."""
    words = ["dfmeta", "store", "put"]
    for option, values in (
        (common.CONFIG_FILE, store.config_files),
        ("--url", [store.url] if store.url else []),
        ("--token-file", [store.token_file] if store.token_file else []),
        ("--ca-file", [store.ca_file] if store.ca_file else []),
    ):
        words += [word for value in values for word in (option, value)]
    if not target.default:
        return [*words, target.record_id]
    name = target.record_id.split(":", 2)[2:]
    return [*words, choice.option, *name]


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
    return [*options, *(word for address in addresses for word in ("--address", address))]


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(content)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
