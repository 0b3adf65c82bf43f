"""Waits until subports of Neutron work on this host, and names their attachments in OVSDB.

Neutron's Open vSwitch agent makes a patch port ``spi-`` on the integration bridge for each subport
(neutron.services.trunk.drivers.openvswitch.agent.trunk_manager). It works when it has an OpenFlow
number. dfmeta writes the attachment into its row, and the container's instance, if it has one: the
agent only adds keys of its own there.

With OVN no such row exists, because tags reach the integration bridge. There Neutron's status of
the port says that it works, and the attachment is an entry of the list in the row of its VM's port
(:mod:`dfmeta.ovsdb.subport_list`). ListEntries of other programs stand.

Trust: the host's programs write the rows. An entry has only values of the engine and of Neutron.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dfmeta import errors, model
from dfmeta.attach.drivers.local import INNER
from dfmeta.attach.model import Attachment, Parent
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.ovsdb import trunks, vif
from dfmeta.ovsdb.idl import Act, Ovsdb
from dfmeta.ovsdb.rows import Interface, Rows, without_number
from dfmeta.ovsdb.subport_list import KEY as LIST_KEY
from dfmeta.ovsdb.subport_list import (
    ListClaim,
    ListEntry,
    claims,
    with_attachments,
    without_attachments,
    write_list,
)
from dfmeta.runtime import clock

T = TypeVar("T")

WAIT: Final = 10.0
"""Seconds to wait for the agent."""
POLL_STATUS: Final = 0.5
"""Seconds between two requests for the status of ports."""
ACTIVE: Final = "ACTIVE"

Ports = Mapping[str, Attachment]
"""Id of a port → its attachment."""


@dataclass(frozen=True, slots=True)
class WiredState:
    """The rows of subports, and the lists of VMs whose tags reach the bridge."""

    parents: frozenset[str]
    """Ids of the ports of the parents of trunks with a bridge of their own."""
    marks: Mapping[str, str]
    """Attachment → id of the port of its row."""
    claims: Mapping[str, Sequence[ListClaim]]
    """Id of the port of another VM → the entries of its list of subports."""

    def works(self, parent: str, attachment: str, port_id: str, vid: int) -> bool:
        """Return whether a subport has its marked row, or an entry (OVN).

        The entry may be another program's: it stands.
        """
        if parent in self.parents:
            return self.marks.get(attachment) == port_id
        entry = ListClaim(vid, attachment, port_id)
        return vid in self.others(parent) or entry in self.claims.get(parent, ())

    def others(self, parent: str) -> frozenset[int]:
        """Return the VLAN ids of a VM for which other programs have entries."""
        entries = self.claims.get(parent, ())
        return frozenset(entry.vid for entry in entries if entry.vid and not entry.attachment)

    def left(self, with_port: Collection[str]) -> dict[str, tuple[str, int]]:
        """Return attachments with an entry, but without port → the VM's port and VLAN id."""
        return {
            entry.attachment: (parent, entry.vid)
            for parent, entries in self.claims.items()
            for entry in entries
            if entry.attachment and entry.attachment not in with_port
        }


class WiredPorts:
    """The subports of this host's trunks.

    :param ovsdb: carries out transactions.
    :param bridge: name of the integration bridge.
    :param statuses: returns Neutron's status of ports by their ids.
    """

    def __init__(
        self, ovsdb: Ovsdb, bridge: str, statuses: Callable[[Iterable[str]], Mapping[str, str]]
    ) -> None:
        self._ovsdb, self._bridge, self._statuses = ovsdb, bridge, statuses
        self._entries = ListEntries(ovsdb, bridge)

    def wait(self, parent: Parent, ports: Ports) -> None:
        """Return when the subports of a trunk work, and their rows or entries name attachments.

        :raises AttachDriverError: when they do not after :data:`WAIT` seconds, when OVSDB does not
            answer, or as :meth:`ListEntries.write`.
        :raises SourceError: when Neutron does not answer about a port of OVN.
        """
        if not is_patch(parent):
            _await(lambda: self._inactive(ports), POLL_STATUS, ports)
            self._entries.write(parent, ports)
            return
        _await(lambda: self._without_number(ports), clock.POLL, ports)
        _run(self._ovsdb, lambda idl, _txn: _mark(Rows(idl), ports))

    def forget(self, attachments: Iterable[Attachment]) -> None:
        """Remove the entries of attachments; a row goes with its port.

        :raises AttachDriverError: as :meth:`ListEntries.remove`.
        """
        self._entries.remove({attachment.id for attachment in attachments})

    def state(self) -> WiredState:
        """Return which rows and entries of subports there are.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        return _run(self._ovsdb, lambda idl, _txn: self._state(Rows(idl)))

    def _state(self, rows: Rows) -> WiredState:
        present = list(rows.on(self._bridge))
        return WiredState(
            parents=frozenset(
                row.external_ids.get("iface-id", "")
                for row in present
                if row.name.startswith(trunks.PARENT)
            ),
            marks={
                row.external_ids[KEY]: row.external_ids.get("iface-id", "")
                for row in present
                if KEY in row.external_ids
            },
            claims=claims_of(present),
        )

    def _without_number(self, ports: Iterable[str]) -> list[str]:
        missing = _run(self._ovsdb, lambda idl, _txn: without_number(idl, map(row_of, ports)))
        return [port for port in ports if row_of(port) in missing]

    def _inactive(self, ports: Iterable[str]) -> list[str]:
        statuses = self._statuses(ports)
        return [port for port in ports if statuses.get(port) != ACTIVE]


def _mark(rows: Rows, ports: Ports) -> None:
    """Write the attachments of subports, and their instances, into their rows."""
    for port_id, attachment in ports.items():
        row = rows.get(row_of(port_id))
        if row is None or row.external_ids.get("iface-id") != port_id:
            raise _not_wired([port_id], ports)
        marks = {KEY: attachment.id}
        marks |= {vif.INSTANCE_KEY: attachment.instance_id} if attachment.instance_id else {}
        for key, value in marks.items():
            if row.external_ids.get(key) != value:
                rows.places[row.name].interface.setkey("external_ids", key, value)


def is_patch(parent: Parent) -> bool:
    """Return whether the VM's trunk has a bridge of its own, and so a row for each subport."""
    return parent.port_name.startswith(trunks.PARENT)


def row_of(port_id: str) -> str:
    """Return the name of a subport's interface on the integration bridge."""
    return f"{INNER}{port_id}"[: model.NAME_MAX]


def _await(left: Callable[[], Sequence[str]], pause: float, ports: Iterable[str]) -> None:
    """Wait until none of the ports is left."""
    deadline = clock.now() + WAIT
    while missing := left():
        if clock.now() >= deadline:
            raise _not_wired(missing, ports)
        clock.sleep(pause)


def _not_wired(missing: Iterable[str], ports: Iterable[str]) -> errors.AttachDriverError:
    """Return the error; if no port works, it is about all of them."""
    return errors.AttachDriverError(
        cause=f"the network agent of the host has not connected the port in {WAIT:g} s",
        whole=set(missing) == set(ports),
    )


class ListEntries:
    """The entries of attachments.

    :param ovsdb: carries out transactions.
    :param bridge: name of the integration bridge.
    """

    def __init__(self, ovsdb: Ovsdb, bridge: str) -> None:
        self._ovsdb, self._bridge = ovsdb, bridge

    def write(self, parent: Parent, ports: Mapping[str, Attachment]) -> None:
        """Write the entries of a VM's attachments, all or none. Those that exist are corrected.

        :param ports: id of a port → its attachment.
        :raises AttachDriverError: with the field ``taken`` when another program has an entry for
            the VLAN id of one; when the list cannot be read, the VM's port is gone, or OVSDB does
            not answer.
        """
        wanted = [_entry(port_id, attachment) for port_id, attachment in ports.items()]

        def act(idl: Any, _txn: Any) -> None:
            rows = Rows(idl)
            row = rows.get(parent.port_name)
            if row is None or row.bridge != self._bridge or row.iface_id != parent.port_id:
                cause = f"the VM's port {parent.port_name} is not on {self._bridge}"
                raise errors.AttachDriverError(cause=cause, whole=True)
            _change(rows, row, lambda text: with_attachments(text, wanted))

        _run(self._ovsdb, act)

    def remove(self, attachments: Collection[str]) -> None:
        """Remove the entries of attachments by their ids, of any VM.

        :raises AttachDriverError: when a list cannot be written, or OVSDB does not answer.
        """

        def act(idl: Any, _txn: Any) -> None:
            rows = Rows(idl)
            for row in rows.on(self._bridge):
                _change(rows, row, lambda text: without_attachments(text, attachments))

        if attachments:
            _run(self._ovsdb, act)


def _run(ovsdb: Ovsdb, act: Act[T]) -> T:
    """Carry out a transaction; without OVSDB the error is about all attachments."""
    try:
        return ovsdb.run(act)
    except errors.OvsdbError as error:
        cause = "Open vSwitch does not answer"
        raise errors.AttachDriverError(cause=cause, whole=True) from error


def claims_of(rows: Iterable[Interface]) -> dict[str, list[ListClaim]]:
    """Return the iface-id of each VM's port whose tags reach the bridge → what its list claims.

    :param rows: the interfaces of the integration bridge.
    """
    return {
        row.iface_id: claims(row.external_ids.get(LIST_KEY, ""))
        for row in rows
        if row.iface_id and not row.name.startswith(trunks.PARENT)
    }


def _change(rows: Rows, row: Interface, change: Callable[[str], str]) -> None:
    """Change the list of a row."""
    try:
        write_list(rows.places[row.name].interface, change)
    except errors.SubportListError as error:
        cause = f"external_ids:{LIST_KEY} of {row.name}: {error.fields['cause']}"
        about = {"taken": True} if error.fields.get("vid") else {"whole": True}
        raise errors.AttachDriverError(cause=cause, **about) from error


def _entry(port_id: str, attachment: Attachment) -> ListEntry:
    return ListEntry(
        attachment.vid,
        port_id,
        instance_id=attachment.instance_id,
        mac=attachment.mac,
        attachment=attachment.id,
    )
