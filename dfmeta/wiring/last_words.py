"""The message of a program that ends with an error: one line on stderr, without a traceback.

The traceback of an unexpected error is for developers: a command prints it if :data:`DEBUG` is set,
and a daemon always, since the error may not happen again.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Final

import dfmeta
from dfmeta.errors import DfmetaError, RefusedBySystemError, UnexpectedError

PROG: Final = "dfmeta"
DEBUG: Final = "DFMETA_DEBUG"
"""Environment variable; a value other than 0 and the empty one turns tracebacks on."""
INTERRUPTED: Final = 130
"""Exit status after an interrupt: 128 + SIGINT, like that of shells."""


def say(prog: str, error: DfmetaError) -> None:
    """Write an error's line to stderr."""
    sys.stderr.write(f"{prog}: {error.line}\n")


def say_unexpected(prog: str, error: BaseException, *, always: bool = False) -> None:
    """Write the line of an unexpected error to stderr.

    :param always: write the traceback even if :data:`DEBUG` is not set.
    """
    if always or os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error)
    say(prog, unexpected(error))


def unexpected(error: BaseException) -> DfmetaError:
    """Return the error to report for an unexpected exception."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return RefusedBySystemError(what=os.fsdecode(error.filename), cause=error.strerror)
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(dfmeta.__file__).parent)
    ours = [frame for frame in frames if frame.filename.startswith(root)] or list(frames)
    place = "an unknown place"
    if ours:
        place = f"{os.path.relpath(ours[-1].filename, Path(root).parent)}:{ours[-1].lineno}"
    return UnexpectedError(kind=type(error).__name__, place=place, cause=error)


def escape_what_cannot_be_encoded() -> None:
    """Make stdout and stderr escape characters that the locale's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        # An object that replaces a stream may not have this method.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
