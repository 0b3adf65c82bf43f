"""The values of a document of devices. Pure; frozen.

Each value converts to a JSON object and back without a loss: unknown members stay in ``extra``, and
devices of unknown types become :class:`OtherDevice`. A missing member is None, and is not written.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Self

from dfmeta.devices.check import validate
from dfmeta.devices.schema import NONE

DEVICES: Final = "devices"


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


BUSES: Final[Mapping[str, type[Bus]]] = {
    kind.name: kind for kind in (PciBus, UsbBus, ScsiBus, IdeBus, XenBus, NoBus)
}
"""Name → class of all known buses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(abc.ABC):
    """The members of devices of all types."""

    bus: Bus | None
    """None when the member is missing, which is allowed only for an unknown type."""
    tags: tuple[str, ...] | None = None
    """The roles of the device. None when the member is missing."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Members that this version of the format does not define."""

    @property
    @abc.abstractmethod
    def type(self) -> str:
        """The device's type."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        known: dict[str, Any] = {"type": self.type}
        if self.bus is not None:
            known["bus"] = self.bus.name
            known["address"] = self.bus.address
        for one in fields(self):
            if one.name not in _COMMON:
                known[one.name] = getattr(self, one.name)
        known["tags"] = None if self.tags is None else list(self.tags)
        return {**{name: one for name, one in known.items() if one is not None}, **self.extra}

    @classmethod
    def _of(cls, members: Mapping[str, Any], **own_fields: Any) -> Self:
        """Build a device from a valid JSON object."""
        own = {one.name for one in fields(cls)} - _COMMON
        bus = BUSES[members["bus"]](members.get("address")) if "bus" in members else None
        known = own | {"type", "bus", "tags"} | ({"address"} if bus else set())
        tags = members.get("tags")
        return cls(
            bus=bus,
            tags=None if tags is None else tuple(tags),
            extra={name: one for name, one in members.items() if name not in known},
            **{name: members[name] for name in own if name in members},
            **own_fields,
        )


_COMMON: Final = frozenset({"bus", "tags", "extra", "kind"})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevice(Device):
    """A device of a type that this version of the format does not define."""

    kind: str

    @property
    def type(self) -> str:
        """The type in the document."""
        return self.kind


@dataclass(frozen=True, slots=True)
class Document:
    """All devices of a guest."""

    devices: tuple[Device, ...] | None
    """None when the member is missing."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Members other than ``devices``."""

    @classmethod
    def from_dict(cls, document: object) -> Self:
        """Read a document.

        :param document: a result of :func:`json.loads`; untrusted.
        :raises DeviceError: it is invalid (:func:`~dfmeta.devices.check.validate`).
        """
        validate(document)
        members: dict[str, Any] = dict(document)  # type: ignore[call-overload]  # validated
        devices = members.pop(DEVICES, None)
        return cls(None if devices is None else tuple(map(device_of, devices)), members)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        devices = {} if self.devices is None else {DEVICES: [one.to_dict() for one in self.devices]}
        return {**devices, **self.extra}


def device_of(members: Mapping[str, Any]) -> Device:
    """Return the device for a JSON object of a valid document."""
    match members["type"]:
        case "nic":
            return Nic._of(members)
        case "disk":
            return Disk._of(members)
        case kind:
            return OtherDevice._of(members, kind=kind)
