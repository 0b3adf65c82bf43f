"""The driver ``neutron``: attachments as ports of Neutron that are subports of the VM's trunk.

An addition creates the port, with the address and the MAC of the attachment, and adds it to the
trunk; then the host's network agent connects it. A removal takes the attachment's entry out of the
list of subports, if it has one, so that no guest is served any more; then it takes the port off the
trunk, and deletes it: Neutron deletes no port of a trunk. Each step may have been done by a call
whose answer was lost, so that what exists already is success, and so is what is gone already.

Ports of other hosts' VMs are never touched: :meth:`NeutronDriver.found` asks for this host's VMs
alone, and of those that Neutron has bound to another host nothing may be removed.

Trust: attachments are rows of dfmeta's own table. A port of Neutron is used only if it has the
project, the network, the address and the MAC of the attachment that its description names.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from dfmeta import errors
from dfmeta.attach.drivers.networks import NeutronNetworks
from dfmeta.attach.drivers.wired import WiredPorts
from dfmeta.attach.model import Attachment, AttachmentState, Found, Network, Parent
from dfmeta.neutron.client import (
    MARK,
    NeutronTrunks,
    Row,
    Trunk,
    attachment_of,
    name_of,
    parent_of,
)
from dfmeta.runtime import clock, throttle

NO_TRUNK: Final = "the VM's port is no parent of a trunk in Neutron"
BROKEN: Final = "the trunk of the VM's port has the status ERROR in Neutron"
DOWN: Final = "the trunk of the VM's port is switched off in Neutron"
ADDRESS_TYPES: Final = frozenset({"IpAddressAlreadyAllocated", "IpAddressInUse"})
"""Another port has the address."""
MAC_TYPES: Final = frozenset({"MacAddressInUse"})
"""Another port of the network has the MAC."""
_ABOUT_THE_TRUNK: Final[Mapping[str, str]] = {
    "TrunkNotFound": NO_TRUNK,
    "TrunkInErrorState": BROKEN,
    "TrunkDisabled": DOWN,
}
_ABOUT_THE_REQUEST: Final[Mapping[str, tuple[type[errors.AttachError], str, str]]] = {
    "SubPortMtuGreaterThanTrunkPortMtu": (
        errors.AttachNetworkError,
        "the network has a larger MTU than the VM's own network",
        "Ask for another network",
    ),
    "MacAddressInUse": (
        errors.AttachNetworkError,
        "the MAC is in use on the network",
        "Ask for another, or for none",
    ),
    "OverQuota": (
        errors.AttachQuotaError,
        "the project's quota of ports in Neutron is used up",
        "",
    ),
    "InvalidIpForSubnet": (
        errors.AttachNetworkError,
        "the address is not one of the network",
        "Ask for another, or for none",
    ),
}


def refusal_of(error: errors.SourceError) -> errors.AttachError:
    """Return what a VM is told about a request that Neutron has not done.

    An error with the field ``whole`` is about all attachments of the request.
    """
    status, kind = error.fields.get("status", 0), str(error.fields.get("kind", ""))
    if kind in _ABOUT_THE_TRUNK:
        return errors.AttachDriverError(cause=_ABOUT_THE_TRUNK[kind], whole=True)
    if kind in _ABOUT_THE_REQUEST:
        made, cause, remedy = _ABOUT_THE_REQUEST[kind]
        return made(cause=cause, remedy=remedy)
    if not isinstance(status, int) or not status or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return errors.AttachDriverError(cause="Neutron does not answer", whole=True)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return errors.AttachDriverError(cause="Neutron refuses the account of the host", whole=True)
    return errors.AttachDriverError(cause="Neutron refuses the port of the container")


def _taken(text: str) -> errors.AttachDriverError:
    """Return the error for a value that others use, so that the next one may be free.

    :param text: names the value.
    """
    return errors.AttachDriverError(cause=f"{text} is in use in Neutron", taken=True)


LOG = logging.getLogger(__name__)

FRESH: Final = 60.0
"""Seconds for which a trunk that can be used is not asked for again."""
_ERROR: Final = "ERROR"


@dataclass(frozen=True, slots=True)
class _Known:
    """A parent's trunk, or why it cannot be used."""

    trunk: Trunk | None
    cause: str
    until: float
    """Monotonic seconds."""


class NeutronDriver:
    """Makes attachments in Neutron; see :class:`dfmeta.attach.model.AttachmentDriver`.

    :param neutron: Neutron's trunks.
    :param networks: the networks of containers.
    :param wired: the subports of this host's switch.
    :param parents: returns the ids of the ports of this host's VMs.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        neutron: NeutronTrunks,
        networks: NeutronNetworks,
        wired: WiredPorts,
        parents: Callable[[], Collection[str]],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._neutron, self._networks, self._wired = neutron, networks, wired
        self._parents, self._clock = parents, clock
        self._known: dict[str, _Known] = {}
        self._throttle = throttle.LogThrottle()

    def make(self, parent: Parent, attachments: Sequence[Attachment]) -> Mapping[str, str]:
        """Create ports, add them to the parent's trunk, and wait until they work.

        After an error, ports may be left; :meth:`remove` finds them.

        :returns: attachment → id of its port.
        :raises AttachError: as :mod:`dfmeta.attach.drivers.neutron` says; with the field ``taken``
            if others use the VLAN id or the address of an attachment.
        """
        if not attachments:
            return {}
        with self._answered(parent.port_id):
            trunk = self._usable(parent.port_id)
            ports = self._ensure_ports(trunk, attachments)
            self._ensure_subports(
                trunk, {ports[attachment.id]: attachment.vid for attachment in attachments}
            )
            self._wired.wait(
                parent, {ports[attachment.id]: attachment for attachment in attachments}
            )
            return ports

    def remove(self, attachments: Sequence[Attachment]) -> None:
        """Take ports off their trunks and delete them, also those that are on no trunk.

        :raises AttachDriverError: when Neutron does not answer, or refuses, or OVSDB does not
            answer.
        """
        self._wired.forget(attachments)
        of_parent: dict[str, list[Attachment]] = {}
        for attachment in attachments:
            of_parent.setdefault(attachment.parent, []).append(attachment)
        for parent, leaving in of_parent.items():
            with self._answered(parent):
                self._remove(parent, leaving)

    def has_mac(self, _parent: Parent, _mac: str, _network: Network) -> bool:
        """Return False: Neutron itself refuses a MAC that a port of the network has."""
        return False

    def found(self) -> Sequence[Found]:
        """Return the ports and entries of the containers of this host's VMs, and other subports.

        :raises AttachDriverError: when Neutron or OVSDB does not answer.
        """
        with self._answered():
            vms = {vm.id: vm for vm in self._neutron.parents(self._parents())}
            ports = self._neutron.ports_of(vms)
            trunks = {trunk.parent: trunk for trunk in self._neutron.trunks(vms)}
        self._known = {name: trunk for name, trunk in self._known.items() if name in vms}
        for parent, trunk in trunks.items():
            self._keep(parent, trunk)
        wired = self._wired.state()
        result = list[Found]()
        own_ports = set[str]()
        for port in ports:
            parent, name, port_id = parent_of(port), attachment_of(port), str(port["id"])
            own_trunk = trunks.get(parent)
            projects = {vms[parent].project_id, own_trunk.project_id if own_trunk else ""}
            if port.get("project_id") not in projects - {""}:
                # Any tenant may give its ports that name.
                continue
            vid = own_trunk.subports.get(port_id, 0) if own_trunk is not None else 0
            whole = bool(vid) and wired.works(parent, name, port_id, vid)
            result.append(
                Found(
                    id=name,
                    parent=parent,
                    vid=vid,
                    whole=whole,
                    removable=vms[parent].here,
                    shared=True,
                )
            )
            own_ports.add(port_id)
        for parent, trunk in trunks.items():
            others = {vid for port, vid in trunk.subports.items() if port not in own_ports}
            others |= wired.others(parent)
            result += [Found(id="", parent=parent, vid=vid) for vid in sorted(others)]
        left = wired.left({port.id for port in result})
        result += [
            Found(id=name, parent=parent, vid=vid, whole=False, shared=True)
            for name, (parent, vid) in left.items()
        ]
        return result

    def ready(self, parent: Parent) -> str:
        """Return the cause for which a parent can get no attachments; empty: it can."""
        try:
            with self._answered(parent.port_id):
                return self._look(parent.port_id).cause
        except errors.AttachDriverError as error:
            return error.cause

    # Additions

    def _ensure_ports(self, trunk: Trunk, attachments: Sequence[Attachment]) -> dict[str, str]:
        """Return attachment → id of its port, after the missing ports have been created."""
        # An attachment that has just been chosen has no port yet, so that nothing is asked for.
        existing: dict[str, str] | None = None
        if any(attachment.state is not AttachmentState.WANTED for attachment in attachments):
            existing = self._existing(trunk, attachments)
        missing = [
            attachment for attachment in attachments if attachment.id not in (existing or {})
        ]
        try:
            return {**(existing or {}), **self._create(trunk, missing)}
        except errors.SourceError as error:
            kind = error.fields.get("kind")
            if kind not in ADDRESS_TYPES | MAC_TYPES:
                raise
            if existing is None:
                existing = self._existing(trunk, attachments)
                missing = [
                    attachment for attachment in attachments if attachment.id not in existing
                ]
                if existing:
                    return {**existing, **self._create_or_refuse(trunk, missing)}
            raise self._address_taken(error, missing) from error

    def _create_or_refuse(self, trunk: Trunk, missing: Sequence[Attachment]) -> dict[str, str]:
        try:
            return self._create(trunk, missing)
        except errors.SourceError as error:
            raise self._address_taken(error, missing) from error

    def _address_taken(self, error: errors.SourceError, missing: Sequence[Attachment]) -> Exception:
        if error.fields.get("kind") not in ADDRESS_TYPES:
            return error
        for name in {attachment.network for attachment in missing}:
            self._networks.read_again(name)
        return _taken("the address")

    def _create(self, trunk: Trunk, attachments: Sequence[Attachment]) -> dict[str, str]:
        if not attachments:
            return {}
        rows = self._neutron.create([self._body(trunk, attachment) for attachment in attachments])
        return {attachment_of(row): str(row["id"]) for row in rows}

    def _body(self, trunk: Trunk, attachment: Attachment) -> dict[str, Any]:
        chosen = self._networks.chosen(attachment.network)
        address = {"subnet_id": chosen.subnet_id, "ip_address": str(attachment.ip)}
        return {
            "name": name_of(attachment.parent),
            "description": f"{MARK}{attachment.id}",
            "project_id": trunk.project_id,
            "network_id": chosen.network_id,
            "fixed_ips": [address],
            "mac_address": attachment.mac,
            **({"security_groups": list(chosen.groups)} if chosen.groups else {}),
        }

    def _existing(self, trunk: Trunk, attachments: Iterable[Attachment]) -> dict[str, str]:
        by_id = {attachment.id: attachment for attachment in attachments}
        rows = self._neutron.ports_for(by_id)
        return {
            attachment_of(row): str(row["id"])
            for row in rows
            if _is_like(row, self._body(trunk, by_id[attachment_of(row)]))
        }

    def _ensure_subports(self, trunk: Trunk, wanted: Mapping[str, int]) -> None:
        try:
            self._neutron.add(trunk.id, wanted)
        except errors.SourceError as error:
            if error.fields.get("status") != HTTPStatus.CONFLICT:
                raise
            now = self._ask(trunk.parent).trunk
            if now is None:
                raise
            left = {port: vid for port, vid in wanted.items() if now.subports.get(port) != vid}
            used = {vid for port, vid in now.subports.items() if port not in wanted}
            for vid in left.values():
                if vid in used:
                    raise _taken(f"the VLAN id {vid}") from error
            if len(left) == len(wanted):
                raise
            if left:
                self._neutron.add(trunk.id, left)

    # Removals

    def _remove(self, parent: str, attachments: Sequence[Attachment]) -> None:
        ports = {attachment.port_id for attachment in attachments if attachment.port_id}
        unnamed = [attachment.id for attachment in attachments if not attachment.port_id]
        ports |= {str(row["id"]) for row in self._neutron.ports_for(unnamed)}
        if not ports:
            return
        try:
            trunk = self._look(parent).trunk
            if trunk is not None:
                self._neutron.remove(trunk.id, sorted(ports))
        except errors.SourceError as error:
            # A trunk that is switched off refuses also the removal of what is not on it.
            if error.fields.get("status") not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            self._remove_left(parent, ports)
        for port in sorted(ports):
            self._delete(port)

    def _remove_left(self, parent: str, ports: set[str]) -> None:
        """Take those ports off a trunk that are on it; Neutron takes all or none."""
        now = self._ask(parent).trunk
        left = sorted(ports & now.subports.keys()) if now is not None else []
        if now is not None and left:
            self._neutron.remove(now.id, left)

    def _delete(self, port: str) -> None:
        try:
            self._neutron.delete(port)
        except errors.SourceError as error:
            if error.fields.get("status") != HTTPStatus.NOT_FOUND:
                raise

    # Trunks

    def _usable(self, parent: str) -> Trunk:
        answer = self._look(parent)
        if answer.trunk is None or answer.cause:
            raise errors.AttachDriverError(cause=answer.cause, whole=True)
        return answer.trunk

    def _look(self, parent: str) -> _Known:
        """Return a parent's trunk, as Neutron has it or lately had it."""
        answer = self._known.get(parent)
        if answer is None or answer.until <= self._clock():
            return self._ask(parent)
        return answer

    def _ask(self, parent: str) -> _Known:
        return self._keep(parent, next(iter(self._neutron.trunks([parent])), None))

    def _keep(self, parent: str, trunk: Trunk | None) -> _Known:
        cause = ""
        if trunk is None:
            cause = NO_TRUNK
        elif trunk.status == _ERROR:
            cause = BROKEN
        elif not trunk.up:
            cause = DOWN
        until = self._clock() + (throttle.LONGEST_PAUSE if cause else FRESH)
        answer = self._known[parent] = _Known(trunk, cause, until)
        return answer

    @contextmanager
    def _answered(self, parent: str = "") -> Iterator[None]:
        """Turn an error of a request into one for a VM, and log Neutron's own words."""
        try:
            yield
        except errors.SourceError as error:
            self._known.pop(parent, None)
            self._throttle.warn(
                LOG, "Neutron did not do a request for attachments: %s", error.cause
            )
            raise refusal_of(error) from error


def _is_like(row: Row, body: Mapping[str, Any]) -> bool:
    """Return whether a port is the one that *body* would create."""
    return all(
        row.get(name) == body[name]
        for name in ("project_id", "network_id", "mac_address", "fixed_ips")
    )
