"""The document of devices of a libvirt domain. Pure.

Trust: see :mod:`dfmeta.devices.elements`. Values of a device that are not understood are left out:
a bus without an address is better than a wrong address.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.devices.addresses import Facts, disk_bus, ide_of_xen, nic_bus, xen_disk
from dfmeta.devices.check import validate
from dfmeta.devices.elements import DomainReader
from dfmeta.devices.model import Bus, Disk, IdeBus, Nic, NoBus, XenBus
from dfmeta.devices.rules import Candidate, TagRule, pick
from dfmeta.errors import DomainError, TagRuleError

XEN: Final = "xen"
LXC: Final = "lxc"
_DEVICES: Final = ("devices/interface", "devices/disk", "devices/controller")
_TEXTS: Final = frozenset({"uuid", "name", "os/type"})
_TEXT_MAX: Final = 4096
_MAC: Final = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", re.ASCII)
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_VLAN_MAX: Final = 4094
_FOUND_BY: Final = frozenset({"address", "serial", "path", "mac"})
_LOST: Final = "the guest could not identify that disk: give the disk a <serial>"


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
            for one in pick(rule, self.candidates):
                if not one.members.keys() & _FOUND_BY:
                    raise TagRuleError(rule=str(rule), cause=_LOST)
                roles = given.setdefault(self.candidates.index(one), [])
                if rule.tag not in roles:
                    roles.append(rule.tag)
        devices = []
        for number, one in enumerate(self.candidates):
            roles = given.get(number, [])
            devices.append({**one.members, "tags": roles} if roles else dict(one.members))
        document = {"devices": devices}
        validate(document)
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
    found = tuple(_candidates(reader))
    name = reader.values.get("name", "").strip()
    return DomainDevices(identity, name, active=reader.root == "domstatus", candidates=found)


class _Reader(DomainReader):
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
                self._facts.setdefault(f"{inner}@{name}", value.strip()[:_TEXT_MAX])

    def ended(self, path: str) -> None:
        if path == self._device:
            self._facts, self._device = None, ""

    def text(self, path: str, text: str) -> None:
        values, name = self.values, path
        if self._facts is not None:
            values, name = self._facts, path[len(self._device) + 1 :]
        if self._facts is not None or path in _TEXTS:
            values[name] = (values.get(name, "") + text)[:_TEXT_MAX]


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
            nic = _nic(facts, nic_bus(facts, hypervisor=hypervisor, number=nics))
            nics += 1
            if nic is not None:
                yield Candidate(nic.to_dict(), _nic_names(facts), element)
        elif kind == "disk" and facts.get("@device", "disk") in ("disk", "lun"):
            hvm = hypervisor == XEN and reader.values.get("os/type", "").strip() == "hvm"
            for disk in _disks(facts, models, hypervisor=hypervisor, hvm=hvm):
                yield Candidate(disk.to_dict(), _disk_names(facts), element)


def _nic(facts: Facts, bus: Bus) -> Nic | None:
    """Return a NIC; None without a MAC, which is required in the document."""
    mac = facts.get("mac@address", "").lower()
    if not _MAC.fullmatch(mac):
        return None
    return Nic(bus=bus, mac=mac, devname=_line(facts.get("guest@dev")), vlan=_vlan(facts))


def _vlan(facts: Facts) -> int | None:
    """Return the VLAN of a passed-through function, as Nova does. For other NICs the switch adds
    the tag, and a guest that used it would tag its frames twice."""
    tag = facts.get("tags", "").strip()
    if facts.get("@type") != "hostdev" or not re.fullmatch("[0-9]{1,4}", tag, re.ASCII):
        return None
    return int(tag) if 1 <= int(tag) <= _VLAN_MAX else None


def _disks(
    facts: Facts, models: Mapping[str, str], *, hypervisor: str, hvm: bool
) -> Iterator[Disk]:
    """Yield the views of a disk in the guest."""
    serial = _line(facts.get("serial", "").strip())
    target = facts.get("target@dev", "")
    if hypervisor == LXC:
        path = _line(f"/dev/{target}") if target else None
        yield Disk(bus=NoBus(), serial=serial, path=path)
        return
    emulated = ide_of_xen(target) if hvm else None
    if emulated is not None and serial:
        # Xen shows it twice (specification 002); only the serial reveals that to the guest.
        yield Disk(bus=IdeBus(emulated), serial=serial)
        yield Disk(bus=XenBus(xen_disk(target)), serial=serial, path=_xen_path(target))
        return
    bus = disk_bus(facts, models)
    path = _xen_path(target) if isinstance(bus, XenBus) else None
    yield Disk(bus=bus, serial=serial, path=path)


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
    last = [one.rpartition("/")[2] for one in sources if one]
    # Cinder names a volume volume-<id>, and Nova uses the id as the serial.
    cinder = [one.removeprefix("volume-") for one in last]
    return _names(
        serial=(serial,),
        target=(facts.get("target@dev"),),
        alias=(facts.get("alias@name"),),
        volume=(*sources, *last, *cinder, serial),
    )


def _names(**values: tuple[str | None, ...]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(dict.fromkeys(filter(None, some))) for key, some in values.items()}


def _line(text: str | None) -> str | None:
    """Return *text* if it may occur in the document, else None."""
    return text if text and _PRINTABLE.fullmatch(text) else None
