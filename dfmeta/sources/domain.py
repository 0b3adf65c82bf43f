"""Reads the XML of libvirt's domains: instance and project, and the ports that belong to them.

No eventlet: commands use it too.

Sources: libvirt's formatdomain.rst, Nova's ``nova/virt/libvirt/config.py``
(LibvirtConfigGuestMetaNovaInstance). See :mod:`dfmeta.devices.elements` for trust.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dfmeta.devices.elements import SIZE_MAX, TEXT_MAX, DomainReader
from dfmeta.errors import DomainError
from dfmeta.model import Port, PortKind
from dfmeta.ovsdb.external_ids import instance_of, name_of, project_of
from dfmeta.runtime import clock
from dfmeta.sources.source import Ownership

__all__ = ["NOVA_PREFIX", "SIZE_MAX", "Domain", "DomainNic", "Folders", "Scan", "match", "parse"]

_SUFFIX: Final = ".xml"
_NOVA: Final = (
    "http://openstack.org/xmlns/libvirt/nova/1.1",
    "http://openstack.org/xmlns/libvirt/nova/1.0",
)
NOVA_PREFIX: Final = 3
"""Nova names a device after its port: three letters and the first eleven characters of its id."""
_NOVA_ID: Final = 11


@dataclass(frozen=True, slots=True)
class DomainNic:
    """An ``<interface>`` element; an empty member is not given."""

    mac: str = ""
    """MAC address in lower case."""
    dev: str = ""
    """Name of the port on the host."""
    iface_id: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """The parts of a domain's XML that identify the guest."""

    instance_id: str
    active: bool
    """Whether it runs or is paused, from libvirt's status file; unknown from a definition."""
    name: str = ""
    """Nova's display name, else the domain's name."""
    project_id: str = ""
    nics: tuple[DomainNic, ...] = ()
    domain_name: str = ""
    """Name in virsh."""

    @property
    def ownership(self) -> Ownership:
        """Return the domain's identity in the form of an identity source."""
        return Ownership(self.instance_id, self.project_id, self.name)


def parse(data: bytes) -> Domain:
    """Read a domain's definition (``<domain>``) or its status (``<domstatus>``).

    :raises DomainError: when *data* is neither, is too large, or has no UUID.
    """
    reader = _Reader()
    reader.read(data)
    return reader.domain()


def match(port: Port, domains: Iterable[Domain]) -> Domain | None:
    """Return the domain that uses *port* now; None when there is none or more than one.

    Only an active domain can match: a definition may be of a guest that had the port before.
    If the port and the interface both have a port id, the ids decide. Else the device's name counts
    together with the MAC, since libvirt reuses names. The MAC alone counts only for an interface
    without a port id and a device name, since two guests may have the same MAC. A domain owns the
    untagged frames of its device; a subport of its trunk belongs to another guest behind it, which
    is in no domain's XML.
    """
    if port.vid or port.kind is PortKind.SUBPORT:
        return None
    pairs = [(domain, nic) for domain in domains if domain.active for nic in domain.nics]
    for is_it in (_by_id, _by_device, _by_mac):
        matches = {domain.instance_id: domain for domain, nic in pairs if is_it(port, nic)}
        if matches:
            return matches.popitem()[1] if len(matches) == 1 else None
    return None


def _by_id(port: Port, nic: DomainNic) -> bool:
    return bool(port.iface_id) and port.iface_id.lower() == nic.iface_id.lower()


def _by_device(port: Port, nic: DomainNic) -> bool:
    if (port.iface_id and nic.iface_id) or not nic.dev or not _same_mac(port, nic):
        return False
    # A port behind its own bridge has the same id in its name and another prefix.
    id_in_name = port.iface_id[:_NOVA_ID]
    nova = len(id_in_name) == _NOVA_ID and nic.dev[NOVA_PREFIX:] == id_in_name
    return nic.dev == port.name or nova


def _by_mac(port: Port, nic: DomainNic) -> bool:
    return bool(port.mac) and not nic.dev and not nic.iface_id and port.mac == nic.mac


def _same_mac(port: Port, nic: DomainNic) -> bool:
    return not port.mac or not nic.mac or port.mac == nic.mac


class _Reader(DomainReader):
    """Collects the relevant values from the stream of elements."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, str] = {}
        self._nics: list[DomainNic] = []
        self._nic: dict[str, str] = {}

    def domain(self) -> Domain:
        """Return the domain that was read.

        :raises DomainError: when the XML is not a domain.
        """
        instance = instance_of(self._values.get("uuid", ""))
        if not instance:
            raise DomainError(cause="it has no domain/uuid")
        values = self._values
        nova = [values.get(f"metadata/{space} instance/{space} name", "") for space in _NOVA]
        projects = [values.get(f"project {space}", "") for space in _NOVA]
        names = [name_of(name) for name in (*nova, values.get("name", ""))]
        return Domain(
            instance,
            active=self.root == "domstatus",
            name=next(filter(None, names), ""),
            project_id=next(filter(None, map(project_of, projects)), ""),
            nics=tuple(self._nics),
            domain_name=name_of(values.get("name", "")),
        )

    def started(self, path: str, attributes: Mapping[str, str]) -> None:
        match path:
            case "devices/interface":
                self._nic = {}
            case "devices/interface/mac":
                self._nic["mac"] = attributes.get("address", "").strip().lower()
            case "devices/interface/target":
                self._nic["dev"] = attributes.get("dev", "").strip()
            case "devices/interface/source" if attributes.get("type") == "unix":
                # vhost-user: the port has the name of the socket.
                self._nic["socket"] = attributes.get("path", "").rpartition("/")[2]
            case "devices/interface/virtualport/parameters":
                self._nic["iface_id"] = attributes.get("interfaceid", "").strip()
            case _:
                for space in _NOVA:
                    owner = f"metadata/{space} instance/{space} owner/{space} project"
                    if path == owner:
                        self._values.setdefault(f"project {space}", attributes.get("uuid", ""))

    def ended(self, path: str) -> None:
        if path == "devices/interface":
            nic = self._nic
            dev = nic.get("dev") or nic.get("socket", "")
            self._nics.append(DomainNic(nic.get("mac", ""), dev, nic.get("iface_id", "")))

    def text(self, path: str, text: str) -> None:
        if path in _TEXTS:
            before = self._values.get(path, "")
            self._values[path] = (before + text)[:TEXT_MAX]


_TEXTS: Final = frozenset(
    {"uuid", "name", *(f"metadata/{space} instance/{space} name" for space in _NOVA)}
)


_File = tuple[tuple[int, int, int, int], Domain | None]
"""Times, inode and size of a file, and its domain; None: it has none that is readable."""


@dataclass(slots=True)
class Scan:
    """The result of one scan of the directories."""

    started: float
    """Monotonic seconds at the start of the scan."""
    domains: list[Domain] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Files that have become unreadable since the previous scan, each with its cause."""
    error: str = ""
    """An existing directory that cannot be listed, with its cause; empty when there is none."""


class Folders:
    """Reads each file once, and again after it has changed. Runs in an OS thread; never logs there.

    :param paths: directories with ``*.xml``; a directory that does not exist counts as empty.
    """

    def __init__(self, paths: Sequence[Path]):
        self._paths = tuple(paths)
        self._known: dict[str, _File] = {}

    def scan(self) -> Scan:
        """Check all files and parse those that are new or changed."""
        scan = Scan(clock.now())
        files: dict[str, _File] = {}
        for folder in self._paths:
            try:
                entries = [e for e in os.scandir(folder) if e.name.endswith(_SUFFIX)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                scan.error = f"{folder}: {error.strerror}"
                continue
            for entry in entries:
                self._look_at(entry, scan, files)
        self._known = files
        scan.domains = [domain for _stamp, domain in files.values() if domain is not None]
        return scan

    def _look_at(
        self,
        entry: os.DirEntry[str],
        scan: Scan,
        files: dict[str, _File],
    ) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return  # it was deleted in the meantime
        if not stat.S_ISREG(status.st_mode):
            return
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
        before = self._known.get(entry.path)
        if before is not None and before[0] == stamp:
            files[entry.path] = before
            return
        domain = None
        try:
            with open(entry.path, "rb") as file:
                domain = parse(file.read(SIZE_MAX + 1))
        except FileNotFoundError:
            return
        except (OSError, DomainError) as error:
            scan.broken.append(f"{entry.path}: {error}")
        files[entry.path] = (stamp, domain)
