"""Programs start as they are installed; what used another way of starting them calls these."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.harness import netns
from tests.harness.netns import Namespace

as_installed = contextlib.nullcontext


def run(
    command: Sequence[str], *, namespace: Namespace | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return (namespace.run if namespace else netns.run)(command, **options)


def in_shell(command: Sequence[str], code: str = "") -> list[str]:
    """Return the command of a program, or of code in its place."""
    return [sys.executable, "-c", code, *command[1:]] if code else list(command)


def serves() -> bool:
    """Return False."""
    return False
