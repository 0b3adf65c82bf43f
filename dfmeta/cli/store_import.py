"""``dfmeta store import``: seeds of NoCloud, and bodies of the admin API, many at once."""

from __future__ import annotations

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

from dfmeta.cli.common import cell_text, ending
from dfmeta.cli.progress import Work, shown
from dfmeta.cli.store_choice import Records, StoreChoice, store_options
from dfmeta.cli.store_files import STDIN
from dfmeta.cli.store_put import WORDS
from dfmeta.cli.store_target import Domains, records_by_name
from dfmeta.exceptions import ImportIncompleteError, StoreError, StoreRefusedError
from dfmeta.store.api.checks import USERDATA_MAX
from dfmeta.store.api.client import Client
from dfmeta.store.api.seeds import FILES, METADATA, USERDATA, Seed, parse_line, parse_seed, uuid_of
from dfmeta.store.db.record import Push, Whole
from dfmeta.wiring.last_words import PROG

LINE_MAX: Final = 2 * USERDATA_MAX
"""Bytes: user-data in base64, and a document."""
OF_RECORD: Final = "the record of its folder's name"
TOGETHER: Final = 100
"""Lines that are written in one transaction: a disk is waited for once, others not for long."""


@click.command(
    "import",
    epilog=ending(
        "dfmeta store import seeds",
        "dfmeta store import --dry-run records.jsonl",
        failed="a seed or a line is wrong and was left out, or the store does not answer",
    ),
)
@store_options
@click.option("--dry-run", is_flag=True, help="Read and check everything, and write nothing.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def import_records(store: StoreChoice, *, dry_run: bool, paths: tuple[str, ...]) -> None:
    """Import folders of NoCloud seeds, and files with JSON lines.

    A folder is a seed itself (meta-data, user-data, vendor-data, network-config), or holds one
    folder for each instance. The instance is the one whose UUID or whose libvirt domain's name on
    this host the folder's name is, else the instance-id of its meta-data, else the local-hostname;
    else the one whose record has the folder's name. A seed takes the place of the record's document
    and user-data.

    Any other PATH is a file with a body of the admin API on each line: id, ipAddresses, and
    metadata or userdata. - reads standard input.

    What is wrong is named and left out; the rest is imported.
    """
    conf = store.conf()
    opened = contextlib.nullcontext() if dry_run else store.opened(conf)
    with opened as records, shown("reading") as progress:
        names = functools.cache(lambda: _names(store, conf, records))
        importing = _Import(records, Domains(conf), names, progress)
        for path in paths:
            importing.take(path)
    importing.report()


@dataclass
class _Import:
    """One run.

    :param records: None: nothing is written.
    """

    records: Records | None
    domains: Domains
    names: Callable[[], dict[str, list[str]]]
    """Of records that are there already; asked where nothing else names the instance."""
    progress: Work
    seeds: int = 0
    lines: int = 0
    older: int = 0
    wrong: int = 0
    owners: dict[str, str] = field(default_factory=dict)
    """Instance → the seed that was imported for it."""

    def take(self, path: str) -> None:
        """Import what a path of the command line names."""
        try:
            if path == STDIN:
                self._take_lines(sys.stdin.buffer, path, None)
            elif (folder := Path(path)).is_dir():
                seeds = _seeds(folder)
                if not seeds:
                    self._say(path, f"there is no seed in it: no {METADATA} and no folder")
                self.progress.begin(f"importing {cell_text(path)}", len(seeds), "seeds")
                for seed in seeds:
                    self._take_seed(seed)
                    self.progress.advance(1)
            else:
                with folder.open("rb") as file:
                    self._take_lines(file, path, folder.stat().st_size)
        except (OSError, ValueError) as error:
            self._say(path, getattr(error, "strerror", None) or str(error))

    def report(self) -> None:
        """Say what came of it.

        :raises ImportIncompleteError: something was wrong.
        """
        done = "imported" if self.records is not None else "would be imported"
        older = f", {self.older} of them older than what is there" if self.older else ""
        click.echo(f"{done}: {self.seeds} seeds, {self.lines} lines{older}")
        if self.wrong:
            cause = f"{self.wrong} of what was named were not {done.split()[-1]}"
            raise ImportIncompleteError(cause=cause)

    def _say(self, where: str, cause: object) -> None:
        self.wrong += 1
        click.echo(f"{PROG}: {cell_text(where)}: {cell_text(str(cause))}", err=True)

    # Seeds

    def _take_seed(self, folder: Path) -> None:
        where = str(folder)
        try:
            name, files = _read_seed(folder)
            seed = parse_seed(files)
            instance, why = self._owner(name, seed)
            if instance in self.owners:
                raise ValueError(f"its instance {instance} is that of {self.owners[instance]} too")
        except OSError as error:
            self._say(error.filename or where, error.strerror)
            return
        except ValueError as error:
            self._say(where, error)
            return
        self.owners[instance] = where
        document = dict(seed.document)
        if why == OF_RECORD:
            document["name"] = name  # what the record was found by
        if seed.instance_id and uuid_of(seed.instance_id) != instance:
            # A guest that has booted from the seed would take itself for a new instance.
            document["id"] = seed.instance_id
        with self._failures_of(where):
            if self.records is not None:
                self.records.put(instance, document=Whole(document), userdata=seed.userdata)
            self.seeds += 1
            click.echo(f"{cell_text(where)}: {instance}, by {why}: {_content(seed)}")

    def _owner(self, name: str, seed: Seed) -> tuple[str, str]:
        """Return the instance that a seed is for, and what says so.

        :param name: of the seed's folder.
        :raises ValueError: nothing does, or not clearly.
        """
        by_folder = self._instance(name)
        by_id = self._instance(seed.instance_id)
        if by_folder and by_id and by_folder != by_id:
            raise ValueError(
                f"its folder's name says {by_folder}, its instance-id {by_id}: rename the folder"
            )
        for instance, why in (
            (by_folder, "its folder's name"),
            (by_id, "its instance-id"),
            (self._instance(seed.hostname), "its local-hostname"),
        ):
            if instance:
                return instance, why
        if instance := _one(self.names().get(name, []), name, "records"):
            return instance, OF_RECORD
        trouble = f" ({self.domains.trouble})" if self.domains.trouble else ""
        raise ValueError(
            "neither its folder's name nor its instance-id or local-hostname is a UUID or the name "
            f"of a libvirt domain here{trouble} or of a record: name the folder after the instance"
        )

    def _instance(self, text: str) -> str:
        found = [uuid_of(text)] if uuid_of(text) else self.domains.ids(text)
        return _one(found, text, "libvirt domains")

    # Lines

    def _take_lines(self, file: BinaryIO, name: str, size: int | None) -> None:
        self.progress.begin(f"importing {cell_text(name)}", size, "bytes")
        batch: dict[str, list[Push]] = {}
        for number, line in enumerate(_read_lines(file), 1):
            self.progress.advance(len(line))
            where = f"{name}:{number}"
            try:
                if len(line) > LINE_MAX:
                    raise ValueError(f"it has more than {LINE_MAX} bytes")
                if line.strip():
                    batch[where] = _checked(parse_line(line))
            except ValueError as error:
                self._say(where, error)
            if len(batch) >= (1 if isinstance(self.records, Client) else TOGETHER):
                self._write(batch)
                batch = {}
        self._write(batch)

    def _write(self, batch: dict[str, list[Push]]) -> None:
        """Write lines together; where that fails, each by itself, to see which it is."""
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
    def _failures_of(self, where: str, known: StoreError | None = None) -> Iterator[None]:
        """Take what is wrong with one thing for that alone, unless all others would fail too.

        :param known: it has failed already.
        """
        try:
            if known is not None:
                raise known
            yield
        except StoreRefusedError:
            raise
        except StoreError as error:
            if self.records is not None:
                self.records.ping()
            self._say(where, error.fields.get("cause", error))


def _one(found: list[str], text: str, what: str) -> str:
    if len(found) > 1:
        raise ValueError(f"{len(found)} {what} are called {text}: {', '.join(found)}")
    return found[0] if found else ""


def _names(
    store: StoreChoice, conf: cfg.ConfigOpts, records: Records | None
) -> dict[str, list[str]]:
    """Return the ids of records by name.

    :param records: None: nothing is to be written, not even a newer schema.
    """
    if records is not None:
        return records_by_name(records)
    from dfmeta.store.db.database_facts import look
    from dfmeta.store.db.revisions import HEAD

    if store.url is None and look(conf.store.connection).revision != HEAD:
        return {}
    with store.opened(conf) as opened:
        return records_by_name(opened)


def _seeds(folder: Path) -> list[Path]:
    """Return the seeds of a folder: itself, or the folders in it."""
    if any((folder / name).exists() for name in FILES):
        return [folder]
    return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def _open_own(name: str, folder: int) -> BinaryIO:
    """Open a file of a seed, which may be another user's: no link to a file of ours, no pipe.

    :param folder: a descriptor of the seed's.
    :raises OSError: it cannot be opened, or is a link.
    :raises ValueError: it is no regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise ValueError(f"{name}: it is no regular file")


def _read_seed(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the name of a seed's folder, links followed, and the files of it that are there.

    The folder is looked up once. Were its name looked up apart from its files, another user's link
    could change between the two, and give one instance what is another's.

    :raises OSError: one cannot be read.
    :raises ValueError: it has no seed's, or one is too large.
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
    for name in FILES:
        with contextlib.suppress(FileNotFoundError), _open_own(name, folder) as file:
            files[name] = file.read(USERDATA_MAX + 1)
            if len(files[name]) > USERDATA_MAX:
                raise ValueError(f"{name}: it has more than {USERDATA_MAX} bytes")
    if METADATA in files or USERDATA in files:
        return files
    raise ValueError(f"it is no seed: it has neither {METADATA} nor {USERDATA}")


def _content(seed: Seed) -> str:
    parts = [WORDS.get(member, member) for member in seed.document]
    parts += [] if seed.userdata is None else [WORDS["userdata"]]
    left_out = f"; left out: {cell_text(list(seed.left_out))}" if seed.left_out else ""
    return f"{', '.join(parts) or 'empty'}{left_out}"


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is too long, enough to see that."""
    while line := file.readline(LINE_MAX + 1):
        rest = line
        while len(rest) > LINE_MAX and not rest.endswith(b"\n"):
            rest = file.readline(LINE_MAX + 1)
        yield line


def _checked(pushes: list[Push]) -> list[Push]:
    for push in pushes:
        if isinstance(push.content, bytes) and len(push.content) > USERDATA_MAX:
            raise ValueError(f"its userdata has more than {USERDATA_MAX} bytes")
    return pushes
