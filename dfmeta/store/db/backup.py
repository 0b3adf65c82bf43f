"""Backup and restore of a store in SQLite, while a daemon uses it.

A plain copy of the file lacks the contents of the write-ahead log. A file that replaces another one
whose log still exists would be read with the log of the old file
(https://www.sqlite.org/howtocorrupt.html, 1.4). So a backup is a ``VACUUM INTO``, and a restore
writes into the store's file with SQLite's backup interface (https://www.sqlite.org/backup.html).
"""

import contextlib
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dfmeta.errors import BackupError, StoreDamagedError
from dfmeta.runtime import clock
from dfmeta.store.db import database, dialect

_NO_DATABASE: Final = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
_MAGIC: Final = b"SQLite format 3\0"
_BACKUP: Final = "Make its backup with pg_dump --format=custom --file FILE DATABASE"
_RESTORE: Final = "Restore it with pg_restore --clean --if-exists --dbname DATABASE FILE"
_REMEDY: Final = "Name a file that dfmeta store backup wrote"


def backup(url: str, file: Path) -> int:
    """Write a consistent copy of a complete store into a new file, mode 0600.

    :param url: the store's URL; see :class:`dfmeta.store.db.database.Database`.
    :returns: how many records the copy has.
    :raises StoreError: the store is not in a file, *file* already exists, or a step fails.
    """
    path = _path_of(url, _BACKUP)
    if file.exists():
        raise BackupError(cause=f"{file}: it already exists", remedy="Name a new file")
    if not file.absolute().parent.is_dir():
        cause = f"{file}: its directory does not exist"
        raise BackupError(cause=cause, remedy="Create the directory first")
    if not path.exists():
        cause = f"{path}: the store does not exist"
        remedy = "Name the daemon's configuration with --config-file"
        raise BackupError(cause=cause, remedy=remedy)
    if not path.stat().st_size:
        raise StoreDamagedError(cause=f"{path}: {dialect.CUT}")
    return _copy_into_place(path, file)


def before_restore(url: str) -> Path:
    """Return the default path at which a restore keeps a copy of the previous store.

    :raises StoreError: the store is not in a file.
    """
    path = _path_of(url, _RESTORE)
    return path.with_name(f"{path.name}.before-restore")


def restore(url: str, file: Path, *, keep: Path | None = None) -> tuple[int, bool]:
    """Restore a store from the backup *file*; changes since that backup are lost.

    A daemon that uses the store keeps running, and each of its answers comes either from the
    previous store or from the restored one. A backup of an earlier schema is upgraded first.

    :param url: the store's URL; see :class:`dfmeta.store.db.database.Database`.
    :param keep: a file for a copy of the current store; an existing file is replaced. None: no copy
        is kept.
    :returns: the number of records, and whether there was a complete store to keep.
    :raises StoreError: *file* is not a backup of a store, or was made by a newer dfmeta, or *keep*
        cannot be written; the store is unchanged.
    """
    path = _path_of(url, _RESTORE)
    _check_magic(file)
    with _errors(path):
        path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    with _errors(file), _temporary(path) as copy:
        count = _copy(file, copy)
        database.Database(f"sqlite:///{copy}").close()
        kept = False
        if keep is not None and path.exists() and path.stat().st_size:
            with contextlib.suppress(StoreDamagedError, BackupError):
                _copy_into_place(path, keep)
                kept = True
        with _errors(path):
            _replace_content(path, copy)
    return count, kept


def _path_of(url: str, remedy: str) -> Path:
    parsed = dialect.parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise BackupError(cause=f"the store is in {parsed.get_backend_name()}", remedy=remedy)
    return dialect.Sqlite(parsed).path


def _check_magic(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) == _MAGIC:
                return
    except OSError as error:
        raise BackupError(cause=f"{file}: {error.strerror}", remedy=_REMEDY) from error
    raise BackupError(cause=f"{file}: it is not an SQLite file", remedy=_REMEDY)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        kind = dialect.kind_of(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK))
        raise kind(cause=f"{path}: {error}") from error
    except OSError as error:
        raise dialect.of_system(error, str(error.filename or path)) from error


@contextlib.contextmanager
def _temporary(beside: Path) -> Iterator[Path]:
    """Yield an empty file in the same directory, mode 0600, and delete it afterwards."""
    handle, name = tempfile.mkstemp(dir=beside.parent, prefix=f".{beside.name}.")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing file."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection


def _copy_into_place(path: Path, file: Path) -> int:
    """Write a copy of a store; *file* is complete or does not change. Return its records."""
    with _errors(file), _temporary(file) as copy:
        with _errors(path):
            count = _copy(path, copy)
        copy.rename(file)
    return count


def _copy(source: Path, target: Path) -> int:
    """Write the contents of a store at one moment into an empty file; return how many records.

    :raises StoreError: *source* is not a store.
    :raises sqlite3.Error: it is damaged.
    """
    with _opened(source) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))
    with _opened(target) as connection:
        try:
            connection.execute("SELECT version_num FROM alembic_version")
            (count,) = connection.execute("SELECT count(*) FROM records").fetchone()
        except sqlite3.OperationalError:
            cause = f"{source}: it is an SQLite file, but not a dfmeta store"
            raise BackupError(cause=cause, remedy=_REMEDY) from None
    return int(count)


def _replace_content(path: Path, copy: Path) -> None:
    # A file of 0 bytes stays locked by programs that had it open, and is not a database.
    if path.exists() and path.stat().st_size:
        try:
            _overwrite(path, copy)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & dialect.PRIMARY_CODE not in _NO_DATABASE:
                raise
        else:
            return
    # No database exists here whose log or readers could be confused with those of the copy.
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    copy.rename(path)


def _overwrite(path: Path, copy: Path) -> None:
    """Replace the contents of a database in one transaction.

    :raises sqlite3.Error: also when another writer locks it for longer than :data:`ANSWER_TIMEOUT`.
    """
    deadline = clock.now() + clock.ANSWER_TIMEOUT

    def check(status: int, _left: int, _all: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and clock.now() > deadline:
            error = sqlite3.OperationalError("another program has been writing to it for too long")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    with _opened(copy) as reader, _opened(path) as writer:
        # A busy store is unlocked only for a moment between two writes. SQLite's own wait, in steps
        # of up to 0.1 s, would almost never hit that moment.
        writer.execute("PRAGMA busy_timeout=0")
        # All pages at once: in pieces, each write by others would restart the copy.
        reader.backup(writer, pages=-1, progress=check, sleep=clock.POLL)
