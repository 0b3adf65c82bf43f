"""Settings of a network device that netlink's routing family does not offer."""

import ctypes
import fcntl
import functools
import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

from pyroute2.ethtool.ioctl import ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM, SIOCETHTOOL
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP

from dfmeta.errors import HostError

SIOCGIFCONF = 0x8912
SIOCGIFFLAGS = 0x8913
ETHTOOL_GDRVINFO = 0x00000003
"""linux/sockios.h and linux/ethtool.h; Python and pyroute2 do not have them."""
_IFREQ = struct.Struct("16sP")
_IFREQ_FLAGS = struct.Struct("16sH22x")
_VALUE = struct.Struct("II")
_DRIVER = struct.Struct("I32s160x")
"""The first members of ``struct ethtool_drvinfo`` (linux/ethtool.h), padded to its size."""
_IFCONF = struct.Struct("iP")
_ADDRESS = struct.Struct(f"20x4s{2 * struct.calcsize('L')}x")
"""A ``struct ifreq`` of SIOCGIFCONF (linux/if.h): a label, and a ``sockaddr_in`` in a union."""

ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
RAISED = 1


def is_up(device: str) -> bool:
    """Return whether *device* is up, at a fraction of the cost of netlink's description of it.

    :raises OSError: when there is no such device.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFFLAGS, _IFREQ_FLAGS.pack(device.encode(), 0))
    return bool(_IFREQ_FLAGS.unpack(answer)[1] & IFF_UP)


def disable_tx_checksum(device: str) -> bool:
    """Turn TX checksum offload of *device* off (ethtool(8), ``-K tx off``).

    The kernel then computes the checksums of sent packets. Open vSwitch's userspace datapath
    forwards frames unchanged, so with offload a guest would get segments without a valid checksum.

    :return: whether offload was on and is off now.
    :raises HostError: when the kernel refuses.
    """
    try:
        if not tx_checksum(device):
            return False
        tx_checksum(device, ETHTOOL_STXCSUM)
        # A device that cannot turn it off returns False, so that not every check logs a change.
        return not tx_checksum(device)
    except OSError as error:
        raise HostError(
            what="turning TX checksum offload off", device=device, cause=error.strerror
        ) from error


def tx_checksum(device: str, command: int = ETHTOOL_GTXCSUM) -> bool:
    """Return whether TX checksum offload is on, or turn it off, as *command* requests.

    ethtool(8) ``-k`` shows it as tx-checksumming.

    :raises OSError: when the kernel refuses.
    """
    value = bytearray(_VALUE.pack(command, 0))
    _ethtool(device, value)
    return bool(_VALUE.unpack(value)[1])


def driver_of(device: str) -> str:
    """Return the driver of a device (ethtool(8), ``-i``), such as ``veth``; empty if unknown."""
    value = bytearray(_DRIVER.pack(ETHTOOL_GDRVINFO, b""))
    try:
        _ethtool(device, value)
    except OSError:
        return ""
    driver: bytes = _DRIVER.unpack(value)[1]
    return driver.partition(b"\0")[0].decode(errors="replace")


def held_addresses() -> frozenset[IPv4Address]:
    """Return the IPv4 addresses of all devices, also of devices that are down.

    SIOCGIFCONF (netdevice(7)) copies all of them at once, at a hundredth of the cost of a netlink
    message for each address.

    :raises OSError: when the kernel refuses.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while True:
            answer = fcntl.ioctl(sock, SIOCGIFCONF, _IFCONF.pack(0, 0))
            # Room for one more shows whether others were added in the meantime.
            records = bytearray(_IFCONF.unpack(answer)[0] + _ADDRESS.size)
            request = _IFCONF.pack(len(records), _address_of(records))
            length = _IFCONF.unpack(fcntl.ioctl(sock, SIOCGIFCONF, request))[0]
            if length < len(records):
                return _addresses_in(bytes(records[:length]))


@functools.lru_cache(maxsize=1)
def _addresses_in(records: bytes) -> frozenset[IPv4Address]:
    return frozenset(IPv4Address(packed) for (packed,) in _ADDRESS.iter_unpack(records))


def raise_arp_ignore() -> int | None:
    """Keep the host from answering ARP for tap-metadata's address on other network interfaces.

    ``arp_ignore`` 1 (Linux, ip-sysctl): reply only when the address is configured on the interface
    that received the request. A stricter value stays.

    :return: the previous value, or None when nothing had to be changed.
    :raises HostError: when the kernel refuses.
    """
    try:
        before = int(ARP_IGNORE.read_text())
        if before:
            return None
        ARP_IGNORE.write_text(f"{RAISED}\n")
    except OSError as error:
        raise HostError(what="arp_ignore", device="all", cause=error.strerror) from error
    return before


def restore_arp_ignore(value: int) -> bool:
    """Restore the value that :func:`raise_arp_ignore` returned, unless it was changed again since.

    :return: whether the value was restored.
    :raises HostError: when the kernel refuses.
    """
    try:
        if int(ARP_IGNORE.read_text()) != RAISED:
            return False
        ARP_IGNORE.write_text(f"{value}\n")
    except OSError as error:
        raise HostError(what="arp_ignore", device="all", cause=error.strerror) from error
    return True


def _ethtool(device: str, value: bytearray) -> None:
    """Run the ethtool command at the beginning of *value*; the kernel writes its answer there."""
    request = _IFREQ.pack(device.encode(), _address_of(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCETHTOOL, request)


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
