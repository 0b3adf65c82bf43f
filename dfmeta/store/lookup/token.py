"""What shows another store who we are: a token in a file, or one that an issuer gives.

The file is read for each question, so that another token needs no restart.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Final, Protocol

from dfmeta.exceptions import LookupAwayError

TOKEN_MAX: Final = 16384
"""Bytes; as many as a server takes in a header."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class TokenSource(Protocol):
    """Gives a token that is good for now."""

    def get(self, *, deadline: float, refused: str = "") -> str:
        """Return a token.

        :param deadline: monotonic seconds by which it has to be here.
        :param refused: one that upstream does not take.
        :raises LookupAwayError: there is none.
        """
        ...


class FileToken:
    """A token that stands in a file by itself, as ``dfmeta token create`` prints it.

    :param path: readable by its owner alone, or its group.
    :param upstream: whom it is shown, for errors.
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
            cause = f"there is no token in {self._path}: {reason(error)}"
            raise LookupAwayError(upstream=self._upstream, cause=cause, whole=True) from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    :raises OSError: it cannot be read.
    :raises ValueError: others may read it, or it holds no token; the content is not repeated.
    """
    with path.open("rb") as file:
        if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
            raise ValueError("other users may read or change it")
        text = file.read(TOKEN_MAX + 1).decode("ascii", "replace").strip()
    if len(text) > TOKEN_MAX or not _TOKEN.fullmatch(text):
        raise ValueError("it does not hold one token and nothing else")
    return text


def reason(error: Exception) -> str:
    """Return what an error of :func:`read_token` says."""
    return error.strerror or "" if isinstance(error, OSError) else str(error)
