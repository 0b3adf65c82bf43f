"""Settings of devices are read and changed by the kernel's own numbers."""

import ctypes
import errno
import fcntl
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from dfmeta.errors import HostError
from dfmeta.host import device
from dfmeta.host.device import (
    disable_tx_checksum,
    driver_of,
    held_addresses,
    is_up,
    raise_arp_ignore,
    restore_arp_ignore,
)


class Kernel:
    """The kernel's end of the requests of netdevice(7) and ethtool(8), for one device."""

    def __init__(self) -> None:
        self.flags = 0x1043
        self.checksum = True
        self.fixed = False
        self.addresses: list[str] = []
        self.added: list[str] = []
        """Addresses that appear after the query of their number."""
        self.error = 0

    def ioctl(self, _sock: object, request: int, argument: bytes) -> bytes:
        if self.error:
            raise OSError(self.error, "refused")
        if request == 0x8912:
            return self._list(*struct.unpack("iP", argument))
        assert argument.startswith(b"tap\0")
        if request == 0x8913:
            return struct.pack("16sH22x", argument[:16], self.flags)
        assert request == 0x8946
        pointer = struct.unpack("16sP", argument)[1]
        command = ctypes.c_uint32.from_address(pointer).value
        value = ctypes.c_uint32.from_address(pointer + 4)
        if command == 3:
            ctypes.memmove(pointer + 4, b"veth", 4)
        elif command == 0x17:
            self.checksum = self.checksum if self.fixed else bool(value.value)
        else:
            assert command == 0x16
            value.value = self.checksum
        return argument

    def _list(self, room: int, pointer: int) -> bytes:
        size = struct.calcsize("16sH22x")
        records = b"".join(
            struct.pack("16sHH4s16x", b"eth0", 2, 0, IPv4Address(text).packed)
            for text in self.addresses
        )
        if not pointer:
            self.addresses += self.added
            self.added = []
            return struct.pack("iP", len(records), 0)
        records = records[: room // size * size]
        ctypes.memmove(pointer, records, len(records))
        return struct.pack("iP", len(records), pointer)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    return made


def test_a_device_is_up_by_its_flag(kernel: Kernel) -> None:
    assert is_up("tap")
    kernel.flags = 0x1042
    assert not is_up("tap")


def test_checksum_offload_is_turned_off_once(kernel: Kernel) -> None:
    assert disable_tx_checksum("tap")
    assert not kernel.checksum
    assert not disable_tx_checksum("tap")
    kernel.checksum = kernel.fixed = True
    assert not disable_tx_checksum("tap"), "the device cannot"


def test_the_driver_is_empty_if_unknown(kernel: Kernel) -> None:
    assert driver_of("tap") == "veth"
    kernel.error = errno.EOPNOTSUPP
    assert driver_of("tap") == ""


def test_addresses_are_read_again_until_all_have_room(kernel: Kernel) -> None:
    assert held_addresses() == frozenset()
    kernel.addresses = [f"10.0.{n // 256}.{n % 256}" for n in range(300)]
    assert held_addresses() == set(map(IPv4Address, kernel.addresses))
    kernel.added = [f"10.1.0.{n}" for n in range(64)]
    assert len(held_addresses()) == 364
    kernel.added = [f"10.2.0.{n}" for n in range(63)]
    assert len(held_addresses()) == 427


def test_the_kernel_of_this_machine_has_lo() -> None:
    assert IPv4Address("127.0.0.1") in held_addresses()
    assert isinstance(is_up("lo"), bool)
    with pytest.raises(OSError, match="o such device"):
        is_up("nowhere")


def test_arp_ignore_is_raised_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "arp_ignore"
    monkeypatch.setattr(device, "ARP_IGNORE", file)
    for strict in (1, 2):
        file.write_text(f"{strict}\n")
        assert raise_arp_ignore() is None
        assert file.read_text() == f"{strict}\n"
    file.write_text("0\n")
    assert raise_arp_ignore() == 0
    assert file.read_text() == "1\n"
    assert restore_arp_ignore(0)
    assert file.read_text() == "0\n"
    file.write_text("2\n")
    assert not restore_arp_ignore(0), "another program has changed it since"
    assert file.read_text() == "2\n"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (raise_arp_ignore, "arp_ignore"),
        (lambda: restore_arp_ignore(0), "arp_ignore"),
        (lambda: disable_tx_checksum("tap"), "TX checksum"),
    ],
)
def test_a_refusal_is_an_error_that_names_the_setting(
    kernel: Kernel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[], object],
    name: str,
) -> None:
    kernel.error = errno.EPERM
    monkeypatch.setattr(device, "ARP_IGNORE", tmp_path / "none")
    with pytest.raises(HostError, match=name):
        change()
