"""The document of devices of a libvirt domain, and operators' rules that give tags to them. Pure.

A rule is ``TYPE:[KEY:]VALUE=TAG``. TYPE is ``nic`` or ``disk``. With a KEY, only the names under
that key are compared with the value, otherwise the names under all keys. The text up to the first
``=`` names the device, the rest is the tag: a value that contains ``=`` cannot be written, so
another key has to be used. A value that begins with a key and a colon is written after its own key:
``disk:serial:target:1=db``.

Trust: see :mod:`dfmeta.devices.elements`. Values of a device that are not understood are left out:
a bus without an address is better than a wrong address.

Sources: libvirt's formatdomain.rst ("Device Addresses") and qemuBuildDeviceAddressProps for the
addresses in QEMU; xen-vbd-interface(7) for the numbers of Xen's disks; nova/virt/libvirt/driver.py
(``_prepare_device_bus``) for the bus of each device.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from dfmeta.devices import elements, schema
from dfmeta.errors import DomainError, TagRuleError
from dfmeta.model import VID_MAX

Facts = Mapping[str, str]
"""A device's element: ``path@attribute`` or ``path`` of each part below it → the value."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": ("mac", "target", "alias", "network", "port"),
    "disk": ("serial", "target", "alias", "volume"),
}
"""Type of a device → keys of its names."""
_TAG: Final = re.compile(schema.SCHEMA["$defs"]["tag"]["pattern"])
_SHOWN: Final = 16
"""Largest number of devices that an error names."""
XEN: Final = "xen"
LXC: Final = "lxc"
_DEVICES: Final = ("devices/interface", "devices/disk", "devices/controller")
_TEXTS: Final = frozenset({"uuid", "name", "os/type"})
_MAC: Final = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", re.ASCII)
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_FOUND_BY: Final = frozenset({"address", "serial", "path", "mac"})
_PCI_LIMITS: Final = (1 << 32, 256, 32, 8)
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,9}", re.ASCII)
_NARROW: Final = frozenset({"", "auto", "lsilogic", "ncr53c90", "am53c974", "dc390"})
"""SCSI controllers on which the unit is the target, and the LUN is 0. ``auto`` is LSI's."""
_XEN_DISK: Final = re.compile(r"(xvd|hd|sd)([a-z]{1,3})([0-9]{0,3})", re.ASCII)
_XEN_VIF: Final = re.compile(r"vif[0-9]+\.([0-9]{1,5})", re.ASCII)
_PARTITIONS: Final = 16
"""Number of minor numbers that each of Xen's first sixteen disks has."""
_PARTITION_MAX: Final = 255
_LOST: Final = "the guest could not identify that disk: give the disk a <serial>"


class Bus(NamedTuple):
    """The bus of a device, and its address in the form of the bus; None: unknown."""

    name: str
    address: str | None = None


NO_BUS: Final = Bus(schema.NONE)
"""That of a container's device, or of a device of the mainboard."""


@dataclass(frozen=True, slots=True)
class DomainDevices:
    """A domain and its NICs and disks."""

    uuid: str
    """In lower case, with dashes."""
    name: str
    """Name of the domain in libvirt."""
    active: bool
    """Whether the domain runs or is paused: it was read from libvirt's status file."""
    candidates: tuple[Candidate, ...]

    def document(self, tags: Sequence[TagRule]) -> dict[str, Any]:
        """Return the document; devices that no rule names have no ``tags``.

        :raises TagRuleError: a rule matches no device, more than one, or one that the guest could
            not find.
        :raises DeviceError: the tags of all rules together break a rule of the document.
        """
        given: dict[int, list[str]] = {}
        for rule in tags:
            for candidate in pick(rule, self.candidates):
                if not candidate.members.keys() & _FOUND_BY:
                    raise TagRuleError(rule=str(rule), cause=_LOST)
                roles = given.setdefault(self.candidates.index(candidate), [])
                if rule.tag not in roles:
                    roles.append(rule.tag)
        devices = []
        for number, candidate in enumerate(self.candidates):
            tagged = {"tags": given[number]} if number in given else {}
            devices.append({**candidate.members, **tagged})
        document = {"devices": devices}
        schema.validate(document)
        return document


def read_domain(data: bytes) -> DomainDevices:
    """Read a domain's definition (``<domain>``), or libvirt's status file (``<domstatus>``).

    Devices without an address from libvirt have none in the document.

    :raises DomainError: the file is not a domain.
    """
    reader = _Reader()
    reader.read(data)
    try:
        identity = str(uuid.UUID(reader.values.get("uuid", "").strip()))
    except ValueError as error:
        raise DomainError(cause="it has no domain/uuid") from error
    candidates = tuple(_candidates(reader))
    name = reader.values.get("name", "").strip()
    return DomainDevices(identity, name, reader.root == "domstatus", candidates)


class _Reader(elements.DomainReader):
    """Keeps each device as one flat mapping, in the order of the XML."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.devices: list[tuple[str, dict[str, str]]] = []
        self._facts: dict[str, str] | None = None
        self._device = ""

    def started(self, path: str, attributes: Mapping[str, str]) -> None:
        if not path:
            self.values["type"] = attributes.get("type", "")
        if path in _DEVICES:
            self._facts, self._device = {}, path
            self.devices.append((path.rpartition("/")[2], self._facts))
        if self._facts is not None:
            inner = path[len(self._device) + 1 :]
            if inner == "vlan/tag":
                self._facts["tags"] = f"{self._facts.get('tags', '')} {attributes.get('id', '')}"
            for name, value in attributes.items():
                self._facts.setdefault(f"{inner}@{name}", value.strip()[: elements.TEXT_MAX])

    def ended(self, path: str) -> None:
        if path == self._device:
            self._facts, self._device = None, ""

    def text(self, path: str, text: str) -> None:
        values, name = self.values, path
        if self._facts is not None:
            values, name = self._facts, path[len(self._device) + 1 :]
        if self._facts is not None or path in _TEXTS:
            values[name] = (values.get(name, "") + text)[: elements.TEXT_MAX]


def _candidates(reader: _Reader) -> Iterator[Candidate]:
    hypervisor = reader.values.get("type", "")
    models = {
        facts.get("@index", ""): facts.get("@model", "")
        for kind, facts in reader.devices
        if kind == "controller" and facts.get("@type") == "scsi"
    }
    nics = 0
    for element, (kind, facts) in enumerate(reader.devices):
        if kind == "interface":
            bus = nic_bus(facts, hypervisor=hypervisor, number=nics)
            nics += 1
            mac = facts.get("mac@address", "").lower()
            # The document requires a MAC.
            if _MAC.fullmatch(mac):
                devname = _line(facts.get("guest@dev"))
                nic = _device("nic", bus, mac=mac, devname=devname, vlan=_vlan(facts))
                yield Candidate(nic, _nic_names(facts), element)
        elif kind == "disk" and facts.get("@device", "disk") in ("disk", "lun"):
            hvm = hypervisor == XEN and reader.values.get("os/type", "").strip() == "hvm"
            for disk in _disks(facts, models, hypervisor=hypervisor, hvm=hvm):
                yield Candidate(disk, _disk_names(facts), element)


def _device(kind: str, bus: Bus, **members: object) -> dict[str, Any]:
    """Return a device's object for the document, without the members that are None."""
    given = {"type": kind, "bus": bus.name, "address": bus.address, **members}
    return {name: value for name, value in given.items() if value is not None}


def _vlan(facts: Facts) -> int | None:
    """Return the VLAN of a passed-through function, as Nova does. For other NICs the switch adds
    the tag, and a guest that used it would tag its frames twice."""
    tag = facts.get("tags", "").strip()
    if facts.get("@type") != "hostdev" or not re.fullmatch("[0-9]{1,4}", tag, re.ASCII):
        return None
    return int(tag) if 1 <= int(tag) <= VID_MAX else None


def _disks(
    facts: Facts, models: Mapping[str, str], *, hypervisor: str, hvm: bool
) -> Iterator[dict[str, Any]]:
    """Yield the views of a disk in the guest."""
    serial = _line(facts.get("serial", "").strip())
    target = facts.get("target@dev", "")
    emulated = ide_of_xen(target) if hvm else None
    bus = disk_bus(facts, models)
    path = _xen_path(target) if bus.name == "xen" else None
    if hypervisor == LXC:
        bus, path = NO_BUS, _line(f"/dev/{target}") if target else None
    elif emulated is not None and serial:
        # Xen shows it twice (specification 002); only the serial reveals that to the guest.
        yield _device("disk", Bus("ide", emulated), serial=serial)
        bus, path = Bus("xen", xen_disk(target)), _xen_path(target)
    yield _device("disk", bus, serial=serial, path=path)


def _xen_path(target: str) -> str | None:
    return f"/dev/{target}" if target.startswith("xvd") and xen_disk(target) else None


def _nic_names(facts: Facts) -> dict[str, tuple[str, ...]]:
    return _names(
        mac=(facts.get("mac@address", "").lower(),),
        target=(facts.get("target@dev"), facts.get("guest@dev")),
        alias=(facts.get("alias@name"),),
        network=(facts.get("source@network"), facts.get("source@bridge")),
        port=(facts.get("virtualport/parameters@interfaceid"), facts.get("source@portid")),
    )


def _disk_names(facts: Facts) -> dict[str, tuple[str, ...]]:
    sources = [facts.get(f"source@{name}") for name in ("volume", "name", "file", "dev", "dir")]
    serial = facts.get("serial", "").strip()
    last = [source.rpartition("/")[2] for source in sources if source]
    # Cinder names a volume volume-<id>, and Nova uses the id as the serial.
    cinder = [name.removeprefix("volume-") for name in last]
    return _names(
        serial=(serial,),
        target=(facts.get("target@dev"),),
        alias=(facts.get("alias@name"),),
        volume=(*sources, *last, *cinder, serial),
    )


def _names(**values: tuple[str | None, ...]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(dict.fromkeys(filter(None, names))) for key, names in values.items()}


def _line(text: str | None) -> str | None:
    """Return *text* if it may occur in the document, else None."""
    return text if text and _PRINTABLE.fullmatch(text) else None


def nic_bus(facts: Facts, *, hypervisor: str, number: int) -> Bus:
    """Return the bus of a NIC, with its address.

    :param hypervisor: the domain's type, such as ``kvm``, ``xen`` or ``lxc``.
    :param number: number of the interface in the domain, from 0 on.
    """
    bus = _of_address(facts)
    if bus is None and hypervisor == "xen":
        # In a running domain, the name on the host has the number: removed interfaces leave gaps.
        vif = _XEN_VIF.fullmatch(facts.get("target@dev", ""))
        return Bus("xen", str(int(vif[1])) if vif else str(number))
    return bus or NO_BUS


def disk_bus(facts: Facts, models: Mapping[str, str]) -> Bus:
    """Return the bus of a disk, with its address.

    A SATA disk has no address that a guest could recognise, so its bus is ``none``.

    :param models: index → model of the domain's SCSI controllers.
    """
    if (bus := _of_address(facts)) is not None:
        return bus
    match facts.get("target@bus", ""):
        case "scsi":
            return Bus("scsi", _scsi(facts, models))
        case "ide":
            return Bus("ide", _ide(facts))
        case "usb":
            return Bus("usb")
        case "xen":
            return Bus("xen", xen_disk(facts.get("target@dev", "")))
    return NO_BUS


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
            return Bus("pci", _pci(facts))
        case "usb":
            port = f"{facts.get('address@bus', '')}:{facts.get('address@port', '')}"
            return Bus("usb", port if re.fullmatch(r"[0-9]+:[0-9]+(\.[0-9]+)*", port) else None)
    return None


def _pci(facts: Facts) -> str | None:
    numbers = _numbers(facts, domain="0", bus="", slot="", function="")
    if any(number >= limit for number, limit in zip(numbers, _PCI_LIMITS, strict=False)):
        return None
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers) if numbers else None


def _scsi(facts: Facts, models: Mapping[str, str]) -> str | None:
    drive = _drive(facts)
    if not drive:
        return None
    controller, bus, target, unit = drive
    if models.get(str(controller), "") in _NARROW:
        return f"{controller:x}:{bus:x}:{unit:x}:0"
    return f"{controller:x}:{bus:x}:{target:x}:{unit:x}"


def _ide(facts: Facts) -> str | None:
    drive = _drive(facts)
    return f"{drive[1]}:{drive[3]}" if drive and drive[1] <= 1 and drive[3] <= 1 else None


def _drive(facts: Facts) -> tuple[int, ...]:
    """Return controller, bus, target and unit; empty if one is invalid."""
    if facts.get("address@type") != "drive":
        return ()
    return _numbers(facts, controller="0", bus="0", target="0", unit="0")


def _numbers(facts: Facts, **defaults: str) -> tuple[int, ...]:
    """Return numbers of an address, which are decimal or have 0x in front; empty if one is not."""
    texts = [facts.get(f"address@{name}", default) for name, default in defaults.items()]
    if not all(_NUMBER.fullmatch(text) for text in texts):
        return ()
    return tuple(int(text, 16 if text.startswith("0x") else 10) for text in texts)


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag, and the device to which it belongs."""

    type: str
    """``nic`` or ``disk``."""
    value: str
    tag: str
    key: str = ""
    """One of :data:`KEYS`; empty: any of them."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule.

        :raises TagRuleError: *text* is not a rule.
        """
        device, equals, tag = text.partition("=")
        kind, colon, value = device.partition(":")
        key, second, rest = value.partition(":")
        if not (equals and colon and value and kind in KEYS):
            raise TagRuleError(rule=text, cause="write nic:VALUE=TAG or disk:VALUE=TAG")
        if not second or key not in KEYS[kind]:
            key, rest = "", value
        if not rest:
            raise TagRuleError(rule=text, cause=f"no value after {key}:")
        if not _TAG.search(tag) or not 1 <= len(tag) <= schema.SCHEMA["$defs"]["tag"]["maxLength"]:
            cause = "a tag has 1 to 60 characters, without comma, slash and control characters"
            raise TagRuleError(rule=text, cause=cause)
        return cls(kind, rest, tag, key)

    def __str__(self) -> str:
        """Return the rule as an operator writes it."""
        key = f"{self.key}:" if self.key else ""
        return f"{self.type}:{key}{self.value}={self.tag}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device of a domain to which a rule may give a tag."""

    members: dict[str, Any]
    """Members of its object in the document, without tags."""
    names: Mapping[str, tuple[str, ...]]
    """Key → names of the device; errors show the first name."""
    element: int
    """Number of its element in the XML; the views of one disk share it."""

    @property
    def type(self) -> str:
        """``nic`` or ``disk``."""
        return str(self.members["type"])

    def __str__(self) -> str:
        """Return the names of the device, for an error."""
        first = {key: values[0] for key, values in self.names.items() if values}
        names = (
            f"{key}:{name if name.isprintable() else ascii(name)}" for key, name in first.items()
        )
        return " ".join((self.type, *names))

    def is_meant(self, rule: TagRule) -> bool:
        """Return whether a rule names the device. The case of MACs is ignored."""
        if rule.type != self.type:
            return False
        keys = (rule.key,) if rule.key else KEYS[self.type]
        return any(
            rule.value in self.names.get(key, ())
            or (key == "mac" and rule.value.lower() in self.names.get(key, ()))
            for key in keys
        )


def pick(rule: TagRule, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the one device that a rule names, in all of its views.

    :raises TagRuleError: the rule names no device, or more than one.
    """
    meant = [candidate for candidate in candidates if candidate.is_meant(rule)]
    if not meant:
        same = [candidate for candidate in candidates if candidate.type == rule.type]
        raise TagRuleError(rule=str(rule), cause=f"no such device. Known devices: {_list(same)}")
    if not _same(meant):
        cause = f"{len(meant)} devices match, but a tag is for one. Name one of: {_list(meant)}"
        raise TagRuleError(rule=str(rule), cause=cause)
    serial = meant[0].members.get("serial")
    if not serial:
        return meant
    # Another view of the disk may have other names.
    views = [candidate for candidate in candidates if candidate.members.get("serial") == serial]
    return views if _same(views) else meant


def _same(candidates: Sequence[Candidate]) -> bool:
    """Return whether all are one device: one element, or one serial on different buses."""
    if len({candidate.element for candidate in candidates}) == 1:
        return True
    serials = {candidate.members.get("serial") for candidate in candidates}
    buses = {candidate.members["bus"] for candidate in candidates}
    return len(serials) == 1 and None not in serials and len(buses) == len(candidates)


def _list(candidates: Sequence[Candidate]) -> str:
    shown = [str(candidate) for candidate in candidates[:_SHOWN]]
    more = [f"{len(candidates) - _SHOWN} more"] if len(candidates) > _SHOWN else []
    return "; ".join((*shown, *more)) or "no devices of that type"
