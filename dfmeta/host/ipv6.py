"""Whether the host has IPv6 for tap-metadata, and the settings of the device (Linux, ip-sysctl)."""

import fcntl
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from dfmeta.errors import HostError
from dfmeta.model import TAP_MTU_MIN

SYSCTL: Final = Path("/proc/sys/net/ipv6")
"""Of the reader's network namespace; missing while the kernel has no IPv6."""
SETTINGS: Final[Mapping[str, int]] = {"accept_ra": 0, "addr_gen_mode": 1}
"""Settings of the device: no router advertisements, and no address that the kernel generates. With
the defaults of Linux the device gets a link-local address from its MAC, and sends router
solicitations and duplicate address detection."""
_DISABLED: Final = Path("/sys/module/ipv6/parameters/disable")
"""Whether ipv6.disable=1 was given at boot (Linux, networking/ipv6); missing while the module is
not loaded."""
_ADDRESSES: Final = Path("/proc/thread-self/net/if_inet6")
"""One line for each address: address, index, prefix length, scope and flags, all hexadecimal, and
the name of the device (Linux, net/ipv6/addrconf.c). Missing while the kernel has no IPv6."""
_SIOCGIFMTU: Final = 0x8921
_IFREQ: Final = struct.Struct("16si20x")


@dataclass(frozen=True, slots=True)
class Lack:
    """The setting because of which the host has no IPv6 for a device."""

    cause: str
    remedy: str
    """Text with commands between backticks."""


@dataclass(frozen=True, slots=True)
class HeldAddress:
    """An IPv6 address of a device."""

    device: str
    address: IPv6Address
    prefix_length: int


def in_kernel() -> bool:
    """Return whether the kernel has IPv6 at all; without it there are no rules and no routes."""
    return SYSCTL.is_dir()


def lack_of(device: str) -> Lack | None:
    """Return the setting that prevents IPv6 on *device*.

    :return: None when the device has IPv6, or does not exist.
    """
    if not in_kernel():
        return _lack_of_kernel()
    mtu = _mtu(device)
    if mtu is not None and mtu < TAP_MTU_MIN:
        # Linux turns IPv6 off below it (RFC 8200, 5).
        return Lack(
            f"the MTU of {device} is {mtu}, and IPv6 needs {TAP_MTU_MIN}",
            f"`ovs-vsctl set Interface {device} mtu_request={TAP_MTU_MIN}`",
        )
    name = f"net.ipv6.conf.{device}.disable_ipv6"
    if _read(device, "disable_ipv6"):
        return Lack(
            f"{name} is 1",
            f"`sysctl -w {name}=0` turns IPv6 on for {device} alone; look in /etc/sysctl.d for the "
            "file that turns it off",
        )
    return None


def settle(device: str) -> list[str]:
    """Put the settings of *device* in force that differ from :data:`SETTINGS`.

    The kernel generates an address when the device comes up: call this before.

    :return: a description of each change; empty when none was needed, or the device has no IPv6.
    :raises HostError: when the kernel refuses.
    """
    done = []
    for name, value in SETTINGS.items():
        if _read(device, name) in (None, value):
            continue
        try:
            (SYSCTL / "conf" / device / name).write_text(f"{value}\n")
        except OSError as error:
            raise HostError(what=name, device=device, cause=error.strerror or error) from error
        done.append(f"{name} {value}")
    return done


def held() -> Iterator[HeldAddress]:
    """Return the IPv6 addresses of all devices; none while the kernel has no IPv6.

    :raises OSError: when the kernel refuses.
    """
    try:
        lines = _ADDRESSES.read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        address, _index, length, _scope, _flags, device = line.split()
        yield HeldAddress(device, IPv6Address(int(address, 16)), int(length, 16))


def _lack_of_kernel() -> Lack:
    if _number(_DISABLED):
        # The module is loaded, or built in, so that modprobe would succeed and change nothing.
        return Lack(
            "the kernel has no IPv6: it was booted with ipv6.disable=1",
            "remove ipv6.disable=1 from the kernel's command line and boot again",
        )
    return Lack(
        "the kernel has no IPv6: its module ipv6 is not loaded",
        "`modprobe ipv6`, then `systemctl restart dfmeta-agent`, which opens its listener for IPv6 "
        "at its start",
    )


def _read(device: str, name: str) -> int | None:
    """Return a setting of *device*; None when the device has no IPv6, or does not exist."""
    return _number(SYSCTL / "conf" / device / name)


def _number(path: Path) -> int | None:
    """Return the content of a file of the kernel; None when it does not exist."""
    try:
        return int(path.read_text())
    except OSError:
        return None


def _mtu(device: str) -> int | None:
    """Return the MTU of *device*; None when it does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFMTU, _IFREQ.pack(device.encode(), 0))
        except OSError:
            return None
    return int(_IFREQ.unpack(answer)[1])
