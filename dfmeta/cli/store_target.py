"""The record that a command works on: an instance's, by UUID or name, or a set of defaults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from oslo_config import cfg

from dfmeta.cli.common import cell_text
from dfmeta.cli.store_choice import Records
from dfmeta.errors import NoRecordError, RecordError
from dfmeta.sources.domain import Domain
from dfmeta.sources.folders import Folders
from dfmeta.store.api import checks
from dfmeta.store.api.client import Client
from dfmeta.store.api.listing import row_of
from dfmeta.store.api.requests import parse_id
from dfmeta.store.guest import defaults

INSTANCE = "INSTANCE"


@dataclass(frozen=True, slots=True)
class Target:
    """The record that a command works on."""

    record_id: str
    shown: str
    """The id for messages, with the name by which it was found."""
    default: bool = False
    """Whether it is a set of defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of the command line that choose a record."""

    instance: str | None
    default_id: str | None
    option: str = ""
    """The option that names the defaults."""

    def find(self, conf: cfg.ConfigOpts, records: Records) -> Target:
        """Return the record that the arguments choose.

        :raises RecordError: when no instance or several instances match.
        """
        if self.default_id is None:
            text = self.instance or ""
            record_id = parse_id(text) or named(text, Domains(conf), records)
            named_so = record_id != text.lower()
            shown = f"{record_id} ({cell_text(text)})" if named_so else record_id
            return Target(record_id, shown)
        if isinstance(records, Client):
            raise no_defaults(self.option, self.default_id)
        return Target(self.default_id, self.default_id, default=True)


class Domains:
    """libvirt's domains on this host, by their names in virsh."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        folders = [Path(path) for path in conf.df_metadata.libvirt_xml_path]
        scan = Folders(folders).scan()
        self.trouble = "; ".join(filter(None, [scan.error, *scan.broken]))
        """Files that could not be read, with reasons; empty if all were read."""
        self._domains: list[Domain] = scan.domains

    def ids(self, name: str) -> list[str]:
        """Return the UUIDs of the domains that have a name; normally one."""
        return sorted(
            {one.instance_id for one in self._domains if name and one.domain_name == name}
        )

    def of(self, instance_id: str) -> Domain | None:
        """Return the domain of an instance."""
        return next((one for one in self._domains if one.instance_id == instance_id), None)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command INSTANCE, and options for defaults instead of it, as ``asked: Asked``."""

    @click.argument("instance", metavar=f"[{INSTANCE}]", required=False)
    @click.option("--default", is_flag=True, help="Use the defaults for all instances.")
    @click.option("--default-host", metavar="NAME", help="Use the defaults for a host's instances.")
    @click.option(
        "--default-project", metavar="ID", help="Use the defaults for a project's instances."
    )
    @functools.wraps(function)
    def command(
        instance: str | None,
        default: bool,
        default_host: str | None,
        default_project: str | None,
        **values: Any,
    ) -> Any:
        host = _named("--default-host", default_host)
        project = _named("--default-project", default_project)
        asked = [
            Asked(instance=instance, default_id=default_id, option=option)
            for option, given, default_id in (
                (INSTANCE, instance is not None, None),
                ("--default", default, defaults.EVERYWHERE),
                ("--default-host", default_host is not None, defaults.of_host(host)),
                ("--default-project", default_project is not None, defaults.of_project(project)),
            )
            if given
        ]
        if len(asked) != 1:
            raise click.UsageError(
                f"give one of {INSTANCE}, --default, --default-host and --default-project"
            )
        return function(asked=asked[0], **values)

    return command


def no_defaults(option: str, value: str) -> RecordError:
    """Return the error for an option for defaults that is used with an admin API."""
    return RecordError(
        what=option,
        value=value,
        cause="the admin API gives access to records of instances only",
        remedy="Run the command on the store's own host, without --url",
    )


def no_record(target: Target) -> NoRecordError:
    """Return the error for a record that does not exist."""
    listing = "dfmeta store list lists the records"
    if target.default:
        listing = "dfmeta store list --default lists the defaults"
    return NoRecordError(cause=f"no record of {target.shown}", remedy=listing)


def named(name: str, domains: Domains, records: Records) -> str:
    """Return the UUID of the instance whose domain, or else whose record, has a name.

    :raises RecordError: when there is no such domain or record, or several have the name.
    """
    found, where = domains.ids(name), "libvirt domains"
    if not found and name:
        found, where = records_by_name(records).get(name, []), "records"
    if len(found) == 1:
        return found[0]
    if found:
        raise RecordError(
            what=INSTANCE,
            value=name,
            cause=f"{len(found)} {where} have that name: {', '.join(found)}",
            remedy="Give the UUID of the instance",
        )
    trouble = f" ({cell_text(domains.trouble)})" if domains.trouble else ""
    raise RecordError(
        what=INSTANCE,
        value=name,
        cause=f"it is not a UUID with dashes, and no libvirt domain on this host{trouble} and no "
        "record has that name",
        remedy="Give the UUID as virsh domuuid or openstack server show print it; dfmeta store "
        "list shows the names of records",
    )


def records_by_name(records: Records) -> dict[str, list[str]]:
    """Return the ids of the records that have a name, by that name."""
    found: dict[str, list[str]] = {}
    for row in records.list() if isinstance(records, Client) else map(row_of, records.list()):
        if row.get("name"):
            found.setdefault(str(row["name"]), []).append(str(row["id"]))
    return found


def _named(option: str, text: str | None) -> str:
    if text is None:
        return ""
    if not text.strip():
        raise RecordError(what=option, value=text, cause="it is empty", remedy="Give a value")
    return checks.text_value(option, text)
