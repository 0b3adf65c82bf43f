"""The store and the record that a command works on.

The store is the configured database, or an admin API. The record is an instance's, chosen by UUID
or name, or a set of defaults.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from oslo_config import cfg

from dfmeta.cli.common import cell_text, completions, config_files_option, load_config, shown
from dfmeta.errors import DfmetaError, NoRecordError, RecordError
from dfmeta.http.client import TOKEN_MAX
from dfmeta.sources.domain import Domain, Folders
from dfmeta.store.api import checks, requests
from dfmeta.store.api.client import StoreClient
from dfmeta.store.api.representations import row_of
from dfmeta.store.db import HEAD
from dfmeta.store.db.database_facts import look
from dfmeta.store.db.repository import PAGE, Repository
from dfmeta.store.guest import defaults

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

INSTANCE: Final = "INSTANCE"
STDIN: Final = "-"
TOKEN: Final = "DFMETA_TOKEN"  # noqa: S105  # the variable's name

Records = Repository | StoreClient


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """The options of the command line that choose the store."""

    config_files: tuple[str, ...]
    url: str | None
    token_file: str | None
    ca_file: str | None

    def conf(self) -> cfg.ConfigOpts:
        """Read the configuration.

        :raises ConfigError: when it is wrong.
        """
        return load_config(self.config_files)

    @contextlib.contextmanager
    def opened(self, conf: cfg.ConfigOpts) -> Iterator[Records]:
        """Open the store.

        :raises StoreError: when the database cannot be opened.
        :raises RecordError: when the URL or the token is invalid.
        """
        if self.url is None:
            # This waits for a server that is unavailable, and upgrades an older schema.
            with shown("opening the store"):
                repository = Repository(conf.store.connection)
            with repository:
                yield repository
            return
        yield StoreClient(self.url, token=_token(self.token_file), ca_file=self.ca_file or "")


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose the store, as ``store: StoreChoice``."""

    @config_files_option
    @click.option(
        "--url",
        metavar="URL",
        help="Use the admin API of a store, such as http://127.0.0.1:9697, instead of the "
        "configured database.",
    )
    @click.option(
        "--token-file",
        metavar="FILE",
        help=f"File with the token for --url. Default: the environment variable {TOKEN}.",
    )
    @click.option(
        "--ca-file",
        metavar="FILE",
        help="PEM file with the certificates of the only authorities to trust for an https URL. "
        "Default: the system's authorities.",
    )
    @functools.wraps(function)
    def command(
        config_files: tuple[str, ...],
        url: str | None,
        token_file: str | None,
        ca_file: str | None,
        **values: Any,
    ) -> Any:
        if url is None and (token_file or ca_file):
            raise click.UsageError("--token-file and --ca-file need --url: give it as well")
        store = StoreChoice(
            config_files=config_files, url=url, token_file=token_file, ca_file=ca_file
        )
        return function(store=store, **values)

    return command


def _token(file: str | None) -> str:
    """Return the token from *file* or the environment; empty if neither gives one."""
    shown = file or TOKEN
    if file is None:
        token = os.environ.get(TOKEN, "")
    else:
        with _readable("--token-file", file), Path(file).open("rb") as opened:
            token = opened.read(TOKEN_MAX).decode("latin-1").strip()
    if not all("!" <= character <= "~" for character in token) or (file and not token):
        raise RecordError(
            what="--token-file" if file else "the environment",
            value=shown,
            cause="it contains no token",
            remedy="Write the token alone on one line",
        )
    return token


@dataclass(frozen=True, slots=True)
class Target:
    """The record that a command works on."""

    record_id: str
    shown: str
    """The id for messages, with the name by which it was found."""
    default: bool = False
    """Whether it is a set of defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
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
            record_id = requests.parse_id(text) or named(text, Domains(conf), records)
            named_so = record_id != text.lower()
            shown = f"{record_id} ({cell_text(text)})" if named_so else record_id
            return Target(record_id, shown)
        if isinstance(records, StoreClient):
            raise no_defaults(self.option, self.default_id)
        return Target(self.default_id, self.default_id, default=True)


def complete_instance(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return ids and names of records that begin with the incomplete word, for a shell.

    The names of the first :data:`PAGE` records count, all ids, and for ``put`` libvirt's domains;
    nothing if the store does not answer, or its schema is not this dfmeta's.
    """
    given = {name: ctx.params.get(name) for name in ("url", "token_file", "ca_file")}
    store = StoreChoice(config_files=ctx.params.get("config_files") or (), **given)
    words: dict[str, str] = {}
    with contextlib.suppress(DfmetaError):
        conf = store.conf()
        if ctx.info_name == "put":
            words = Domains(conf).names()
        for row in _first_rows(store, conf, incomplete):
            words |= {
                str(row["id"]): str(row["name"] or ""),
                str(row["name"] or ""): str(row["id"]),
            }
    return completions(words.items(), incomplete)


def _first_rows(store: StoreChoice, conf: cfg.ConfigOpts, after: str) -> list[dict[str, Any]]:
    if store.url is not None:
        with store.opened(conf) as records:
            return [*islice(rows_of(records), PAGE)]
    if look(conf.store.connection).revision != HEAD:  # to open it would upgrade or create it
        return []
    with Repository(conf.store.connection) as repository:
        return [row_of(row) for row in (*repository.page(""), *repository.page(after))]


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
            {each.instance_id for each in self._domains if name and each.domain_name == name}
        )

    def names(self) -> dict[str, str]:
        """Return the UUIDs of all domains by name."""
        return {domain.domain_name: domain.instance_id for domain in self._domains}

    def of(self, instance_id: str) -> Domain | None:
        """Return the domain of an instance."""
        matching = (domain for domain in self._domains if domain.instance_id == instance_id)
        return next(matching, None)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command INSTANCE, and options for defaults instead of it, as ``choice``."""

    @click.argument(
        "instance", metavar=f"[{INSTANCE}]", required=False, shell_complete=complete_instance
    )
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
        choices = [
            TargetChoice(instance=instance, default_id=default_id, option=option)
            for option, given, default_id in (
                (INSTANCE, instance is not None, None),
                ("--default", default, defaults.EVERYWHERE),
                ("--default-host", default_host is not None, defaults.of_host(host)),
                ("--default-project", default_project is not None, defaults.of_project(project)),
            )
            if given
        ]
        if len(choices) != 1:
            raise click.UsageError(
                f"give one of {INSTANCE}, --default, --default-host and --default-project"
            )
        return function(choice=choices[0], **values)

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
    ids, where = domains.ids(name), "libvirt domains"
    if not ids and name:
        ids, where = records_by_name(records).get(name, []), "records"
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise RecordError(
            what=INSTANCE,
            value=name,
            cause=f"{len(ids)} {where} have that name: {', '.join(ids)}",
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


def rows_of(records: Records, *, defaults: bool = False) -> Iterable[dict[str, Any]]:
    """Return the rows of a listing of the store.

    :param defaults: list the defaults instead of instances' records; not of an admin API.
    """
    if isinstance(records, StoreClient):
        return records.list()
    return map(row_of, records.list(defaults=defaults))


def records_by_name(records: Records) -> dict[str, list[str]]:
    """Return the ids of the records that have a name, by that name."""
    by_name: dict[str, list[str]] = {}
    for row in rows_of(records):
        if row.get("name"):
            by_name.setdefault(str(row["name"]), []).append(str(row["id"]))
    return by_name


def _named(option: str, text: str | None) -> str:
    if text is None:
        return ""
    if not text.strip():
        raise RecordError(what=option, value=text, cause="it is empty", remedy="Give a value")
    return checks.text_value(option, text)


def read(option: str, name: str, *, limit: int) -> bytes:
    """Return the bytes of a file or of standard input, at most one more than *limit*.

    :raises RecordError: when it cannot be read.
    """
    with _readable(option, name):
        if name == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        with Path(name).open("rb") as file:
            return file.read(limit + 1)


@contextlib.contextmanager
def _readable(option: str, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise RecordError(
            what=option, value=name, cause=cause, remedy="Name a file that can be read"
        ) from error
