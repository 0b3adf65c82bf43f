"""Takes all that the kernel lets a process have of another one (ptrace(2), pidfd_getfd(2)).

As a program: ``thief.py PID MARK``. It prints a JSON list of what it got: ``memory``, if MARK is in
the memory of the process, ``files``, ``descriptor`` and ``environment``.
"""

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterator

_PIDFD_GETFD = 438
_DESCRIPTORS = 64


def taken(pid: int, mark: bytes) -> Iterator[str]:
    """Yield what this process can have."""
    with contextlib.suppress(OSError):
        if any(mark in region for region in regions(pid)):
            yield "memory"
    with contextlib.suppress(OSError):
        if os.listdir(f"/proc/{pid}/fd"):
            yield "files"
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            file.read()
        yield "environment"
    libc, process = ctypes.CDLL(None), os.pidfd_open(pid)
    if any(libc.syscall(_PIDFD_GETFD, process, number, 0) >= 0 for number in range(_DESCRIPTORS)):
        yield "descriptor"


def regions(pid: int) -> Iterator[bytes]:
    """Yield the content of each region of memory that the process can write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_rest = line.split()
            first, end = (int(word, 16) for word in place.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    yield memory.read(end - first)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(taken(int(sys.argv[1]), sys.argv[2].encode()))))
