"""Files that exist only in memory (memfd_create(2)), for a process that runs as another user.

Trust: the process that reads such a file cannot change it. The file belongs to the daemon's user,
has mode 0444 and is sealed (fcntl(2), "File Sealing"), and the descriptor for the process can only
read.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_KEPT: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW
"""Seals of a file that can only be emptied."""


class MemoryFile:
    """A file in memory with a content that can only be deleted.

    :param name: shown by proc(5).
    :param seals: further seals.
    :raises OSError: when the kernel refuses.
    """

    def __init__(self, name: str, content: bytes, *, seals: int = 0) -> None:
        self._writable = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(self._writable, "wb", closefd=False) as file:
                file.write(content)
            os.fchmod(self._writable, 0o444)
            fcntl.fcntl(self._writable, fcntl.F_ADD_SEALS, _KEPT | seals)
        except BaseException:
            self.close()
            raise

    def reader(self) -> int:
        """Return a new descriptor that can only read; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._writable}", os.O_RDONLY | os.O_CLOEXEC)

    def empty(self) -> None:
        """Delete the content, for each process that has a descriptor of the file. Idempotent."""
        if self._writable >= 0:
            os.ftruncate(self._writable, 0)
            self.close()

    def close(self) -> None:
        """Give up the means to empty the file. Idempotent."""
        if self._writable >= 0:
            os.close(self._writable)
            self._writable = -1


def sealed(name: str, content: bytes) -> int:
    """Return a descriptor that reads a new file in memory, which stays as it is.

    :raises OSError: when the kernel refuses.
    """
    file = MemoryFile(name, content, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    try:
        return file.reader()
    finally:
        file.close()
