"""Reading of files and of standard input for the store's commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dfmeta.exceptions import RecordError
from dfmeta.store.api import checks

STDIN = "-"


def read(option: str, name: str) -> bytes:
    """Return the bytes of a file or of standard input, at most one more than is allowed.

    :raises RecordError: when it cannot be read.
    """
    if name == STDIN:
        return sys.stdin.buffer.read(checks.USERDATA_MAX + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(checks.USERDATA_MAX + 1)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(
            what=option, value=name, cause=cause, remedy="Name a file that can be read"
        ) from error


def checked(option: str, name: str, check: Any) -> Any:
    """Return the result of a check of a file's content; None without a name.

    :param check: one of :mod:`dfmeta.store.api.checks`.
    """
    return check(option, read(option, name), name=name) if name else None
