"""What a program says when it ends with an error: one line on stderr, and never a traceback.

The traceback of what nobody has thought of is for those who mend dfmeta: it is printed where
:data:`DEBUG` is set. A daemon prints it always, since it may not happen again.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Final

import dfmeta
from dfmeta.exceptions import DfmetaError, RefusedBySystemError, UnexpectedError

PROG: Final = "dfmeta"
DEBUG: Final = "DFMETA_DEBUG"
"""Of the environment; anything but nothing and 0 turns tracebacks on."""
INTERRUPTED: Final = 130
"""Exit status: 128 and SIGINT, as shells have it."""


def say(prog: str, error: DfmetaError) -> None:
    """Write an error's line to stderr."""
    sys.stderr.write(f"{prog}: {error.line}\n")


def say_unexpected(prog: str, error: BaseException, *, always: bool = False) -> None:
    """Write the line of an error that nobody has thought of.

    :param always: write the traceback too, wherever it is asked for or not.
    """
    if always or os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error)
    say(prog, unexpected(error))


def unexpected(error: BaseException) -> DfmetaError:
    """Return what is said of an error that nobody has thought of."""
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
    """Have stdout and stderr escape what the locale's encoding has no character for."""
    for stream in (sys.stdout, sys.stderr):
        # What stands in their place may not have it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
