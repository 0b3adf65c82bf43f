"""``dfmeta store import``: import of NoCloud seeds and of request bodies of the admin API."""

import contextlib
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import click
from oslo_config import cfg

from dfmeta.cli import common, store_edit, store_target
from dfmeta.errors import ImportIncompleteError, StoreError, StoreRefusedError
from dfmeta.store.api import client, requests
from dfmeta.store.api.checks import USERDATA_MAX, Seed, parse_seed
from dfmeta.store.db.record import Push, Whole
from dfmeta.store.guest import nocloud, values
from dfmeta.wiring.process import PROG

LINE_MAX: Final = 2 * USERDATA_MAX
"""Bytes: user-data in base64, and a document."""
OF_RECORD: Final = "the record of its directory's name"
TOGETHER: Final = 100
"""Lines in one transaction, which waits for the disk once; other writers do not wait long."""


@common.command(
    "import",
    "dfmeta store import seeds",
    "dfmeta store import --dry-run records.jsonl",
    failed="a seed or a line is wrong and was skipped, or the store does not answer",
)
@store_target.store_options
@click.option("--dry-run", is_flag=True, help="Read and check all input, and write nothing.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def import_records(
    store: store_target.StoreChoice, *, dry_run: bool, paths: tuple[str, ...]
) -> None:
    """Import directories of NoCloud seeds, and files with JSON lines.

    A directory is a seed (meta-data, user-data, vendor-data, network-config), or contains one
    directory for each instance. The first of these that is a UUID or the name of a libvirt domain
    on this host identifies the instance: the directory's name, the instance-id in its meta-data,
    the local-hostname. If none is, the instance is the one whose record has the directory's name. A
    seed replaces the record's document and user-data.

    Any other PATH is a file with a request body of the admin API on each line: id, ipAddresses, and
    metadata or userdata. - reads standard input.

    Wrong input is reported and skipped; the rest is imported.
    """
    conf = store.conf()
    opened = contextlib.nullcontext() if dry_run else store.opened(conf)
    with opened as records:
        names = functools.cache(lambda: _names(store, conf, records))
        importing = _Import(records, store_target.Domains(conf), names)
        for path in paths:
            importing.take(path)
    importing.report()


@dataclass
class _Import:
    """One run.

    :param records: None: nothing is written.
    """

    records: store_target.Records | None
    domains: store_target.Domains
    names: Callable[[], dict[str, list[str]]]
    """Returns the ids of existing records by name; called if nothing else names the instance."""
    seeds: int = 0
    lines: int = 0
    older: int = 0
    wrong: int = 0
    keys: int = 0
    """Texts among the keys of documents that are no keys: guests do not get them."""
    owners: dict[str, str] = field(default_factory=dict)
    """Instance → the seed for it that was imported."""

    def take(self, path: str) -> None:
        """Import the file or directory at a path of the command line."""
        try:
            if path == store_target.STDIN:
                self._take_lines(sys.stdin.buffer, path, None)
            elif (folder := Path(path)).is_dir():
                seeds = _seeds(folder)
                if not seeds:
                    self._say(path, f"it contains no seed: no {nocloud.METADATA} and no directory")
                work = f"importing {path}"
                for seed in common.counted(seeds, work, unit="seeds", total=len(seeds)):
                    self._take_seed(seed)
            else:
                with folder.open("rb") as file:
                    self._take_lines(file, path, folder.stat().st_size)
        except (OSError, ValueError) as error:
            self._say(path, getattr(error, "strerror", None) or str(error))

    def report(self) -> None:
        """Print the numbers of seeds and lines.

        :raises ImportIncompleteError: when some of the input was wrong.
        """
        done = "imported" if self.records is not None else "would be imported"
        older = f", {self.older} of them older than the store's records" if self.older else ""
        keys = f"; left out: {self.keys} of their keys, which are none" if self.keys else ""
        click.echo(f"{done}: {self.seeds} seeds, {self.lines} lines{older}{keys}")
        if self.wrong:
            items = "item" if self.wrong == 1 else "items"
            raise ImportIncompleteError(cause=f"{self.wrong} {items} not {done.split()[-1]}")

    def _say(self, where: str, cause: object) -> None:
        self.wrong += 1
        click.echo(f"{PROG}: {common.cell_text(where)}: {common.cell_text(str(cause))}", err=True)

    # Seeds

    def _take_seed(self, folder: Path) -> None:
        where = str(folder)
        try:
            name, files = _read_seed(folder)
            seed = parse_seed(files)
            instance, why = self._owner(name, seed)
            if instance in self.owners:
                raise ValueError(f"{self.owners[instance]} is for instance {instance} too")
        except OSError as error:
            self._say(error.filename or where, error.strerror)
            return
        except ValueError as error:
            self._say(where, error)
            return
        self.owners[instance] = where
        document = dict(seed.document)
        self.keys += len(values.unusable(document))
        if why == OF_RECORD:
            document["name"] = name  # keep the name by which the record was found
        if seed.instance_id and requests.parse_id(seed.instance_id) != instance:
            # Otherwise cloud-init in a guest that has booted from the seed sees a new instance.
            document["id"] = seed.instance_id
        with self._failures_of(where):
            if self.records is not None:
                self.records.put(instance, document=Whole(document), userdata=seed.userdata)
            self.seeds += 1
            click.echo(f"{common.cell_text(where)}: {instance}, by {why}: {_content(seed)}")

    def _owner(self, name: str, seed: Seed) -> tuple[str, str]:
        """Return the instance of a seed, and the name or id that identified it.

        :param name: name of the seed's directory.
        :raises ValueError: when none identifies an instance, or the names are ambiguous.
        """
        by_folder = self._instance(name)
        by_id = self._instance(seed.instance_id)
        if by_folder and by_id and by_folder != by_id:
            raise ValueError(
                f"its directory's name is of instance {by_folder}, its instance-id is of {by_id}: "
                "rename the directory"
            )
        for instance, why in (
            (by_folder, "its directory's name"),
            (by_id, "its instance-id"),
            (self._instance(seed.hostname), "its local-hostname"),
        ):
            if instance:
                return instance, why
        if instance := _single(self.names().get(name, []), name, "records"):
            return instance, OF_RECORD
        trouble = f" ({self.domains.trouble})" if self.domains.trouble else ""
        raise ValueError(
            "neither its directory's name nor its instance-id or local-hostname is a UUID or the "
            f"name of a libvirt domain on this host{trouble} or of a record: name the directory "
            "after the instance"
        )

    def _instance(self, text: str) -> str:
        instance = requests.parse_id(text)
        return instance or _single(self.domains.ids(text), text, "libvirt domains")

    # Lines

    def _take_lines(self, file: BinaryIO, name: str, size: int | None) -> None:
        batch: dict[str, list[Push]] = {}
        with common.shown(f"importing {name}", unit="bytes", total=size) as work:
            for number, line in enumerate(_read_lines(file), 1):
                work.done += len(line)
                where = f"{name}:{number}"
                try:
                    if line.strip():
                        batch[where] = self._pushes(line)
                except ValueError as error:
                    self._say(where, error)
                if len(batch) >= (1 if isinstance(self.records, client.StoreClient) else TOGETHER):
                    self._write(batch)
                    batch = {}
            self._write(batch)

    def _pushes(self, line: bytes) -> list[Push]:
        """Return the pushes of a line.

        :raises ValueError: when it is wrong.
        """
        if len(line) > LINE_MAX:
            raise ValueError(f"it has more than {LINE_MAX} bytes")
        pushes = requests.parse_line(line)
        for push in pushes:
            if not isinstance(push.content, bytes):
                self.keys += len(values.unusable(push.content))
            elif len(push.content) > USERDATA_MAX:
                raise ValueError(f"its userdata has more than {USERDATA_MAX} bytes")
        return pushes

    def _write(self, batch: dict[str, list[Push]]) -> None:
        """Write lines in one transaction; if that fails, one by one, to find the wrong lines."""
        try:
            self._push([push for pushes in batch.values() for push in pushes])
            self.lines += len(batch)
        except StoreError as error:
            for where, pushes in batch.items():
                with self._failures_of(where, error if len(batch) == 1 else None):
                    self._push(pushes)
                    self.lines += 1

    def _push(self, pushes: list[Push]) -> None:
        if self.records is not None and pushes:
            self.older += self.records.push_all(pushes).count(False)

    @contextlib.contextmanager
    def _failures_of(self, where: str, failure: StoreError | None = None) -> Iterator[None]:
        """Report an error of one seed or line, unless the store itself has failed.

        :param failure: the error, if the write has failed already.
        :raises StoreError: when the store refuses all writes or does not answer.
        """
        try:
            if failure is not None:
                raise failure
            yield
        except StoreRefusedError:
            raise
        except StoreError as error:
            if self.records is not None:
                self.records.ping()
            self._say(where, error.fields.get("cause", error))


def _single(ids: list[str], name: str, what: str) -> str:
    if len(ids) > 1:
        raise ValueError(f"{len(ids)} {what} have the name {name}: {', '.join(ids)}")
    return ids[0] if ids else ""


def _names(
    store: store_target.StoreChoice, conf: cfg.ConfigOpts, records: store_target.Records | None
) -> dict[str, list[str]]:
    """Return the ids of records by name.

    :param records: None: nothing may be written, not even a newer schema.
    """
    if records is not None:
        return store_target.records_by_name(records)
    from dfmeta.store.db import HEAD
    from dfmeta.store.db.database_facts import look

    if store.url is None and look(conf.store.connection).revision != HEAD:
        return {}
    with store.opened(conf) as opened:
        return store_target.records_by_name(opened)


def _seeds(folder: Path) -> list[Path]:
    """Return the seeds of a directory: itself, or the directories in it."""
    if any((folder / name).exists() for name in nocloud.NAMES):
        return [folder]
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _open_own(name: str, folder: int) -> BinaryIO:
    """Open a regular file of a seed, but no link and no pipe: another user may own the seed.

    :param folder: descriptor of the seed's directory.
    :raises OSError: when it cannot be opened, or is a link.
    :raises ValueError: when it is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise ValueError(f"{name}: it is not a regular file")


def _read_seed(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the name of a seed's directory, with links followed, and the files that it contains.

    The directory is opened once. With separate lookups for its name and its files, another user
    could change a link in between, and give one instance the data of another.

    :raises OSError: when a file cannot be read.
    :raises ValueError: when it contains no seed, or a file is too large.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files = _files_of(folder)
        return Path(os.readlink(f"/proc/self/fd/{folder}")).name, files
    except OSError as error:
        error.filename = str(path / (error.filename or ""))
        raise
    finally:
        os.close(folder)


def _files_of(folder: int) -> dict[str, bytes]:
    files = {}
    for name in nocloud.NAMES:
        with contextlib.suppress(FileNotFoundError), _open_own(name, folder) as file:
            files[name] = file.read(USERDATA_MAX + 1)
            if len(files[name]) > USERDATA_MAX:
                raise ValueError(f"{name}: it has more than {USERDATA_MAX} bytes")
    if nocloud.METADATA in files or nocloud.USERDATA in files:
        return files
    raise ValueError(f"it is not a seed: it has neither {nocloud.METADATA} nor {nocloud.USERDATA}")


def _content(seed: Seed) -> str:
    parts = [store_edit.WORDS.get(member, member) for member in seed.document]
    parts += [] if seed.userdata is None else [store_edit.WORDS["userdata"]]
    left_out = f"; left out: {common.cell_text(list(seed.left_out))}" if seed.left_out else ""
    return f"{', '.join(parts) or 'empty'}{left_out}"


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of a line that is too long, its first :data:`LINE_MAX` + 1 bytes."""
    while line := file.readline(LINE_MAX + 1):
        rest = line
        while len(rest) > LINE_MAX and not rest.endswith(b"\n"):
            rest = file.readline(LINE_MAX + 1)
        yield line
