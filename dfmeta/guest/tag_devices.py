"""``dfmeta-tag-devices``, inside a guest: turns device role tags into udev rules.

Reads the instance's ``devices`` (specification 002, "Virtual guest device role tagging"), finds
each of them on this machine and writes rules that give it ``DFMETA_TAGS``, a udev tag for each role
and, for disks and partitions, links below /dev/disk/by-role. The document is not trusted: a rule
contains only encoded tags of it, and the values that a rule matches are read from sysfs.

This is a single file that runs on Python 3.6 and later, with the standard library only: a guest may
have only this file.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

PROGRAM = "dfmeta-tag-devices"
RULES = "/etc/udev/rules.d/90-dfmeta-tags.rules"
"""After the rules that name disks (60-) and interfaces (80-), before systemd's units (99-)."""
MARK = "# Written by dfmeta-tag-devices, which replaces it each time it runs.\n"
ABOUT = "Find this machine's devices with roles in its metadata, and write udev rules for them."
STATUS = (
    "Example: %(prog)s --dry-run. Exit status: 0 on success; 1 with a line on stderr that says why "
    "the rules are unchanged; 2 when the command line is wrong."
)
BY_LABEL = "/dev/disk/by-label"
LABELS = ("config-2", "CONFIG-2")
DOCUMENT = "openstack/latest/meta_data.json"
MOUNTS = "/proc/self/mounts"
IPV4, IPV6 = "169.254.169.254", "fe80::a9fe:a9fe"
TOKEN, TOKEN_TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_DEVICES = 1024
MAX_TAGS = 16
MAX_VALUE = 500
"""Bytes of ``DFMETA_TAGS``. systemd 252 refuses properties from 512 bytes on; others truncate."""
MAX_ENCODED = 240
"""Bytes of an encoded tag: with its prefix or suffix it fits into a file name (NAME_MAX, 255)."""
MAX_INTERFACES = 16

Say = Callable[[str], None]
Numbers = Tuple[int, ...]
Parts = Tuple[str, ...]
Machine = List["SysfsDevice"]
Tagged = Dict["SysfsDevice", List[str]]

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])")
_SCSI = re.compile(r"(\d+):(\d+):(\d+):(\d+)")
_USB = re.compile(r"(\d+)-(\d+(?:\.\d+)*)")
_XEN = re.compile(r"(?:vif|vbd)-(\d+)")
_ATA = re.compile(r"ata(\d+)")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_ADDRESS = re.compile(r"[0-9a-f]{1,9}([:.-][0-9a-f]{1,9}){0,9}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_VALUE = re.compile(r"[A-Za-z0-9._:=,/*-]+(%n)?")
"""Allowed characters of a value in a rule: no quote, no backslash, no ``$``. The only substitution
of udev is ``%n``, a partition's number, which no encoded tag can contain."""
_STABLE = (
    (re.compile(r"virtio\d+"), "virtio*"),
    (re.compile(r"host\d+"), "host*"),
    (re.compile(r"target\d+(:\d+:\d+)"), r"target*\1"),
    (re.compile(r"\d+(:\d+:\d+:\d+)"), r"*\1"),
    (re.compile(r"nvme\d+"), "nvme*"),
)
"""Names in sysfs with numbers that depend on the order of discovery, and patterns without these."""


class TagError(Exception):
    """An error that ends the program; its message is the last line on stderr."""


class SysfsDevice(NamedTuple):
    """A device of this machine, from sysfs. ``parts`` is its path below ``devices``."""

    kind: str
    name: str
    parts: Tuple[str, ...]
    addresses: FrozenSet[Tuple[str, Numbers]]
    """(bus, numbers): all forms that its address may have in a document."""
    identity: str
    """MAC or serial; empty without one, or if it is that of a device below this one."""
    serial_key: str = ""
    """Value of ``ATTRS{serial}``, for a disk with a serial that rules can match."""
    devtype: str = ""


class DocumentEntry(NamedTuple):
    """A device of the document; its valid tags are encoded, the others are left out."""

    kind: str
    bus: str
    address: Numbers
    name: str
    identity: str
    tags: Tuple[str, ...]
    shown: str
    """Text for messages, without control characters."""


# Tags


def encoded(tag: str) -> str:
    """Return a tag in the encoding of ``DFMETA_TAGS`` and links.

    Letters, digits, ``.``, ``_`` and ``-`` of ASCII stay; each other byte of its UTF-8 becomes
    ``=XX``, as in quoted-printable (RFC 2045, 6.7). So do a dot at the start, and the hyphen of
    ``-part1`` at the end, which would be another disk's partition. Different tags stay different.

    :raises ValueError: it is empty, too long, or has an unpaired surrogate.
    """
    raw = tag.encode("utf-8").decode("latin-1")
    text = re.sub(r"^\.|[^A-Za-z0-9._-]|-(?=part[0-9]+$)", _hexadecimal("="), raw)
    if not 0 < len(text) <= MAX_ENCODED:
        raise ValueError("it is empty or too long")
    return text


def udev_tag(text: str) -> str:
    """Return the udev tag of an encoded tag, in the characters that udev accepts: ``dfmeta-…``.

    Other characters become ``_XX``. The prefix distinguishes it from udev's own tags, some of which
    give rights to users ("uaccess") or start units ("systemd").
    """
    raw = re.sub(r"=([0-9A-F]{2})", lambda match: chr(int(match.group(1), 16)), text)
    return "dfmeta-" + re.sub(r"[^A-Za-z0-9_-]|_(?=[0-9A-F]{2})", _hexadecimal("_"), raw)


def _hexadecimal(mark: str) -> Callable[["re.Match[str]"], str]:
    return lambda match: f"{mark}{ord(match.group()):02X}"


# The document


def read_document(raw: bytes) -> Dict[str, Any]:
    """Parse a document within the limits on size and depth.

    :raises TagError: it is too large or too deep, or not a JSON object (RFC 8259).
    """
    if len(raw) > MAX_BYTES:
        raise TagError(f"the document has more than {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
        if _depth(text) > MAX_DEPTH:
            raise TagError(f"the document is nested deeper than {MAX_DEPTH} levels")
        # A number of a million digits takes minutes to read, and the program uses no numbers.
        document = json.loads(text, parse_int=lambda digits: int(digits[:20]))
    except (ValueError, RecursionError) as error:
        raise TagError("the document is not JSON") from error
    if not isinstance(document, dict):
        raise TagError("the document is not a JSON object")
    return document


def _depth(text: str) -> int:
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    deepest = depth = 0
    for match in re.finditer(r"[\[{]|[\]}]", "".join(outside)):
        depth += 1 if match.group() in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def wanted_devices(document: Dict[str, Any], say: Say) -> List[DocumentEntry]:
    """Return the devices of a document, also those without tags; report those left out.

    :raises TagError: ``devices`` is not a list, or too long.
    """
    devices = document.get("devices")
    if devices is None:
        return []
    if not isinstance(devices, list) or len(devices) > MAX_DEVICES:
        raise TagError(f"devices is not a list, or has more than {MAX_DEVICES} elements")
    wanted = []
    for number, entry in enumerate(devices):
        if not isinstance(entry, dict) or entry.get("type") not in ("nic", "disk"):
            say(f"devices[{number}] is neither a nic nor a disk: left out")
            continue
        wanted.append(_wanted(entry, _tags(entry.get("tags"), f"devices[{number}]", say)))
    return wanted


def _tags(tags: object, where: str, say: Say) -> Tuple[str, ...]:
    if tags is None:
        return ()
    if not isinstance(tags, list):
        say(f"tags of {where} are not a list: left out")
        return ()
    if len(tags) > MAX_TAGS:
        say(f"{where} has more than {MAX_TAGS} tags: the rest is left out")
    texts = []  # type: List[str]
    for tag in tags[:MAX_TAGS]:
        text = ""
        with contextlib.suppress(ValueError):
            text = encoded(tag) if isinstance(tag, str) else ""
        if not text:
            say(f"tag {_s(tag)} of {where} is not text, is empty or is too long: left out")
        elif text not in texts:
            texts.append(text)
    return tuple(texts)


def _wanted(entry: Dict[str, Any], tags: Tuple[str, ...]) -> DocumentEntry:
    kind = entry["type"]
    bus, address = _text(entry, "bus"), _text(entry, "address")
    names = ("devname",) if kind == "nic" else ("path", "devname")
    name = next((text for text in (_text(entry, member) for member in names) if text), "")
    name = re.sub("^/dev/", "", name).replace("/", "!")
    identity = _text(entry, "mac").lower() if kind == "nic" else _text(entry, "serial").strip()
    shown = " ".join([kind, *(_s(text) for text in (bus, address, name, identity) if text)])
    return DocumentEntry(kind, bus, numbers_of(bus, address), name, identity, tags, shown)


def _text(entry: Dict[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _s(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 64 else text[:61] + "..."


def numbers_of(bus: str, address: str) -> Numbers:
    """Return an address of a document as numbers; empty if it is missing or invalid.

    Addresses on PCI and SCSI are hexadecimal, as in libvirt and in the specification's schema; the
    others are decimal unless they contain hexadecimal letters. IDE has channel and device, and
    libvirt's four numbers (controller, bus, target, unit) are converted. Nova writes ``none`` for
    an unknown address.
    """
    text = address.lower()
    match = _PCI.fullmatch(text)
    if bus == "pci":
        return tuple(int(part, 16) for part in match.groups()) if match else ()
    if not _ADDRESS.fullmatch(text):
        return ()
    parts = re.split("[:.-]", text)
    base = 16 if bus == "scsi" or re.search("[a-f]", text) else 10
    numbers = tuple(int(part, base) for part in parts)
    return (numbers[1], numbers[3]) if bus == "ide" and len(numbers) == 4 else numbers


# This machine


def read_machine(sysfs: str) -> Machine:
    """Return the interfaces and whole disks of a sysfs, by kind and name."""
    devices = []
    hosts = _scsi_hosts(sysfs)
    for kind, folder in (("nic", "class/net"), ("disk", "class/block")):
        for name in _names(os.path.join(sysfs, folder)):
            path = os.path.join(sysfs, folder, name)
            parts = _parts(sysfs, path)
            if not parts or name == "lo" or os.path.exists(os.path.join(path, "partition")):
                continue
            serial, key = ("", "") if kind == "nic" else _serial(sysfs, path, parts)
            identity = _mac(path) if kind == "nic" else serial
            addresses = frozenset(_addresses(sysfs, parts, hosts))
            event = _attribute(os.path.join(path, "uevent")).decode("latin-1")
            sort = "".join(re.findall("(?m)^DEVTYPE=(.*)$", event))
            devices.append(SysfsDevice(kind, name, parts, addresses, identity, key, sort))
    return devices


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _parts(sysfs: str, path: str) -> Tuple[str, ...]:
    """Return the names on the path below ``devices`` to a device; empty for other paths."""
    root = os.path.join(os.path.realpath(sysfs), "devices") + "/"
    real = os.path.realpath(path)
    return tuple(real[len(root) :].split("/")) if real.startswith(root) else ()


def _attribute(path: str, most: int = 4096) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def _mac(path: str) -> str:
    if any(name.startswith("lower_") for name in _names(path)):
        # A bond, bridge or VLAN has the MAC of the device below it.
        return ""
    text = _attribute(os.path.join(path, "address")).decode("latin-1").strip().lower()
    return text if _MAC.fullmatch(text) else ""


def _serial(sysfs: str, path: str, parts: Tuple[str, ...]) -> Tuple[str, str]:
    """Return a disk's serial, and the serial again if rules can match it: virtio, NVMe, USB. SCSI
    and ATA have it in page 0x80 of the vital product data (SPC-4, 7.8.14)."""
    places = [os.path.join(path, "serial"), os.path.join(path, "device", "serial")]
    above = (parts[: place + 1] for place in range(len(parts) - 1, -1, -1))
    usb = (names for names in above if _USB.fullmatch(names[-1]))
    places += [os.path.join(sysfs, "devices", *names, "serial") for names in usb]
    for place in places:
        text = _attribute(place).decode("latin-1").strip()
        if text:
            return text, text if _NAME.fullmatch(text) else ""
    page = _attribute(os.path.join(path, "device", "vpd_pg80"))
    return page[4:].decode("latin-1").strip(" \0"), ""


def _scsi_hosts(sysfs: str) -> List[int]:
    """Return the numbers of the SCSI hosts that a hypervisor counts: not those of ATA and USB."""
    hosts = []
    for name in _names(os.path.join(sysfs, "class/scsi_host")):
        parts = _parts(sysfs, os.path.join(sysfs, "class/scsi_host", name))
        if re.fullmatch(r"host\d+", name) and parts and not _is_translated(parts):
            hosts.append(int(name[4:]))
    return sorted(hosts)


def _is_translated(parts: Tuple[str, ...]) -> bool:
    return any(_ATA.fullmatch(part) or _USB.fullmatch(part) for part in parts)


def _addresses(sysfs: str, parts: Parts, hosts: List[int]) -> Iterator[Tuple[str, Numbers]]:
    """Yield the addresses of a device on each of its buses. A controller has two numbers: its rank
    among the controllers of its kind, which a hypervisor uses, and Linux' number."""
    for bus, pattern, calls in _BUSES:
        # From the end: only the nearest of the bridges and hubs above counts for the address.
        for place in range(len(parts) - 1, -1, -1):
            match = pattern.fullmatch(parts[place])
            if match:
                for numbers in calls(sysfs, parts[:place], match.groups(), hosts):
                    yield bus, numbers
                break


def _pci(_sysfs: str, _above: Parts, groups: Parts, _hosts: List[int]) -> Iterator[Numbers]:
    yield tuple(int(part, 16) for part in groups)


def _scsi(_sysfs: str, above: Parts, groups: Parts, hosts: List[int]) -> Iterator[Numbers]:
    host, *rest = (int(part) for part in groups)
    if not _is_translated(above):
        if host in hosts:
            yield (hosts.index(host), *rest)
        if host >= len(hosts):
            yield (host, *rest)


def _ide(sysfs: str, above: Parts, groups: Parts, _hosts: List[int]) -> Iterator[Numbers]:
    """Yield channel and device: the channel is the port's rank; an IDE controller has two ports."""
    for place, part in enumerate(above):
        if _ATA.fullmatch(part):
            names = _names(os.path.join(sysfs, "devices", *above[:place]))
            ports = sorted(int(name[3:]) for name in names if _ATA.fullmatch(name))
            if len(ports) <= 2:
                yield (ports.index(int(part[3:])), int(groups[2]))


def _usb(sysfs: str, _above: Parts, groups: Parts, _hosts: List[int]) -> Iterator[Numbers]:
    """Yield bus and ports. A USB 3 controller has two buses, which a hypervisor counts as one."""
    bus, ports = int(groups[0]), tuple(int(port) for port in groups[1].split("."))
    yield (bus, *ports)
    controllers = {}  # type: Dict[Tuple[str, ...], int]
    folder = os.path.join(sysfs, "bus/usb/devices")
    buses = sorted(int(name[3:]) for name in _names(folder) if re.fullmatch(r"usb\d+", name))
    for number in buses:
        parent = _parts(sysfs, os.path.join(folder, f"usb{number}"))[:-1]
        rank = controllers.setdefault(parent, len(controllers))
        if number == bus:
            yield (rank, *ports)


def _xen(_sysfs: str, _above: Parts, groups: Parts, _hosts: List[int]) -> Iterator[Numbers]:
    """Yield XenBus' number, and the rank of that disk (xen-vbd-interface(7))."""
    number = int(groups[0])
    yield (number,)
    if number >> 28 == 1:
        yield ((number & 0xFFFFFFF) >> 8,)
    elif number >> 8 in (8, 202):
        yield ((number & 0xFF) >> 4,)


_BUSES = (
    ("pci", _PCI, _pci),
    ("scsi", _SCSI, _scsi),
    ("ide", _SCSI, _ide),
    ("usb", _USB, _usb),
    ("xen", _XEN, _xen),
)


# Matching


def matches(wanted: List[DocumentEntry], machine: Machine, say: Say) -> Tagged:
    """Return the tags of each device that matches one of the document; report unclear matches."""
    tagged = {}  # type: Tagged
    at = [[device for device in machine if _is_at(entry, device)] for entry in wanted]
    taken = {devices[0] for devices in at if len(devices) == 1}
    for entry in (entry for entry in wanted if entry.tags):
        alone = _is_unique(entry, wanted, machine)
        here = candidates(entry, machine, is_unique=alone, taken=taken)
        if len(here) != 1:
            names = ", ".join(_s(device.name) for device in here)
            say(f"{entry.shown}: {names + ' match: none is tagged' if here else 'not found'}")
            continue
        if entry.kind == "nic" and entry.identity and entry.identity != here[0].identity:
            say(f"{entry.shown}: it matches {_s(here[0].name)}, which has another MAC")
        tags = tagged.setdefault(here[0], [])
        for tag in entry.tags:
            if tag not in tags and len(",".join([*tags, tag])) > MAX_VALUE:
                say(f"{entry.shown}: no room for its tag {_s(tag)} in DFMETA_TAGS: left out")
            elif tag not in tags:
                tags.append(tag)
    return tagged


def candidates(
    wanted: DocumentEntry, machine: Machine, *, is_unique: bool, taken: Set[SysfsDevice]
) -> Machine:
    """Return the devices that may be one of the document: by address, else by name, else by MAC or
    serial. If several match, the next criterion decides; a disk with another serial never matches.

    :param is_unique: whether no other device of the document has that MAC or serial.
    :param taken: devices at an address of the document; they never match by name, MAC or serial.
    """
    left = [device for device in machine if _may_be(wanted, device)]
    tests = [
        lambda device: _is_at(wanted, device),
        lambda device: device not in taken and device.name == wanted.name,
        lambda device: device not in taken and is_unique and _is_same(wanted, device),
    ]  # type: List[Callable[[SysfsDevice], bool]]
    matching = []  # type: Machine
    for test in tests:
        matching = [device for device in left if test(device)] or matching
        if len(matching) == 1:
            break
        left = matching or left
    same = [device for device in machine if _is_same(wanted, device)]
    if is_unique and len(same) == 1 and len(matching) == 1 and matching != same:
        # One has the address or the name, the other the MAC or serial: both are possible.
        matching += same
    return matching


def _is_at(wanted: DocumentEntry, device: SysfsDevice) -> bool:
    return (wanted.bus, wanted.address) in device.addresses and _may_be(wanted, device)


def _may_be(wanted: DocumentEntry, device: SysfsDevice) -> bool:
    """Return whether the kind is the same, and no serial says that it is another disk."""
    serials = wanted.kind == "disk" and wanted.identity and device.identity
    return device.kind == wanted.kind and (not serials or _is_same(wanted, device))


def _is_unique(wanted: DocumentEntry, among: List[DocumentEntry], machine: Machine) -> bool:
    """Return whether the MAC or serial of the devices that it matches here belongs to no other
    device of the document: if only 20 characters of a serial are known, another serial may begin
    with them too. Several views of one disk have one serial, and the same tags."""
    devices = [device for device in machine if _is_same(wanted, device)]
    others = [other for other in among if {*other.tags} != {*wanted.tags}]
    return not any(_is_same(other, device) for other in others for device in devices)


def _is_same(wanted: DocumentEntry, device: SysfsDevice) -> bool:
    """Return whether kind and MAC or serial match. virtio and IDE have only the first 20 characters
    of a serial, others some more."""
    part, whole = device.identity, wanted.identity
    if device.kind != wanted.kind:
        return False
    if wanted.kind == "nic" or len(part) < 20:
        return bool(part) and part in (whole, whole[:20].strip())
    return whole.startswith(part)


# Rules


def rules(tagged: Tagged, machine: Machine, say: Say) -> str:
    """Return the rules file; empty without tags."""
    lines = []  # type: List[str]
    for device, tags in tagged.items():
        make = _nic if device.kind == "nic" else _disk
        try:
            lines += make(device, tags, machine)
        except ValueError:
            say(f"{_s(device.name)}: it has no name that udev can match: left out")
    return MARK + "".join(lines) if lines else ""


def _line(*terms: Tuple[str, str, str]) -> str:
    for _key, _operator, value in terms:
        if value and not _VALUE.fullmatch(value):
            raise ValueError(value)
    return ", ".join('{}{}"{}"'.format(*term) for term in terms) + "\n"


def _set(tags: List[str]) -> List[Tuple[str, str, str]]:
    text = ",".join(tags)
    return [("ENV{DFMETA_TAGS}", "=", text), *(("TAG", "+=", udev_tag(tag)) for tag in tags)]


def _nic(device: SysfsDevice, tags: List[str], machine: Machine) -> List[str]:
    path = _stable_path(device.parts)
    twins = [nic for nic in machine if nic.kind == "nic" and _stable_path(nic.parts) == path]
    like = [nic for nic in machine if nic.kind == "nic" and nic.identity == device.identity]
    keys = [("ACTION", "!=", "remove"), ("SUBSYSTEM", "==", "net")]
    if path and len(twins) == 1:
        keys.append(("DEVPATH", "==", path))
    elif device.identity and len(like) == 1:
        # A VLAN, bridge or bond that is created later may have the same MAC, but another type.
        keys += [("ATTR{address}", "==", device.identity), ("ENV{DEVTYPE}", "==", device.devtype)]
    elif _NAME.fullmatch(device.name):
        keys.append(("KERNEL", "==", device.name))
    else:
        raise ValueError(device.name)
    return [_line(*keys, *_set(tags))]


def _disk(device: SysfsDevice, tags: List[str], machine: Machine) -> List[str]:
    """Return one line for the disk, and one for its partitions, which are below it in sysfs."""
    path = _stable_path(device.parts)
    twins = [disk for disk in machine if disk.kind == "disk" and _stable_path(disk.parts) == path]
    if not path or len(twins) > 1:
        if not all(_NAME.fullmatch(part) for part in device.parts):
            raise ValueError(device.name)
        path = "/devices/" + "/".join(device.parts)
    keys = [("ACTION", "!=", "remove"), ("SUBSYSTEM", "==", "block")]
    serial = [("ATTRS{serial}", "==", device.serial_key)] if device.serial_key else []
    disk = [("ENV{DEVTYPE}", "==", "disk"), ("DEVPATH", "==", path), *serial]
    part = [("ENV{DEVTYPE}", "==", "partition"), ("DEVPATH", "==", path + "/*"), *serial]
    links = ["disk/by-role/" + tag for tag in tags]
    return [
        _line(*keys, *disk, *_set(tags), *(("SYMLINK", "+=", link) for link in links)),
        _line(*keys, *part, *(("SYMLINK", "+=", link + "-part%n") for link in links)),
    ]


def _stable_path(parts: Tuple[str, ...]) -> str:
    """Return a pattern of the path that is also valid after the next boot; empty without a bus.

    udev's ``*`` matches slashes too. All conditions on ancestors have to match the same ancestor,
    so the rule has a path, and not KERNELS, for a disk that two ancestors together identify.
    """
    if not any(pattern.fullmatch(part) for part in parts for _bus, pattern, _calls in _BUSES):
        return ""
    if not all(_NAME.fullmatch(part) for part in parts[:-1]):
        return ""
    stable = []
    for part in parts[:-1]:
        for pattern, text in _STABLE:
            if pattern.fullmatch(part):
                part = pattern.sub(text, part)
                break
        stable.append(part)
    last = re.fullmatch(r"nvme\d+(n\d+)", parts[-1])
    return "/devices/" + "/".join([*stable, "nvme*" + last.group(1) if last else "*"])


def write(path: str, text: str) -> Set[str]:
    """Write the rules atomically, or remove the previous ones if there are none; return the
    subsystems of the old and the new rules.

    :raises TagError: the file exists, and this program has not written it.
    :raises OSError: it cannot be written.
    """
    before = ""
    if os.path.lexists(path):
        # A device or a pipe would be replaced by a file.
        regular = stat.S_ISREG(os.lstat(path).st_mode)
        before = _attribute(path, MAX_BYTES << 4).decode("latin-1") if regular else ""
        if not regular or (before and not before.startswith(MARK)):
            raise TagError(
                f"{path} was not written by {PROGRAM}: it is unchanged. Name another file with "
                "--output, or move it away; --dry-run prints the rules"
            )
    if text:
        _replace(path, text)
    elif before:
        os.unlink(path)
    return set(re.findall('SUBSYSTEM=="([a-z]+)"', before + text))


def _replace(path: str, text: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix="." + PROGRAM, dir=folder)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o644)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def apply(subsystems: Set[str]) -> None:
    """Have udevd reload its rules and process the devices of those subsystems again.

    :raises TagError: udevadm is missing, or it does not reach udevd.
    """
    places = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin:/usr/bin:/bin"
    udevadm = shutil.which("udevadm", path=places)
    if not udevadm:
        raise TagError(
            "udevadm is not installed: the rules apply from the next boot. Install udev or reboot"
        )
    trigger = ["trigger", "--action=change"]
    trigger += ["--subsystem-match=" + name for name in sorted(subsystems)]
    for command in (["control", "--reload"], trigger, ["settle", "--timeout=30"]):
        try:
            subprocess.run([udevadm, *command], check=True, timeout=60, stdin=subprocess.DEVNULL)
        except (subprocess.SubprocessError, OSError) as error:
            raise TagError(
                f"udevadm {command[0]} failed: the rules apply from the next boot on. Run this as "
                "root, and check that systemd-udevd runs"
            ) from error


# Sources of the document


def from_service(
    sysfs: str, *, timeout: float, deadline: float, attempts: int, clock: Any = time
) -> bytes:
    """Query the metadata service, over IPv4 and then over IPv6 on each interface; interfaces with
    hardware come first.

    :param timeout: seconds for one whole request.
    :param deadline: seconds for all requests.
    :param attempts: rounds over all addresses, with a pause before each but the first.
    :param clock: has ``monotonic`` and ``sleep``.
    :raises TagError: no answer, or no answer with a document.
    """
    end = clock.monotonic() + deadline
    folder = os.path.join(sysfs, "class/net")
    nics = [name for name in _names(folder) if name != "lo"]
    nics.sort(key=lambda name: not os.path.exists(os.path.join(folder, name, "device")))
    hosts = [IPV4, *(f"{IPV6}%{name}" for name in nics[:MAX_INTERFACES])]
    cause = "none"
    for attempt in range(attempts):
        if attempt:
            clock.sleep(max(min(1 << attempt, 8, end - clock.monotonic()), 0))
        for host in list(hosts):
            left = end - clock.monotonic()
            if left <= 0:
                raise TagError(
                    f"no document from the metadata service in time ({cause}). Check that this "
                    f"guest has an address and reaches {IPV4}, or set a longer --deadline"
                )
            try:
                status, body = request(host, 80, timeout=min(timeout, left))
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = cause if cause.isdigit() else type(error).__name__
                continue
            if status == 200:
                return body
            cause = str(status)
            if status == 404:
                hosts.remove(host)
        if not hosts:
            break
    raise TagError(
        f"the metadata service has no document ({cause}). Check that this guest reaches {IPV4}, "
        "and on its host that `dfmeta ports` lists it with its instance"
    )


def request(host: str, port: int, *, timeout: float) -> Tuple[int, bytes]:
    """Request the document from one address; return status and body.

    An HTTP proxy is never used, because it is not trusted. If the service requires a token, the
    request is repeated with one.

    :raises OSError: no connection, or no complete answer in time.
    :raises http.client.HTTPException: the answer is not HTTP.
    :raises ValueError: the token is not valid in a header.
    """
    path, end = "/" + DOCUMENT, time.monotonic() + timeout
    status, body = _exchange(host, port, ("GET", path, {}), end)
    if status == 401:
        order = ("PUT", "/latest/api/token", {TOKEN_TTL: "60"})
        status, body = _exchange(host, port, order, end)
        if status == 200:
            token = body.decode("latin-1")
            if not re.fullmatch("[!-~]{1,4096}", token):
                raise ValueError("an invalid token")
            status, body = _exchange(host, port, ("GET", path, {TOKEN: token}), end)
    return status, body


def _exchange(
    host: str, port: int, order: Tuple[str, str, Dict[str, str]], end: float
) -> Tuple[int, bytes]:
    method, path, headers = order
    name = f"[{host.partition('%')[0]}]" if ":" in host else host
    left = max(end - time.monotonic(), 0.001)
    connection = http.client.HTTPConnection(host, port, timeout=left)
    connection.connect()
    peer, late = connection.sock, threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)

    # The socket's timeout starts again with each byte; this timer does not.
    watch = threading.Timer(end - time.monotonic(), cut)
    watch.daemon = True
    watch.start()
    try:
        connection.request(method, path, headers={"Host": name, "Connection": "close", **headers})
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES + 1)
    finally:
        watch.cancel()
        connection.close()
    if late.is_set():
        raise socket.timeout("timed out")
    return answer.status, body


def find_drive() -> str:
    """Return the block device of the config drive, found by its label; empty without a drive."""
    places = [os.path.join(BY_LABEL, label) for label in LABELS]
    return next((os.path.realpath(place) for place in places if os.path.exists(place)), "")


def from_drive(device: str) -> bytes:
    """Read the document of a config drive; one that is not mounted is mounted read-only for this.

    :raises TagError: it cannot be mounted, or has no document.
    """
    for line in _attribute(MOUNTS, -1).split(b"\n"):
        # proc(5): a space in a name is \040, and a backslash \134.
        plain = (field.decode("unicode_escape").encode("latin-1") for field in line.split(b" "))
        source, folder, *_rest = (*(os.fsdecode(field) for field in plain), "")
        if source.startswith("/") and folder and os.path.realpath(source) == device:
            return from_folder(folder)
    folder = tempfile.mkdtemp(prefix=PROGRAM)
    mount = ["mount", "-o", "ro,nosuid,nodev,noexec", device, folder]
    try:
        subprocess.run(mount, check=True, timeout=30)
        try:
            return from_folder(folder)
        finally:
            subprocess.run(["umount", folder], check=True, timeout=30)
    except (subprocess.SubprocessError, OSError) as error:
        raise TagError(
            f"the config drive {device} cannot be mounted. Run this as root, or name the directory "
            "where it is mounted: --config-drive DIRECTORY"
        ) from error
    finally:
        os.rmdir(folder)


def from_folder(folder: str) -> bytes:
    """Read the document of a mounted config drive; links that lead out of the drive are refused.

    :raises TagError: there is no document on the drive.
    """
    path = os.path.realpath(os.path.join(folder, DOCUMENT))
    if not path.startswith(os.path.realpath(folder).rstrip("/") + "/"):
        raise TagError("the document of the config drive is a link out of the drive")
    return from_file(path)


def from_file(path: str) -> bytes:
    """Read a document, up to one byte more than its largest allowed size.

    :raises TagError: the file does not exist, or is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise TagError(f"{path} is not a file: name a meta_data.json")
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TagError(f"{path}: {error.strerror}") from error


def fetch(options: argparse.Namespace, say: Say) -> Dict[str, Any]:
    """Read the document from the source that the options select.

    :raises TagError: no selected source has a document.
    """
    if options.file is not None:
        return read_document(from_file(options.file))
    drive = options.config_drive or find_drive()
    # The drive is as old as the boot, but better than waiting for a missing service.
    attempts = 1 if options.source == "auto" and drive else options.attempts
    if options.source != "config-drive":
        try:
            bounds = {"timeout": options.timeout, "deadline": options.deadline}
            return read_document(from_service(options.sysfs, attempts=attempts, **bounds))
        except TagError as error:
            if options.source == "service" or not drive:
                raise
            say(f"{error}; reading the config drive instead")
    if not drive:
        raise TagError(
            "there is no config drive. Name its place with --config-drive, or query the service "
            "with --source service"
        )
    return read_document(from_folder(drive) if os.path.isdir(drive) else from_drive(drive))


# The program


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog=PROGRAM, description=ABOUT, epilog=STATUS)
    add = made.add_argument
    add(
        "--source",
        choices=("auto", "service", "config-drive"),
        default="auto",
        help="source of the document; auto (default): the service, and the config drive if the "
        "service does not answer",
    )
    add("--file", metavar="F", help="read the document from this file instead")
    add(
        "--config-drive",
        metavar="PLACE",
        help="block device of the config drive, or the directory where it is mounted",
    )
    add("--timeout", type=_seconds, default=10.0, help="seconds for one request (%(default)s)")
    add("--deadline", type=_seconds, default=60.0, help="seconds for all requests (%(default)s)")
    rounds = {"type": int, "choices": range(1, 21), "metavar": "N"}  # type: Dict[str, Any]
    add("--attempts", default=4, help="rounds of requests, 1 to 20 (%(default)s)", **rounds)
    add("--sysfs", default="/sys", help=argparse.SUPPRESS)
    add("--output", metavar="F", help="write the rules to this file, and do not notify udev")
    add("--dry-run", action="store_true", help="print the rules, and change nothing")
    return made


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{_s(text)}: give seconds above 0, up to 3600")
    return value


def run(options: argparse.Namespace, say: Say) -> None:
    """Read the document, write the rules and have udev apply them.

    :raises TagError: there is no document, or udev cannot be notified.
    :raises OSError: the rules cannot be written.
    """
    machine = read_machine(options.sysfs)
    wanted = wanted_devices(fetch(options, say), say)
    text = rules(matches(wanted, machine, say), machine, say)
    if options.dry_run:
        sys.stdout.write(text)
        return
    subsystems = write(RULES if options.output is None else options.output, text)
    if subsystems and options.output is None:
        apply(subsystems)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; return 0, 1 after a line on stderr with the cause, or 130 on interrupt."""

    def say(line: str) -> None:
        sys.stderr.write(f"{PROGRAM}: {line}\n")

    try:
        run(parser().parse_args(arguments), say)
    except (TagError, OSError, ValueError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
