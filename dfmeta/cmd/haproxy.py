"""Become an unprivileged user and run haproxy.

Run by the daemon as ``python -m dfmeta.cmd.haproxy USER DESCRIPTORS PARENT BINARY ARGUMENT...``,
with an empty USER for a user id that no other process has.
haproxy keeps the descriptors that this process has inherited, has no capability, and ends when the
daemon ends: without the daemon, no program would take a guest's entry away.

Trust: execve(2) makes the process dumpable again (prctl(2), PR_SET_DUMPABLE), so each process of
its account can read its memory. What keeps others out is that no other program has the account.
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

    :raises SystemExit: with one line, when the user may not run the program.
    :raises OSError: when the kernel refuses to take the privileges away.
    """
    user, descriptors, parent, binary, *arguments = sys.argv[1:] if argv is None else argv
    count = int(descriptors)
    privileges.drop(user, descriptors=count, memory=privileges.MEMORY + count * BUFFERS)
    if os.getppid() != int(parent):
        return
    try:
        # Without the environment, which may have secrets.
        os.execve(binary, [binary, *arguments], {})  # noqa: S606  # no shell is needed
    except OSError as error:
        sys.exit(f"user {user or os.geteuid()} cannot run {binary}: {error.strerror}")


if __name__ == "__main__":
    main()
