"""Changes to the file of tokens, from the command line.

A new file is written beside the old one and renamed to its name, so that a reader sees either the
complete old content or the complete new content. Concurrent changes wait for each other: the lock
is on the directory, because the file is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from dfmeta.errors import RecordError, TokenFileError
from dfmeta.store.auth.tokens import (
    StaticToken,
    format_line,
    hash_token,
    is_blank,
    is_name,
    name_of,
    parse,
    read_text,
)

TOKEN_BYTES: Final = 32
TOKEN_PREFIX: Final = "dfm_"  # noqa: S105  # for programs that search for leaked secrets
FOLDER_MODE: Final = 0o700


@dataclass(frozen=True)
class Grant:
    """Properties of a new token."""

    scopes: tuple[str, ...]
    created: datetime
    name: str = ""
    """Empty: the first ``token-N`` that is free."""
    expires: datetime | None = None


def new_token(make: Callable[[int], str] = secrets.token_urlsafe) -> str:
    """Return a new token: :data:`TOKEN_BYTES` random bytes in base64url, after a prefix.

    :param make: returns the given number of random bytes as text.
    """
    return f"{TOKEN_PREFIX}{make(TOKEN_BYTES)}"


def add(path: Path, grant: Grant, token: str) -> StaticToken:
    """Add a line for *token*; create the file and its directory if they are missing.

    :raises RecordError: the name is invalid, or another token has it.
    :raises TokenFileError: the file cannot be used or written; it is unchanged.
    """
    if grant.name and not is_name(grant.name):
        raise RecordError(
            what="--name",
            value=grant.name,
            cause="it is not 1 to 64 letters, digits or ._@-",
            remedy="Give another name",
        )
    with _locked(path) as file:
        text = read_text(file)
        taken = {one.name for one in parse(text, file)}
        if grant.name in taken:
            raise RecordError(
                what="--name",
                value=grant.name,
                cause="another token has this name",
                remedy="Give another name, or revoke that token first",
            )
        added = StaticToken(
            grant.name or _free_name(taken),
            hash_token(token),
            grant.scopes,
            created=grant.created,
            expires=grant.expires,
        )
        if text and not text.endswith("\n"):
            text += "\n"
        _write(file, f"{text}{format_line(added)}\n")
    return added


def remove(path: Path, name: str) -> bool:
    """Remove a token's line; return False if there is no token of that name.

    :raises TokenFileError: as :func:`add`.
    """
    with _locked(path) as file:
        text = read_text(file)
        if name not in {one.name for one in parse(text, file)}:
            return False
        lines = text.split("\n")
        _write(file, "\n".join(one for one in lines if is_blank(one) or name_of(one) != name))
    return True


def _free_name(taken: set[str]) -> str:
    number = 1
    while f"token-{number}" in taken:
        number += 1
    return f"token-{number}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Yield the real path of the file, with its directory locked against other writers."""
    file = Path(os.path.realpath(path))
    try:
        file.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(file, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(folder)


def _write(file: Path, text: str) -> None:
    try:
        # mkstemp(3) creates the file with mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as new:
                _keep_owner(descriptor, file)
                new.write(text)
                new.flush()
                os.fsync(descriptor)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
        _sync(file.parent)
    except OSError as error:
        raise _unwritable(file, error) from error


def _keep_owner(descriptor: int, file: Path) -> None:
    """Keep the owner (the daemon's user) of the file when root changes it."""
    with contextlib.suppress(FileNotFoundError):
        owner = file.stat()
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(file: Path, error: OSError) -> TokenFileError:
    return TokenFileError(
        path=file,
        cause=f"it cannot be written: {error.strerror or error}",
        remedy="Run this as the user that owns it, or set another [store] token_file",
    )
