"""Reading of files and of standard input for commands."""

from __future__ import annotations

import sys
from pathlib import Path

from dfmeta.errors import RecordError

STDIN = "-"


def read(option: str, name: str, *, limit: int) -> bytes:
    """Return the bytes of a file or of standard input, at most one more than *limit*.

    :raises RecordError: when it cannot be read.
    """
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        with Path(name).open("rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(
            what=option, value=name, cause=cause, remedy="Name a file that can be read"
        ) from error
