"""A directory with the layout of sysfs, for machines with other hardware."""

import itertools
import os
from pathlib import Path

from dfmeta.guest import tag_devices
from dfmeta.guest.tag_devices import SysfsDevice

PCI = "pci0000:00/0000:00"
MAC = "fa:16:3e:00:00:01"


class Machine:
    """A directory with the layout of /sys, for udev too. Paths are relative to ``devices``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count(1)
        for name in ("class/net", "class/block", "class/scsi_host", "bus/usb/devices", "devices"):
            (root / name).mkdir(parents=True)

    def nic(self, path: str, mac: str = MAC, *, lower: str = "") -> Path:
        """Add a network interface; ``lower`` is the interface below it."""
        folder = self._device("net", path)
        self.put(f"{path}/address", f"{mac}\n")
        if lower:
            (folder / f"lower_{lower}").symlink_to(self.root / "class" / "net" / lower)
        return folder

    def disk(self, path: str, *, serial: str = "", page: str = "", partitions: int = 0) -> Path:
        """Add a disk; ``serial`` is virtio's attribute, ``page`` the content of VPD page 0x80."""
        folder = self._device("block", path, "disk")
        if serial:
            self.put(f"{path}/serial", serial)
        if page:
            (folder / "device").symlink_to(folder.parents[1])
            data = bytes([0, 0x80, 0, len(page)]) + page.encode()
            (folder.parents[1] / "vpd_pg80").write_bytes(data)
        start = f"{folder.name}p" if folder.name[-1].isdigit() else folder.name
        for number in range(1, partitions + 1):
            self._device("block", f"{path}/{start}{number}", "partition")
            self.put(f"{path}/{start}{number}/partition", f"{number}\n")
        return folder

    def scsi_host(self, path: str) -> None:
        """Add a SCSI host, with or without devices."""
        self._device("scsi_host", f"{path}/scsi_host/{path.rpartition('/')[2]}")

    def usb_bus(self, path: str) -> None:
        """Add a USB root hub."""
        folder = self.root / "devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        self._link(self.root / "bus" / "usb" / "devices" / folder.name, folder)

    def put(self, path: str, text: str) -> None:
        """Write an attribute."""
        (self.root / "devices" / path).write_text(text)

    def devices(self) -> list[SysfsDevice]:
        """Return the devices that dfmeta-tag-devices reads."""
        return tag_devices.read_machine(str(self.root))

    def names(self) -> list[str]:
        """Return the names of these devices."""
        return [device.name for device in self.devices()]

    def _device(self, kind: str, path: str, sort: str = "") -> Path:
        folder = self.root / "devices" / path
        folder.mkdir(parents=True)
        self._link(self.root / "class" / kind / folder.name, folder)
        self._link(folder / "subsystem", self.root / "class" / kind)
        number = next(self._numbers)
        uevent = f"INTERFACE={folder.name}\nIFINDEX={number}\n"
        if sort:
            uevent = f"MAJOR=8\nMINOR={number}\nDEVNAME={folder.name}\nDEVTYPE={sort}\n"
        if sort == "partition":
            uevent += f"PARTN={number}\n"
        (folder / "uevent").write_text(uevent)
        for above in folder.relative_to(self.root / "devices").parents[:-1]:
            # Without this file, udev does not accept the directory as a parent device.
            (self.root / "devices" / above / "uevent").touch()
        return folder

    @staticmethod
    def _link(link: Path, target: Path) -> None:
        link.symlink_to(os.path.relpath(target, link.parent))
