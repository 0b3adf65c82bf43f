"""Static tokens: a file with the hash of each, and what it allows.

One token a line, a JSON object: ``name``, ``sha256`` (of the token, hexadecimal), ``scopes``, and
perhaps ``created`` and ``expires`` (RFC 3339). Empty lines and lines that begin with ``#`` are
skipped; members that are not known are kept and ignored.

A token is 32 random bytes. What makes a slow hash right for passwords, that few of them are likely,
does not hold here: nobody can try 2^256, so one round of SHA-256 gives nothing away, and a request
costs no CPU that a flood of wrong tokens could use up.

Trust: the file is the operator's, and must be: one that others can read or write is refused.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dfmeta.exceptions import TokenFileError
from dfmeta.store.auth.caller import Client

LOG = logging.getLogger(__name__)

FILE_MAX: Final = 4 << 20
"""Bytes; some ten thousand tokens."""
OTHERS: Final = 0o077
"""Rights that nobody but the owner may have."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}", re.ASCII)
"""``scope-token`` of RFC 6749, 3.3."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MEND: Final = "Mend or remove that line; dfmeta token create writes such lines"


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
        """Whether it is no longer valid at *now*, seconds of Unix time."""
        return self.expires is not None and self.expires.timestamp() <= now


def hash_token(token: str) -> str:
    """Return what the file has of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(text: str) -> bool:
    """Whether *text* can name a token: letters, digits and ``._@-``, 64 of them at most."""
    return bool(_NAME.fullmatch(text))


class TokenFile:
    """Knows the tokens of a file, and follows the file: no restart is needed.

    A file that is broken after a change leaves what was read before as it is. A file that is gone
    has no tokens.

    :param clock: seconds of Unix time.
    :raises TokenFileError: when the file is there and cannot be used.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._mark = _mark(path)
        self._tokens = read_tokens(path)
        self._warn_if_gone()

    def client(self, token: str) -> Client | None:
        """See :class:`~dfmeta.store.auth.caller.Verifier`."""
        self._follow()
        digest = hash_token(token)
        found = None
        # Each of them is looked at, in the same time wherever they differ.
        for one in self._tokens:
            if hmac.compare_digest(one.digest, digest):
                found = one
        if found is None or found.expired(self._clock()):
            return None
        return Client(f"token {found.name}", frozenset(found.scopes))

    def _follow(self) -> None:
        mark = _mark(self._path)
        if mark == self._mark:
            return
        # First, so that a file that is broken is complained of once and not for each request.
        self._mark = mark
        try:
            self._tokens = read_tokens(self._path)
        except TokenFileError as error:
            LOG.warning("%s. The tokens that it had before stay valid until then", error)
            return
        self._warn_if_gone()
        LOG.info("%s has changed: %d tokens", self._path, len(self._tokens))

    def _warn_if_gone(self) -> None:
        if self._mark is None:
            LOG.warning("%s is not there: it has no tokens until dfmeta token create", self._path)


def read_tokens(path: Path) -> tuple[StaticToken, ...]:
    """Return the tokens of a file; none when it is missing.

    :raises TokenFileError: when it cannot be read, others may read or write it, or a line is wrong.
    """
    return parse(read_text(path), path)


def read_text(path: Path) -> str:
    """Return what is in a file of tokens; nothing when it is missing.

    :raises TokenFileError: as :func:`read_tokens`, wrong lines aside.
    """
    try:
        # A pipe would keep the reader waiting for who writes into it.
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
        remedy = "Revoke what nobody uses: dfmeta token list"
        raise TokenFileError(path=path, cause=f"it has over {FILE_MAX} bytes", remedy=remedy)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        remedy = "Restore it, or remove it and make new tokens"
        raise TokenFileError(path=path, cause="it is not UTF-8", remedy=remedy) from error


def parse(text: str, path: Path) -> tuple[StaticToken, ...]:
    """Return the tokens of a file's text.

    :raises TokenFileError: naming the first line that is wrong.
    """
    tokens: list[StaticToken] = []
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if is_blank(line):
            continue
        try:
            token = _parse_line(line)
            # Revoked by its name, a token is not to live on in another line.
            if not seen.isdisjoint((token.name, token.digest)):
                raise ValueError("a line above has the same name or the same token")
        except ValueError as error:
            raise TokenFileError(path=path, cause=f"line {number}: {error}", remedy=_MEND) from None
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


def name_of(line: str) -> str:
    """Return the name in a line that :func:`parse` has found sound."""
    return _parse_line(line).name


def _check_rights(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise TokenFileError(path=path, cause="it is not a file", remedy="Name a regular file")
    if mode & OTHERS:
        raise TokenFileError(
            path=path,
            cause=f"others than its owner may read or write it (mode {stat.S_IMODE(mode):04o})",
            remedy=f"See that nobody has added a line, then: chmod 600 {path}",
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
    if not names or not all(isinstance(one, str) and _SCOPE.fullmatch(one) for one in names):
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
    """Return what differs once a file has changed; None when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.errno or errno.EIO,)
    # The time of change too: a chmod may have mended it.
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
