"""Reads the clock's state, systemd-networkd's configuration and a route of the host's own.

*root* is the root directory of the host's files: ``/``, or a mount point in a container.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from dfmeta.host.facts import SETTINGS, NetworkdFacts
from dfmeta.host.proc import of_each

_STA_UNSYNC: Final = 0x0040
"""linux/timex.h."""
_TIMEX_SIZE: Final = 512
"""Bytes; larger than ``struct timex`` of any architecture."""
_COMM: Final = b"systemd-networkd"[:15]
"""The kernel keeps 15 characters of a process' name (proc(5), comm)."""
_NETWORKD: Final = (
    "etc/systemd",
    "run/systemd",
    "usr/local/lib/systemd",
    "usr/lib/systemd",
    "lib/systemd",
)
"""Directories in order of precedence, highest first (systemd.syntax(7), networkd.conf(5))."""
_SECTION: Final = re.compile(r"\[([^\]]*)\]")
_FALSE: Final = frozenset({"0", "no", "n", "false", "f", "off"})
_TRUE: Final = frozenset({"1", "yes", "y", "true", "t", "on"})


def read_clock() -> bool | None:
    """Return whether the clock is synchronised (adjtimex(2)); None when the call fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Zeroed: modes 0 changes nothing.
    timex = (ctypes.c_long * (_TIMEX_SIZE // ctypes.sizeof(ctypes.c_long)))()
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        return None
    # modes, offset, freq, maxerror, esterror, status: an int, and longs, with padding between.
    status = ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long))
    return not status.value & _STA_UNSYNC


def read_networkd(root: Path) -> NetworkdFacts:
    """Read whether systemd-networkd runs and how it treats rules and routes of other programs."""
    values = dict.fromkeys(SETTINGS, True)
    for file in _networkd_files(root):
        values.update(_network_section(file))
    return NetworkdFacts(_networkd_runs(root), tuple(name for name in SETTINGS if values[name]))


def own_route(address: str, *, but: str) -> str:
    """Return the device of the host's own route to exactly *address*; empty when there is none.

    :param address: IPv4 address.
    :param but: a device that does not count.
    """
    # In the host's byte order (proc(5), net/route), from the main table. A route to 169.254.0.0/16
    # exists on many hosts (RFC 3927) and does not indicate a cloud.
    wanted = [f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}", "FFFFFFFF"]
    for line in _text(Path("/proc/net/route")).splitlines()[1:]:
        columns = line.split()
        if [columns[1], columns[7]] == wanted and columns[0] != but:
            return columns[0]
    return ""


def _networkd_runs(root: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        # The runtime directory outlives the process (RuntimeDirectoryPreserve); the process counts.
        if names := {name.strip() for _pid, name in of_each("comm", proc=root / "proc")}:
            return _COMM in names
    return (root / "run/systemd/netif/state").exists()


def _networkd_files(root: Path) -> Iterator[Path]:
    """Yield the files in the order in which they are read: later files override earlier ones."""
    for folder in _NETWORKD:
        main = root / folder / "networkd.conf"
        if main.exists():
            yield main
            break
    found: dict[str, Path] = {}
    for folder in reversed(_NETWORKD):
        for file in (root / folder / "networkd.conf.d").glob("*.conf"):
            found[file.name] = file
    yield from (found[name] for name in sorted(found))


def _network_section(file: Path) -> dict[str, bool]:
    values: dict[str, bool] = {}
    section = ""
    for line in _text(file).splitlines():
        if heading := _SECTION.fullmatch(line.strip()):
            section = heading[1]
        name, sign, value = (part.strip() for part in line.partition("="))
        if section != "Network" or not sign or name not in SETTINGS:
            continue
        # systemd-networkd ignores any other value, with a warning in the journal.
        if value.lower() in _FALSE | _TRUE:
            values[name] = value.lower() in _TRUE
    return values


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(errors="replace")
    return ""
