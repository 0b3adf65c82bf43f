"""The attachments of VMs whose tags reach the integration bridge, in the lists of subports.

There a container has no row of its own. Its subport is an entry of the list in the row of its VM's
port (:mod:`dfmeta.ovsdb.subport_list`), which has the id of the attachment. Each change is one
transaction, which OVSDB refuses if another program has changed the row meanwhile; then the row is
read again. Entries of other programs stand.

Trust: the host's programs write the rows. An entry has only values of the engine and of Neutron.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from dfmeta.attach.model import Attachment, Parent
from dfmeta.errors import AttachDriverError, OvsdbError, SubportListError
from dfmeta.ovsdb.subport_list import (
    KEY,
    Claim,
    Entry,
    claims,
    with_attachments,
    without_attachments,
)
from dfmeta.ovsdb.subport_writer import replacing
from dfmeta.ovsdb.transactions import Operation, Part, PortRow, Rows, change
from dfmeta.ovsdb.trunks import PARENT

AWAY: Final = "Open vSwitch does not answer"


class Entries:
    """The entries of attachments.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param bridge: name of the integration bridge.
    """

    def __init__(self, remote: str, bridge: str) -> None:
        self._remote, self._bridge = remote, bridge

    def write(self, parent: Parent, ports: Mapping[str, Attachment]) -> None:
        """Write the entries of a VM's attachments, all or none. Those that exist are corrected.

        :param ports: id of a port → its attachment.
        :raises AttachDriverError: with the field ``taken`` when another program has an entry for
            the VLAN id of one; when the list cannot be read, the VM's port is gone, or OVSDB does
            not answer.
        """
        wanted = [_entry(port_id, one) for port_id, one in ports.items()]

        def build(rows: Rows) -> list[Operation]:
            row = rows.ports.get(parent.port_name)
            if row is None or row.bridge != self._bridge or parent_of(row) != parent.port_id:
                cause = f"the VM's port {parent.port_name} is not on {self._bridge}"
                raise AttachDriverError(cause=cause, whole=True)
            return _changing(row, lambda text: with_attachments(text, wanted))

        self._change(build, Part([parent.port_name]))

    def remove(self, attachments: Collection[str]) -> None:
        """Remove the entries of attachments by their ids, of any VM.

        :raises AttachDriverError: when a list cannot be written, or OVSDB does not answer.
        """

        def build(rows: Rows) -> list[Operation]:
            return [
                operation
                for row in rows.on(self._bridge)
                for operation in _changing(row, lambda text: without_attachments(text, attachments))
            ]

        if attachments:
            self._change(build, None)

    def _change(self, build: Callable[[Rows], Sequence[Operation]], part: Part | None) -> None:
        try:
            change(self._remote, build, part=part)
        except OvsdbError as error:
            raise AttachDriverError(cause=AWAY, whole=True) from error


def claims_of(rows: Rows, bridge: str) -> dict[str, list[Claim]]:
    """Return the iface-id of each VM's port whose tags reach the bridge → what its list claims."""
    return {
        parent_of(row): claims(row.external_ids.get(KEY, ""))
        for row in rows.on(bridge)
        if parent_of(row) and not row.name.startswith(PARENT)
    }


def parent_of(row: PortRow) -> str:
    """Return the iface-id of a port; empty: none."""
    return row.external_ids.get("iface-id", "").strip()


def _changing(row: PortRow, change_list: Callable[[str], str]) -> list[Operation]:
    """Return the operations that change the list of a row; none if it stays as it is."""
    before = row.external_ids.get(KEY, "")
    try:
        after = change_list(before)
    except SubportListError as error:
        cause = f"external_ids:{KEY} of {row.name}: {error.fields['cause']}"
        about = {"taken": True} if error.fields.get("vid") else {"whole": True}
        raise AttachDriverError(cause=cause, **about) from error
    return replacing(row.interface, row.external_ids, after) if after != before else []


def _entry(port_id: str, one: Attachment) -> Entry:
    return Entry(one.vid, port_id, instance_id=one.instance_id, mac=one.mac, attachment=one.id)
