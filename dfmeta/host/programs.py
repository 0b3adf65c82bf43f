"""Programs of the host that commands run, if they are installed: their output."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

TIMEOUT = 10.0


def run(command: Sequence[str]) -> str | None:
    """Return the output of *command*; None if it does not exist, fails or hangs."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments, found on the operator's own PATH
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
