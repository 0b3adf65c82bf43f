"""Become an unprivileged user and run haproxy.

Run by the daemon as ``python -m dfmeta.cmd.haproxy USER DESCRIPTORS PARENT BINARY CONFIGURATION``.
haproxy keeps the descriptors that this process has inherited, has no capability, and ends when the
daemon ends: without the daemon, no program would take a guest's entry away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dfmeta.cmd import privileges

BUFFERS = 1 << 18
"""Bytes of address space for each connection: far more than its buffers."""


def main(argv: Sequence[str] | None = None) -> None:
    """Replace this process by haproxy; return only if its parent has ended.

    :raises OSError: when the kernel refuses.
    """
    user, descriptors, parent, binary, configuration = sys.argv[1:] if argv is None else argv
    count = int(descriptors)
    privileges.drop(user, descriptors=count, memory=privileges.MEMORY + count * BUFFERS)
    if os.getppid() != int(parent):
        return
    # Without a master process (-db), and without the environment, which may have secrets.
    os.execve(binary, [binary, "-db", "-f", configuration], {})  # noqa: S606  # no shell is needed


if __name__ == "__main__":
    main()
