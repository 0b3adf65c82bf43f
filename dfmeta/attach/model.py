"""The values of attachments, their rows and limits, and the interface of the drivers. No I/O.

An attachment is one network device of one container: a VLAN of the trunk of its VM, with an address
and a MAC on a network. Its key is the trunk, the container and the name of the device, so that a
repeated request names the same attachment, and a late request to delete an old container never
names a new one.

Trust: :class:`AttachmentRequest` comes from a guest and has been checked for form only.
:class:`Parent` comes from the registry. :class:`Network` comes from the operator.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final, Protocol

from dfmeta.errors import AttachNetworkError

_OF_PARENT: Final = ("port_name", "instance_id", "project_id", "mac")
"""Values that a parent and the row of its trunk have under one name."""


class AttachmentState(enum.StrEnum):
    """State of an attachment. A state is committed before the data plane changes."""

    WANTED = "wanted"
    """VLAN id, address and MAC are taken; nothing exists outside the database."""
    MADE = "made"
    """The driver creates its port, or has created it; nothing confirms yet that frames pass."""
    ACTIVE = "active"
    """The data plane stands."""
    LEAVING = "leaving"
    """The driver removes it. Then the row is deleted, and the VLAN id rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A VM's untagged port, the one that a request came from."""

    port_id: str
    """The port's iface-id."""
    port_name: str
    """Name of its interface on the integration bridge."""
    instance_id: str
    project_id: str = ""
    mac: str = ""
    """In lower case with colons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of containers."""

    name: str
    subnet: IPv4Network
    gateway: IPv4Address | None = None
    """None: containers get no default route."""
    local_vlan: int = 0
    """VLAN on the integration bridge; 0: untagged. Of the driver ``local``."""
    mtu: int = 1500
    """Bytes."""
    dns: tuple[str, ...] = ()
    taken: frozenset[IPv4Address] = frozenset()
    """Addresses of devices that are no attachments. Of the driver ``neutron``."""
    quota: int | None = None
    """Maximum number of attachments of one VM on this network; None: :attr:`AttachmentLimits.quota`
    alone."""


def unknown_network(name: str) -> AttachNetworkError:
    """Return the error for a network that does not exist, or not for the VM that asks."""
    return AttachNetworkError(cause=f"there is no network {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentRequest:
    """A request for an attachment."""

    container: str
    """The runtime's id of the container, or of the sandbox of a pod."""
    ifname: str
    network: str
    owner: str = ""
    """Keeps the garbage collection of one runtime away from another's attachments."""
    boot_id: str = ""
    """The guest's boot (``/proc/sys/kernel/random/boot_id``); empty: not given."""
    mac: str = ""
    ip: IPv4Address | None = None
    avoid: frozenset[int] = frozenset()
    """VLAN ids that the guest cannot use."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A row of the table of attachments."""

    id: str
    """A UUID of its own, in ``external_ids:dfmeta-attachment``."""
    parent: str
    """:attr:`Parent.port_id`."""
    host: str
    """Name of the host whose daemon made it."""
    container: str
    ifname: str
    network: str
    owner: str
    vid: int
    """VLAN id (segmentation id) on the trunk of its VM."""
    mac: str
    ip: IPv4Address
    port_id: str
    """The iface-id of its port; empty: the driver has not given it yet."""
    boot_id: str
    state: AttachmentState
    created: float
    """Seconds of Unix time."""
    changed: float
    """Seconds of Unix time of the last change of its state."""
    instance_id: str = ""
    """Instance of the container's own record; empty: none."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An attachment that the data plane has."""

    id: str
    """Empty: it belongs to others. Its VLAN id is not given, and the engine never removes it."""
    parent: str
    """iface-id of the parent's port; empty: not known, because half of it is missing."""
    vid: int
    """0: not known."""
    whole: bool = True
    """False: a part of it is missing, so that it has to be made again."""
    removable: bool = True
    """False: the VM is moving, and another host is responsible for it."""
    shared: bool = False
    """All hosts have the same data plane, so that a row of any host names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentLimits:
    """Limits of the attachments of each VM. Times are in seconds."""

    vids: range = range(2, 4001)
    """VLAN ids that the engine gives."""
    quota: int = 256
    """Maximum number of attachments of a VM, with those that are being removed."""
    rate: float = 20
    """New attachments of a VM in a second; as many may come at once."""
    rest: float = 10.0
    """How long a VLAN id is not given again after the guest has deleted its device."""
    rest_unknown: float = 120.0
    """The same if the guest may still have the device."""
    grace: float = 600.0
    """How long a VM may be away from this host before its attachments are removed."""
    gc_min_age: float = 60.0
    """Age below which garbage collection leaves an attachment alone."""
    instances: bool = False
    """Whether each new attachment is an instance of its own; see :mod:`dfmeta.attach.records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentStatus:
    """The attachments of a VM in numbers."""

    ready: bool
    """Whether the VM can get attachments now."""
    cause: str
    """Why it cannot; empty if it can."""
    used: int
    """Its attachments, with those that are being removed."""
    free: int
    """How many more it can make, by its quota and its VLAN ids."""
    quota: int
    networks: tuple[Network, ...]
    """All networks, by name."""


class AttachmentDriver(Protocol):
    """Makes attachments real. Each call may block, and changes nothing when repeated.

    :raises AttachDriverError: the data plane did not answer or refused; nothing is known about the
        result. With the field ``whole``, a call for fewer attachments fails as well. With the field
        ``taken``, others use the VLAN id or the address, and the next one may be free.
    """

    def make(self, parent: Parent, attachments: Sequence[Attachment]) -> Mapping[str, str] | None:
        """Create the ports of attachments of one trunk, all or none, and wait until they work.

        :returns: attachment → iface-id of its port; None: they have those of their rows.
        """

    def remove(self, attachments: Sequence[Attachment]) -> None:
        """Delete the ports of attachments of any trunk, whole or half; those gone already too."""

    def found(self) -> Sequence[Found]:
        """Return the attachments that the data plane of this host has."""

    def ready(self, parent: Parent) -> str:
        """Return the cause for which this parent can get no attachments; empty: it can."""

    def has_mac(self, parent: Parent, mac: str, network: Network) -> bool:
        """Return whether a device that is no attachment has a MAC on a network, as far as known.

        :param mac: a unicast MAC that a VM asks for, in lower case with colons.
        """


def to_attachment(row: Mapping[str, Any]) -> Attachment:
    """Return the attachment of a row."""
    values = dict(row)
    values.pop("rest")
    return Attachment(
        parent=values.pop("trunk"),
        ip=IPv4Address(values.pop("ip")),
        state=AttachmentState(values.pop("state")),
        labels=json.loads(values.pop("labels")),
        **values,
    )


def to_report(attachment: Attachment, trunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attachment and its VM's port as JSON has them, for operators.

    :param trunk: the row of its trunk.
    """
    values = {name: getattr(attachment, name) for name in Attachment.__slots__}
    return {
        **values,
        "labels": dict(attachment.labels),
        "ip": str(attachment.ip),
        "state": attachment.state.value,
        "port": trunk["port_name"],
        "instance": trunk["instance_id"],
        "project": trunk["project_id"],
    }


def to_parent(row: Mapping[str, Any]) -> Parent:
    """Return the parent of a row of a trunk, as it was when it was seen last."""
    return Parent(port_id=row["parent"], **{name: row[name] for name in _OF_PARENT})


def to_trunk(parent: Parent, host: str) -> dict[str, Any]:
    """Return the row of a parent's trunk, without its last VLAN id and its absence."""
    values = {name: getattr(parent, name) for name in _OF_PARENT}
    return {"parent": parent.port_id, "host": host, **values}
