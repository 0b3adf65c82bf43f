"""Tokens that authenticate this store at the upstream store: from a file, or from an issuer.

The file is read for each query, so that a new token needs no restart.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Final, Protocol

from dfmeta.errors import LookupAwayError

TOKEN_MAX: Final = 16384
"""Maximum bytes of a token, the limit of servers for a header."""
TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""Characters that a header can hold unchanged, without spaces (RFC 6750, 2.1)."""


class TokenSource(Protocol):
    """Returns valid tokens."""

    def get(self, *, deadline: float, refused: str = "") -> str:
        """Return a token.

        :param deadline: monotonic seconds; latest time for the return.
        :param refused: a token that the upstream store has refused.
        :raises LookupAwayError: no token is available.
        """
        ...


class FileToken:
    """A token in a file that contains nothing else, as ``dfmeta token create`` prints it.

    :param path: the file; only its owner and its group may have permissions for it.
    :param upstream: name of the upstream store, for errors.
    """

    def __init__(self, path: Path, upstream: str) -> None:
        self._path = path
        self._upstream = upstream

    def get(self, *, deadline: float, refused: str = "") -> str:
        """See :meth:`TokenSource.get`."""
        del deadline, refused
        try:
            return read_token(self._path)
        except (OSError, ValueError) as error:
            cause = f"the token cannot be read from {self._path}: {reason(error)}"
            raise LookupAwayError(upstream=self._upstream, cause=cause, whole=True) from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    :raises OSError: the file cannot be read.
    :raises ValueError: other users may read or change the file, or it does not contain exactly one
        token. The error does not quote its content.
    """
    with path.open("rb") as file:
        if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
            raise ValueError("other users may read or change it")
        text = file.read(TOKEN_MAX + 1).decode("ascii", "replace").strip()
    if len(text) > TOKEN_MAX or not TOKEN.fullmatch(text):
        raise ValueError("it must contain one token and nothing else")
    return text


def reason(error: Exception) -> str:
    """Return the cause in an error of :func:`read_token`."""
    return error.strerror or "" if isinstance(error, OSError) else str(error)
