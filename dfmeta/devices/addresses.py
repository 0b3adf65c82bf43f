"""Addresses of devices in the guest, from libvirt's elements. Pure.

Sources: libvirt's formatdomain.rst ("Device Addresses") and qemuBuildDeviceAddressProps for the
addresses in QEMU; xen-vbd-interface(7) for the numbers of Xen's disks; nova/virt/libvirt/driver.py
(``_prepare_device_bus``) for the bus of each device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dfmeta.devices.model import Bus, IdeBus, NoBus, PciBus, ScsiBus, UsbBus, XenBus

Facts = Mapping[str, str]
"""A device's element: ``path@attribute`` or ``path`` of each part below it → the value."""

_PCI_LIMITS: Final = (("domain", 1 << 32), ("bus", 256), ("slot", 32), ("function", 8))
_NARROW: Final = frozenset({"", "auto", "lsilogic", "ncr53c90", "am53c974", "dc390"})
"""SCSI controllers on which the unit is the target, and the LUN is 0. ``auto`` is LSI's."""
_XEN_DISK: Final = re.compile(r"(xvd|hd|sd)([a-z]{1,3})([0-9]{0,3})", re.ASCII)
_XEN_VIF: Final = re.compile(r"vif[0-9]+\.([0-9]{1,5})", re.ASCII)
_PARTITIONS: Final = 16
"""Number of minor numbers that each of Xen's first sixteen disks has."""
_PARTITION_MAX: Final = 255


def nic_bus(facts: Facts, *, hypervisor: str, number: int) -> Bus:
    """Return the bus of a NIC, with its address.

    :param hypervisor: the domain's type, such as ``kvm``, ``xen`` or ``lxc``.
    :param number: number of the interface in the domain, from 0 on.
    """
    bus = _of_address(facts)
    if bus is None and hypervisor == "xen":
        # In a running domain, the name on the host has the number: removed interfaces leave gaps.
        vif = _XEN_VIF.fullmatch(facts.get("target@dev", ""))
        return XenBus(str(int(vif[1])) if vif else str(number))
    return bus or NoBus()


def disk_bus(facts: Facts, models: Mapping[str, str]) -> Bus:
    """Return the bus of a disk, with its address.

    A SATA disk has no address that a guest could recognise, so its bus is ``none``.

    :param models: index → model of the domain's SCSI controllers.
    """
    if (bus := _of_address(facts)) is not None:
        return bus
    match facts.get("target@bus", ""):
        case "scsi":
            return ScsiBus(_scsi(facts, models))
        case "ide":
            return IdeBus(_ide(facts))
        case "usb":
            return UsbBus()
        case "xen":
            return XenBus(xen_disk(facts.get("target@dev", "")))
    return NoBus()


def xen_disk(target: str) -> str | None:
    """Return a disk's number in XenBus, from its name such as ``xvda``; None without a number."""
    named = _XEN_DISK.fullmatch(target)
    if not named:
        return None
    disk = 0
    for letter in named[2]:
        disk = disk * 26 + ord(letter) - ord("a") + 1
    disk -= 1
    partition = int(named[3] or 0)
    if named[1] == "hd":
        return str((3, 22)[disk // 2] << 8 | disk % 2 << 6 | partition) if disk < 4 else None
    if disk < 16 and partition < _PARTITIONS:
        return str((202 if named[1] == "xvd" else 8) << 8 | disk << 4 | partition)
    if named[1] == "sd" or partition > _PARTITION_MAX:
        return None
    return str(1 << 28 | disk << 8 | partition)


def ide_of_xen(target: str) -> str | None:
    """Return the IDE address of a disk's emulated view in a Xen HVM guest; None without one."""
    named = _XEN_DISK.fullmatch(target)
    if not named or named[1] == "sd" or named[3] or named[2] not in ("a", "b", "c", "d"):
        return None
    disk = ord(named[2]) - ord("a")
    return f"{disk // 2}:{disk % 2}"


def _of_address(facts: Facts) -> Bus | None:
    match facts.get("address@type"):
        case "pci":
            return PciBus(_pci(facts))
        case "usb":
            port = f"{facts.get('address@bus', '')}:{facts.get('address@port', '')}"
            return UsbBus(port if re.fullmatch(r"[0-9]+:[0-9]+(\.[0-9]+)*", port) else None)
    return None


def _pci(facts: Facts) -> str | None:
    numbers = []
    for name, limit in _PCI_LIMITS:
        number = _number(facts.get(f"address@{name}", "0" if name == "domain" else ""))
        if number is None or number >= limit:
            return None
        numbers.append(number)
    domain, bus, slot, function = numbers
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _scsi(facts: Facts, models: Mapping[str, str]) -> str | None:
    drive = _drive(facts)
    if drive is None:
        return None
    controller, bus, target, unit = drive
    if models.get(str(controller), "") in _NARROW:
        return f"{controller:x}:{bus:x}:{unit:x}:0"
    return f"{controller:x}:{bus:x}:{target:x}:{unit:x}"


def _ide(facts: Facts) -> str | None:
    drive = _drive(facts)
    if drive is None or drive[1] > 1 or drive[3] > 1:
        return None
    return f"{drive[1]}:{drive[3]}"


def _drive(facts: Facts) -> tuple[int, int, int, int] | None:
    if facts.get("address@type") != "drive":
        return None
    controller, bus, target, unit = (
        _number(facts.get(f"address@{name}", "0"))
        for name in ("controller", "bus", "target", "unit")
    )
    if controller is None or bus is None or target is None or unit is None:
        return None
    return controller, bus, target, unit


def _number(text: str) -> int | None:
    """Read a number in libvirt's form, decimal or with 0x in front; None when it is invalid."""
    found = re.fullmatch(r"0x([0-9a-fA-F]{1,8})|([0-9]{1,9})", text, re.ASCII)
    if not found:
        return None
    return int(found[1], 16) if found[1] else int(found[2])
