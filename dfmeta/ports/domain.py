"""A libvirt domain's XML: whose it is, and which ports are its own. Pure.

Sources: libvirt's formatdomain.rst, Nova's ``nova/virt/libvirt/config.py``
(LibvirtConfigGuestMetaNovaInstance). The files are root's, so they are trusted; that they may be
large, broken or half there is not held against the others. A document type is refused, and with
it every entity of its own: neither a file of the host's nor a billion laughs can be put in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from xml.parsers import expat

from dfmeta.exceptions import DomainError
from dfmeta.model import Port
from dfmeta.ports.sources import Found, instance_of, name_of, project_of

SIZE_MAX: Final = 1 << 20
"""Bytes. A domain with a hundred devices takes a tenth of that."""
DEPTH_MAX: Final = 64
_TEXT_MAX: Final = 4096
_NOVA: Final = (
    "http://openstack.org/xmlns/libvirt/nova/1.1",
    "http://openstack.org/xmlns/libvirt/nova/1.0",
)
_NOVA_PREFIX: Final = 3
"""Nova calls a device after its port: three letters and the first eleven of the port's id."""
_NOVA_ID: Final = 11


@dataclass(frozen=True, slots=True)
class Nic:
    """An ``<interface>``; empty: not given."""

    mac: str = ""
    """Lower case."""
    dev: str = ""
    """The port's name on the host."""
    iface_id: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """What matters of a domain."""

    instance_id: str
    active: bool
    """From libvirt's status file: it runs, or is paused. A definition says nothing of that."""
    name: str = ""
    """Nova's display name where there is one."""
    project_id: str = ""
    nics: tuple[Nic, ...] = ()
    domain_name: str = ""
    """As virsh knows it."""

    @property
    def found(self) -> Found:
        """The same as an identity source says it."""
        return Found(self.instance_id, self.project_id, self.name)


def parse(data: bytes) -> Domain:
    """Read a domain's definition (``<domain>``) or its status (``<domstatus>``).

    :raises DomainError: when it is neither, too large, or without a UUID.
    """
    if len(data) > SIZE_MAX:
        raise DomainError(cause=f"larger than {SIZE_MAX} bytes")
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise DomainError(cause=str(error)) from error
    except (UnicodeError, LookupError, ValueError) as error:  # an encoding that is none
        raise DomainError(cause=f"{type(error).__name__}: {error}") from error
    return reader.domain()


def match(port: Port, domains: Iterable[Domain]) -> Domain | None:
    """Find the domain that is on *port* now; None when there is none, or more than one.

    Only a domain that is active can be: a definition may be of a guest that had the port before.
    The port's id decides where both sides have one; the device's name only together with the MAC,
    since libvirt uses names again; the MAC alone only for an interface that has neither, since
    two guests may have the same one.
    """
    pairs = [(domain, nic) for domain in domains if domain.active for nic in domain.nics]
    for is_it in (_by_id, _by_device, _by_mac):
        found = {domain.instance_id: domain for domain, nic in pairs if is_it(port, nic)}
        if found:
            return found.popitem()[1] if len(found) == 1 else None
    return None


def _by_id(port: Port, nic: Nic) -> bool:
    return bool(port.iface_id) and port.iface_id.lower() == nic.iface_id.lower()


def _by_device(port: Port, nic: Nic) -> bool:
    if (port.iface_id and nic.iface_id) or not nic.dev or not _same_mac(port, nic):
        return False
    # Behind a bridge of its own the port has the same id in its name, and another prefix.
    mine = port.iface_id[:_NOVA_ID]
    nova = len(mine) == _NOVA_ID and nic.dev[_NOVA_PREFIX:] == mine
    return nic.dev == port.name or nova


def _by_mac(port: Port, nic: Nic) -> bool:
    return bool(port.mac) and not nic.dev and not nic.iface_id and port.mac == nic.mac


def _same_mac(port: Port, nic: Nic) -> bool:
    return not port.mac or not nic.mac or port.mac == nic.mac


class _Reader:
    """Takes what matters from the stream of elements, and builds no tree."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self._path: list[str] = []
        self._root = ""
        self._values: dict[str, str] = {}
        self._nics: list[Nic] = []
        self._nic: dict[str, str] = {}

    def domain(self) -> Domain:
        """What was read.

        :raises DomainError: when that is no domain.
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
            active=self._root == "domstatus",
            name=next(filter(None, names), ""),
            project_id=next(filter(None, map(project_of, projects)), ""),
            nics=tuple(self._nics),
            domain_name=name_of(values.get("name", "")),
        )

    def _inside(self) -> str | None:
        """Path below ``<domain>``; None elsewhere."""
        depth = 2 if self._root == "domstatus" else 1
        if len(self._path) < depth or self._path[depth - 1] != "domain":
            return None
        return "/".join(self._path[depth:])

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path:
            if tag not in ("domain", "domstatus"):
                raise DomainError(cause=f"its root is {tag}")
            self._root = tag
        if len(self._path) >= DEPTH_MAX:
            raise DomainError(cause=f"deeper than {DEPTH_MAX} elements")
        self._path.append(tag)
        match self._inside():
            case "devices/interface":
                self._nic = {}
            case "devices/interface/mac":
                self._nic["mac"] = attributes.get("address", "").strip().lower()
            case "devices/interface/target":
                self._nic["dev"] = attributes.get("dev", "").strip()
            case "devices/interface/source" if attributes.get("type") == "unix":
                # vhost-user: the port is called after the socket.
                self._nic["socket"] = attributes.get("path", "").rpartition("/")[2]
            case "devices/interface/virtualport/parameters":
                self._nic["iface_id"] = attributes.get("interfaceid", "").strip()
            case str(path):
                for space in _NOVA:
                    owner = f"metadata/{space} instance/{space} owner/{space} project"
                    if path == owner:
                        self._values.setdefault(f"project {space}", attributes.get("uuid", ""))

    def _end(self, _tag: str) -> None:
        if self._inside() == "devices/interface":
            nic = self._nic
            dev = nic.get("dev") or nic.get("socket", "")
            self._nics.append(Nic(nic.get("mac", ""), dev, nic.get("iface_id", "")))
        self._path.pop()

    def _text(self, text: str) -> None:
        path = self._inside()
        if path in _TEXTS:
            before = self._values.get(path, "")
            self._values[path] = (before + text)[:_TEXT_MAX]

    def _doctype(self, *_declaration: Any) -> None:
        raise DomainError(cause="it has a document type, which libvirt never writes")


_TEXTS: Final = frozenset(
    {"uuid", "name", *(f"metadata/{space} instance/{space} name" for space in _NOVA)}
)
