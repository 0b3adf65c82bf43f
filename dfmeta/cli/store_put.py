"""``dfmeta store put``."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import click
from oslo_config import cfg

from dfmeta.cli.common import cell_text, ending
from dfmeta.cli.progress import shown
from dfmeta.cli.store_target import (
    STDIN,
    Asked,
    Domains,
    Records,
    StoreChoice,
    Target,
    read,
    store_options,
    target_options,
)
from dfmeta.errors import RecordError
from dfmeta.store.api import checks
from dfmeta.store.api.client import StoreClient
from dfmeta.store.db.record import KEEP, PutResult, Record, Whole, merge_patch, parse_document
from dfmeta.store.guest import defaults
from dfmeta.wiring.process import PROG

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


@click.command(
    "put",
    epilog=ending(
        "dfmeta store put 6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10 --hostname web --ssh-key @id.pub",
        "dfmeta store put web --user-data user-data.yaml --meta tier=front",
        "dfmeta store put --default --ssh-key @id.pub",
        failed="the store cannot be written or does not answer",
    ),
)
@store_options
@target_options
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
def put(store: StoreChoice, asked: Asked, **options: Any) -> None:
    """Create the record of INSTANCE, or change the parts of it that the options name.

    INSTANCE is a UUID, or the name of a libvirt domain on this host or of a record.
    """
    if [options[name] for name in _FILES].count(STDIN) > 1:
        raise click.UsageError("standard input can be read once: name files for the others")
    conf = store.conf()
    values = _values(**options)
    if asked.default_id is not None:
        _check_default(options, values["document"])
    with store.opened(conf) as records:
        target = asked.find(conf, records)
        if not any(given not in (None, ()) for given in options.values()):
            raise click.UsageError(
                "no part of the record is given: give at least one option such as --hostname"
            )
        lost = lost_defaults(conf, records, target)
        with shown(f"writing {target.shown}"):
            result = records.put(target.record_id, **values)
        left = lost.members(records)
    click.echo(_sentence(target, result))
    if left:
        click.echo(lost.sentence(words_of(left)), err=True)


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
    return read(option, name, limit=checks.USERDATA_MAX)


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


def words_of(members: Iterable[str]) -> str:
    """Return the names of members for messages, with commas between them."""
    return ", ".join(WORDS.get(member, cell_text(member)) for member in members)


def _sentence(target: Target, result: PutResult) -> str:
    what = words_of(result.changed)
    if not result.compared:
        return f"{target.shown}: written, with {what}; not compared with the earlier record"
    if result.created:
        return (
            f"{target.shown}: created, with {what}" if what else f"{target.shown}: created, empty"
        )
    return f"{target.shown}: changed {what}" if what else f"{target.shown}: nothing to change"


@dataclass(frozen=True, slots=True)
class Lost:
    """The defaults that an instance has got so far."""

    target: Target
    before: Record | None
    """The merged defaults; None if it had a record of its own, or has no defaults."""

    def members(self, records: Records) -> tuple[str, ...]:
        """Return the members of the defaults that the instance does not get any more."""
        after = records.get(self.target.record_id) if self.before is not None else None
        if self.before is None or after is None or after.empty:
            return ()
        had, has = (parse_document(one.id, one.metadata) for one in (self.before, after))
        lost = [name for name in had if name not in has]
        lost += [
            name
            for name in ("userdata", "http_tokens")
            if getattr(self.before, name) is not None and getattr(after, name) is None
        ]
        return tuple(lost)

    def sentence(self, words: str) -> str:
        """Return the warning about the members that are lost.

        :param words: their names.
        """
        return (
            f"{PROG}: {self.target.shown} had these from the defaults, and loses them: {words}. "
            "A record of its own replaces all defaults: put them into the record as well, "
            f"or return to the defaults: dfmeta store delete {self.target.record_id}"
        )


def lost_defaults(conf: cfg.ConfigOpts, records: Records, target: Target) -> Lost:
    """Return the defaults that an instance gets before a put gives it a record.

    An admin API does not give access to defaults: with one, they are unknown.
    """
    if isinstance(records, StoreClient) or target.default or not conf.store.defaults:
        return Lost(target, None)
    own = records.get(target.record_id)
    if own is not None and not own.empty:
        return Lost(target, None)
    domain = Domains(conf).of(target.record_id)
    project = (domain.project_id if domain else "") or (own.project_id if own else "") or ""
    ids = defaults.layers(host=socket.gethostname(), project_id=project)
    found = [one for one in map(records.get, ids) if one is not None]
    name = (domain.name or domain.domain_name) if domain else ""
    merged = defaults.merged(found, target.record_id, instance_name=name, project_id=project)
    return Lost(target, merged)
