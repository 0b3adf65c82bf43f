"""Static tokens: a file with the hash and the scopes of each token.

Each line has one token, a JSON object: ``name``, ``sha256`` (of the token, hexadecimal),
``scopes``, and optionally ``created`` and ``expires`` (RFC 3339). Empty lines and lines that begin
with ``#`` are skipped; unknown members are kept and ignored.

A token is 32 random bytes. Passwords need a slow hash because only few of them are likely. That
does not apply here: 2^256 values cannot be tried, so one round of SHA-256 is safe, and a flood of
wrong tokens cannot use up the CPU.

A change is written beside the file and renamed to its name, so that a reader sees either the
complete old content or the complete new content. Concurrent changes wait for each other: the lock
is on the directory, because the file is replaced.

Trust: the file comes from the operator. A file that other users can read or write is refused.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import itertools
import json
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dfmeta.errors import RecordError, TokenFileError
from dfmeta.runtime import clock
from dfmeta.store.auth.caller import Client

LOG = logging.getLogger(__name__)

FILE_MAX: Final = 4 << 20
"""Bytes; some ten thousand tokens."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}", re.ASCII)
"""``scope-token`` of RFC 6749, 3.3."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FIX: Final = "Fix or remove that line; dfmeta token create writes such lines"

TOKEN_BYTES: Final = 32
TOKEN_PREFIX: Final = "dfm_"  # noqa: S105  # for programs that search for leaked secrets


@dataclass(frozen=True)
class StaticToken:
    """A line of the file."""

    name: str
    digest: str
    """SHA-256, hexadecimal in lower case."""
    scopes: tuple[str, ...]
    created: datetime | None = None
    expires: datetime | None = None

    def expired(self, now: float) -> bool:
        """Whether the token has expired at *now*, seconds of Unix time."""
        return self.expires is not None and self.expires.timestamp() <= now


def hash_token(token: str) -> str:
    """Return the hash of a token, as in the file."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(text: str) -> bool:
    """Whether *text* can name a token: letters, digits and ``._@-``, 64 of them at most."""
    return bool(_NAME.fullmatch(text))


class TokenFile:
    """Verifies the tokens of a file, and reads the file again after a change, without a restart.

    If the file is invalid after a change, the tokens that were read before stay valid. If the file
    has been removed, no token is valid.

    :raises TokenFileError: the file exists and cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = _mark(path)
        self._tokens = read_tokens(path)
        self._warn_if_gone()

    def client(self, token: str) -> Client | None:
        """See :class:`~dfmeta.store.auth.caller.Verifier`."""
        self._follow()
        digest = hash_token(token)
        match = None
        # Every hash is compared, in a time that does not depend on its content.
        for line in self._tokens:
            if hmac.compare_digest(line.digest, digest):
                match = line
        if match is None or match.expired(clock.wall()):
            return None
        return Client(f"token {match.name}", frozenset(match.scopes))

    def _follow(self) -> None:
        mark = _mark(self._path)
        if mark == self._mark:
            return
        # First, so that an invalid file is reported once and not for each request.
        self._mark = mark
        try:
            self._tokens = read_tokens(self._path)
        except TokenFileError as error:
            LOG.warning("%s. Until then, the tokens that it had before stay valid", error)
            return
        self._warn_if_gone()
        LOG.info("%s has changed: %d tokens", self._path, len(self._tokens))

    def _warn_if_gone(self) -> None:
        if self._mark is None:
            LOG.warning(
                "%s does not exist, so it has no token: use dfmeta token create", self._path
            )


def read_tokens(path: Path) -> tuple[StaticToken, ...]:
    """Return the tokens of a file; none if it is missing.

    :raises TokenFileError: it cannot be read, other users may read or write it, or a line is
        invalid.
    """
    return parse(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a file of tokens; empty if it is missing.

    :raises TokenFileError: as :func:`read_tokens`, except for invalid lines.
    """
    try:
        # O_NONBLOCK: a pipe would block until another process opens it for writing.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            _check_rights(path, os.fstat(descriptor).st_mode)
            content = file.read(FILE_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise TokenFileError(
            path=path,
            cause=error.strerror or str(error),
            remedy="Let the daemon's user read it",
        ) from error
    if len(content) > FILE_MAX:
        remedy = "Revoke tokens that are not used: dfmeta token list"
        raise TokenFileError(path=path, cause=f"it has more than {FILE_MAX} bytes", remedy=remedy)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        remedy = "Restore it, or remove it and create new tokens"
        raise TokenFileError(path=path, cause="it is not UTF-8", remedy=remedy) from error


def parse(text: str, path: Path) -> tuple[StaticToken, ...]:
    """Return the tokens of a file's text.

    :raises TokenFileError: a line is invalid; the cause names the first one.
    """
    tokens: list[StaticToken] = []
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if is_blank(line):
            continue
        try:
            token = _parse_line(line)
            # A token that is revoked by its name must not stay valid in another line.
            if not seen.isdisjoint((token.name, token.digest)):
                raise ValueError("a line above has the same name or the same token")
        except ValueError as error:
            raise TokenFileError(path=path, cause=f"line {number}: {error}", remedy=_FIX) from None
        seen.update((token.name, token.digest))
        tokens.append(token)
    return tuple(tokens)


def is_blank(line: str) -> bool:
    """Whether a line of the file holds no token."""
    return not line.strip() or line.lstrip().startswith("#")


def format_line(token: StaticToken) -> str:
    """Return a token's line, without the newline."""
    members: dict[str, object] = {
        "name": token.name,
        "sha256": token.digest,
        "scopes": list(token.scopes),
    }
    for key, moment in (("created", token.created), ("expires", token.expires)):
        if moment is not None:
            members[key] = moment.astimezone(UTC).isoformat(timespec="seconds")
    return json.dumps(members)


def _check_rights(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise TokenFileError(path=path, cause="it is not a file", remedy="Name a regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokenFileError(
            path=path,
            cause=f"other users may read or write it (mode {stat.S_IMODE(mode):04o})",
            remedy=f"Check that no line was added by others, then run: chmod 600 {path}",
        )


def _parse_line(line: str) -> StaticToken:
    try:
        members = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(members, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  # a line's fault
    name = _text(members, "name")
    if not is_name(name):
        raise ValueError("its name is not 1 to 64 letters, digits or ._@-")
    digest = _text(members, "sha256").lower()
    if not _DIGEST.fullmatch(digest):
        raise ValueError("sha256 is not 64 hexadecimal digits")
    return StaticToken(
        name,
        digest,
        _scopes(members.get("scopes")),
        created=_moment(members, "created"),
        expires=_moment(members, "expires"),
    )


def _text(members: Mapping[str, Any], key: str) -> str:
    value = members.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")  # noqa: TRY004  # a line's fault
    return value


def _scopes(value: object) -> tuple[str, ...]:
    sound = isinstance(value, Sequence) and not isinstance(value, str)
    names = tuple(value) if sound and isinstance(value, Sequence) else ()
    if not names or not all(isinstance(scope, str) and _SCOPE.fullmatch(scope) for scope in names):
        raise ValueError("scopes is not a list of scopes")
    return names


def _moment(members: Mapping[str, Any], key: str) -> datetime | None:
    if members.get(key) is None:
        return None
    try:
        moment = datetime.fromisoformat(_text(members, key))
    except ValueError:
        raise ValueError(f"{key} is not a time such as 2030-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _mark(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with a file; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.errno or errno.EIO,)
    # The time of the inode's change too: a chmod may have fixed the file.
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class Grant:
    """Properties of a new token."""

    scopes: tuple[str, ...]
    created: datetime
    name: str = ""
    """Empty: the first ``token-N`` that is free."""
    expires: datetime | None = None


def new_token() -> str:
    """Return a new token: :data:`TOKEN_BYTES` random bytes in base64url, after a prefix."""
    return f"{TOKEN_PREFIX}{secrets.token_urlsafe(TOKEN_BYTES)}"


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
    with _locked(path) as (file, folder):
        text = read_text(file)
        taken = {other.name for other in parse(text, file)}
        if grant.name in taken:
            raise RecordError(
                what="--name",
                value=grant.name,
                cause="another token has this name",
                remedy="Give another name, or revoke that token first",
            )
        free = (f"token-{number}" for number in itertools.count(1))
        added = StaticToken(
            grant.name or next(name for name in free if name not in taken),
            hash_token(token),
            grant.scopes,
            created=grant.created,
            expires=grant.expires,
        )
        if text and not text.endswith("\n"):
            text += "\n"
        _write(file, f"{text}{format_line(added)}\n", folder)
    return added


def remove(path: Path, name: str) -> bool:
    """Remove a token's line; return False if there is no token of that name.

    :raises TokenFileError: as :func:`add`.
    """
    with _locked(path) as (file, folder):
        text = read_text(file)
        if name not in {line.name for line in parse(text, file)}:
            return False
        lines = text.split("\n")
        kept = (line for line in lines if is_blank(line) or _parse_line(line).name != name)
        _write(file, "\n".join(kept), folder)
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the real path of the file, and its directory, locked against other writers.

    :raises TokenFileError: for each OSError inside, too.
    """
    file = Path(os.path.realpath(path))
    try:
        file.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield file, folder
        finally:
            os.close(folder)
    except OSError as error:
        raise TokenFileError(
            path=file,
            cause=f"it cannot be written: {error.strerror or error}",
            remedy="Run this as the user that owns it, or set another [store] token_file",
        ) from error


def _write(file: Path, text: str, folder: int) -> None:
    # mkstemp(3) creates the file with mode 0600.
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as new:
            # The owner, the daemon's user, stays when root changes the file.
            if os.geteuid() == 0 and file.exists():
                owner = file.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            new.write(text)
            new.flush()
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    os.fsync(folder)
