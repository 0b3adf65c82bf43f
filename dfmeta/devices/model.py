"""The values of a document of devices. Pure; frozen.

Each device converts to a JSON object. A missing member is None, and is not written.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from dfmeta.devices.schema import NONE


@dataclass(frozen=True, slots=True)
class Bus:
    """The bus of a device. ``address`` has the form of the bus, or is None when it is unknown."""

    name: ClassVar[str]
    address: str | None = None


@dataclass(frozen=True, slots=True)
class PciBus(Bus):
    """``domain:bus:slot.function``, in lower case hexadecimal digits."""

    name: ClassVar[str] = "pci"


@dataclass(frozen=True, slots=True)
class UsbBus(Bus):
    """``bus:port``; behind hubs ``bus:port.port``."""

    name: ClassVar[str] = "usb"


@dataclass(frozen=True, slots=True)
class ScsiBus(Bus):
    """``host:channel:target:lun``. A guest numbers its hosts itself: the first part may differ."""

    name: ClassVar[str] = "scsi"


@dataclass(frozen=True, slots=True)
class IdeBus(Bus):
    """``channel:unit``: 0 is the primary channel, and the master on it."""

    name: ClassVar[str] = "ide"


@dataclass(frozen=True, slots=True)
class XenBus(Bus):
    """A number in XenBus' namespace of NICs (vif) or disks (vbd)."""

    name: ClassVar[str] = "xen"


@dataclass(frozen=True, slots=True)
class NoBus(Bus):
    """No bus: a container's device, or a device of the mainboard."""

    name: ClassVar[str] = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(abc.ABC):
    """The members of devices of all types."""

    bus: Bus
    tags: tuple[str, ...] | None = None
    """The roles of the device. None when the member is missing."""

    @property
    @abc.abstractmethod
    def type(self) -> str:
        """The device's type."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        members: dict[str, Any] = {
            "type": self.type,
            "bus": self.bus.name,
            "address": self.bus.address,
        }
        for one in fields(self):
            if one.name not in _COMMON:
                members[one.name] = getattr(self, one.name)
        members["tags"] = None if self.tags is None else list(self.tags)
        return {name: one for name, one in members.items() if one is not None}


_COMMON: Final = frozenset({"bus", "tags"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Device):
    """A network interface."""

    mac: str
    devname: str | None = None
    """Name in the guest, if the hypervisor sets it (containers)."""
    vlan: int | None = None
    """VLAN id with which the guest has to tag its frames."""
    vf_trusted: bool | None = None
    """Whether an SR-IOV function may change its MAC and see all frames."""

    @property
    def type(self) -> str:
        """``nic``."""
        return "nic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk(Device):
    """A disk."""

    serial: str | None = None
    path: str | None = None
    """Device node in the guest, if the hypervisor sets it (containers, Xen)."""

    @property
    def type(self) -> str:
        """``disk``."""
        return "disk"
