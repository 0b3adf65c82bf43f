"""The program haproxy, and the command that runs it without privileges.

Nothing here waits or needs the hub: the daemon and ``dfmeta doctor`` run the program in one way.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

MODULE: Final = "dfmeta.cmd.haproxy"
"""The program that becomes the user, gives up all privileges, and then becomes haproxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How haproxy is run."""

    binary: str
    """Path of the program."""
    user: str
    """User that it runs as if the daemon is root; empty: a user id that no other process has."""
    version: str = ""
    """What the program says of its version, such as ``2.6.12-1+deb12u3``."""
    lua: bool = True
    """Whether the program was built with Lua."""

    def command(self, *arguments: str, descriptors: int) -> list[str]:
        """Return the command that runs it; it does not run if this process has ended.

        :param arguments: for haproxy.
        :param descriptors: most descriptors that it may have open.
        """
        words = [self.user, str(descriptors), str(os.getpid()), self.binary, *arguments]
        return [sys.executable, "-m", MODULE, *words]
