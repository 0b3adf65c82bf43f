"""Knobs of a network device that netlink's routing family does not have."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from dfmeta.exceptions import HostError

SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x00000017
_IFREQ = struct.Struct("16sP")
_VALUE = struct.Struct("II")

ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")


def disable_tx_checksum(device: str) -> None:
    """Have the kernel compute checksums of what *device* sends (ethtool(8), ``-K tx off``).

    Open vSwitch's userspace datapath passes frames on as they are, so that a guest would get
    segments whose checksum was left to a card that does not exist.

    :raises HostError: when the kernel refuses.
    """
    value = bytearray(_VALUE.pack(ETHTOOL_STXCSUM, 0))
    address = _address_of(value)
    request = _IFREQ.pack(device.encode(), address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, SIOCETHTOOL, request)
        except OSError as error:
            raise HostError(
                what="turning TX checksum offload off", device=device, cause=error.strerror
            ) from error


def raise_arp_ignore() -> int | None:
    """Keep the host from answering ARP for tap-metadata's address on its other cards.

    ``arp_ignore`` 1 (Linux, ip-sysctl): reply only for addresses of the interface that was asked.
    A stricter value stays.

    :return: the value that was there, or None when nothing had to be changed.
    :raises HostError: when the kernel refuses.
    """
    try:
        before = int(ARP_IGNORE.read_text())
        if before:
            return None
        ARP_IGNORE.write_text("1\n")
    except OSError as error:
        raise HostError(what="arp_ignore", device="all", cause=error.strerror) from error
    return before


def restore_arp_ignore(value: int) -> None:
    """Put back what :func:`raise_arp_ignore` found.

    :raises HostError: when the kernel refuses.
    """
    try:
        ARP_IGNORE.write_text(f"{value}\n")
    except OSError as error:
        raise HostError(what="arp_ignore", device="all", cause=error.strerror) from error


def _address_of(buffer: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
