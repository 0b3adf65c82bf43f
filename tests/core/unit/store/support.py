"""What the tests of the store share: records, guests' questions and named rows of tables."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import Result

from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.store.db.record import Record, parse_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.backend import StoreBackend
from tests.core.unit.support import INSTANCE

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtmDuGK3tzmR4o/7QENvMOitBvsO8uN4Z1WblfVWyAg me@host"
Ask = Callable[..., Answer]
Run = Callable[..., Result]
Sql = Callable[[str], None]


@contextlib.contextmanager
def named(*row: object) -> Iterator[None]:
    """Name the row of a table in the error that it causes."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"row: {row!r:.300}")
        raise


def read(repository: Repository, record_id: str = INSTANCE) -> Record:
    """Return a record that exists."""
    record = repository.get(record_id)
    assert record is not None
    return record


def document(repository: Repository, record_id: str = INSTANCE) -> dict[str, Any]:
    """Return the document of a record that exists."""
    return parse_document(record_id, read(repository, record_id).metadata)


def http_tokens(backend: StoreBackend, identity: Identity) -> str | None:
    """Return the record's mode of tokens."""
    return backend.open(GuestRequest("GET", "/latest"), identity).http_tokens


def database_file(url: str) -> Path:
    """Return the file of a SQLite database."""
    return Path(url.removeprefix("sqlite:///"))


def refusal(result: Result, status: int = 2) -> str:
    """Return the one line of a command that has failed."""
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.count("\n") == 1
    return result.stderr
