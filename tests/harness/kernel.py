"""System calls that Python has no function for, and network namespaces made with them.

A program as short as ``ip netns add`` takes three milliseconds of a CPU, and the tests make
thousands of namespaces and guests.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC = 4096, 16384
MNT_DETACH = 2
"""clone(2), mount(2), umount(2)."""
_SIOCSIFFLAGS, _SIOCETHTOOL = 0x8914, 0x8946
_IFF_UP = 1
_ETHTOOL_STXCSUM = 0x17
"""netdevice(7), and <linux/ethtool.h>: checksums of sent packets."""
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library that returns 0.

    :raises OSError: it returned another number.
    """
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@contextlib.contextmanager
def another_net(there: Path | None) -> Iterator[None]:
    """Have this thread be in another network namespace: in a new one without a path."""
    with open("/proc/thread-self/ns/net", "rb") as here:
        if there is None:
            call("unshare", CLONE_NEWNET)
        else:
            with there.open("rb") as file:
                call("setns", file.fileno(), CLONE_NEWNET)
        try:
            yield
        finally:
            call("setns", here.fileno(), CLONE_NEWNET)


def add_net(path: Path) -> None:
    """Do as ``ip netns add`` does (ip-netns(8)), and bring loopback up.

    The directory is a mount point already, and shared, as ip(8) makes it.
    """
    path.touch(mode=0, exist_ok=False)
    with another_net(None):
        call("mount", b"/proc/thread-self/ns/net", os.fsencode(path), b"none", MS_BIND, None)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            request = struct.pack("16sh14x", b"lo", _IFF_UP)
            fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def delete_net(path: Path) -> None:
    """Do as ``ip netns delete`` does. Idempotent."""
    with contextlib.suppress(FileNotFoundError, OSError):
        call("umount2", os.fsencode(path), MNT_DETACH)
    path.unlink(missing_ok=True)


def processes_in(path: Path) -> list[int]:
    """Do as ``ip netns pids`` does."""
    try:
        wanted = f"net:[{path.stat().st_ino}]"
    except FileNotFoundError:
        return []
    result = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # It may end now. To read the link takes half the time of stat(2).
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/net") == wanted:
                    result.append(int(entry))
    return result


def tx_off(device: str) -> None:
    """Do as ``ethtool -K <device> tx off`` does (ethtool(8)), in this thread's namespace."""
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
