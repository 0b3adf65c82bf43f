"""Waits until subports of Neutron work on this host, and names their attachments in OVSDB.

Neutron's Open vSwitch agent makes a patch port ``spi-`` on the integration bridge for each subport
(neutron.services.trunk.drivers.openvswitch.agent.trunk_manager). It works when it has an OpenFlow
number. dfmeta writes the attachment into its row, and the container's instance, if it has one: the
agent only adds keys of its own there.

With OVN no such row exists, because tags reach the integration bridge. There Neutron's status of
the port says that it works, and the attachment is an entry of the list in the row of its VM's port
(:mod:`dfmeta.attach.drivers.entries`).

Trust: the host's programs write the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dfmeta.attach.drivers.entries import AWAY, Entries, claims_of
from dfmeta.attach.drivers.local import INNER
from dfmeta.attach.model import Attachment, Parent
from dfmeta.errors import AttachDriverError, OvsdbError
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.ovsdb.subport_list import Claim
from dfmeta.ovsdb.transactions import (
    Operation,
    Part,
    Rows,
    as_map,
    as_set,
    change,
    mutate,
    read,
    without_number,
)
from dfmeta.ovsdb.trunk_bridge import NAME_MAX
from dfmeta.ovsdb.trunks import PARENT
from dfmeta.ovsdb.vif import INSTANCE_KEY
from dfmeta.runtime import clock

WAIT: Final = 10.0
"""Seconds to wait for the agent."""
POLL: Final = 0.02
"""Seconds between two readings of OVSDB."""
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
    claims: Mapping[str, Sequence[Claim]]
    """Id of the port of another VM → the entries of its list of subports."""

    def works(self, parent: str, attachment: str, port_id: str, vid: int) -> bool:
        """Return whether a subport has its marked row, or an entry (OVN).

        The entry may be another program's: it stands.
        """
        if parent in self.parents:
            return self.marks.get(attachment) == port_id
        own = Claim(vid, attachment, port_id)
        return vid in self.others(parent) or own in self.claims.get(parent, ())

    def others(self, parent: str) -> frozenset[int]:
        """Return the VLAN ids of a VM for which other programs have entries."""
        there = self.claims.get(parent, ())
        return frozenset(one.vid for one in there if one.vid and not one.attachment)

    def left(self, known: Collection[str]) -> dict[str, tuple[str, int]]:
        """Return the attachments with an entry, except the known ones → VM's port and VLAN id."""
        return {
            one.attachment: (parent, one.vid)
            for parent, there in self.claims.items()
            for one in there
            if one.attachment and one.attachment not in known
        }


class WiredPorts:
    """The subports of this host's trunks.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param bridge: name of the integration bridge.
    :param statuses: returns Neutron's status of ports by their ids.
    """

    def __init__(
        self, remote: str, bridge: str, statuses: Callable[[Iterable[str]], Mapping[str, str]]
    ) -> None:
        self._remote, self._bridge, self._statuses = remote, bridge, statuses
        self._entries = Entries(remote, bridge)

    def wait(self, parent: Parent, ports: Ports) -> None:
        """Return when the subports of a trunk work, and their rows or entries name attachments.

        :raises AttachDriverError: when they do not after :data:`WAIT` seconds, when OVSDB does not
            answer, or as :meth:`dfmeta.attach.drivers.entries.Entries.write`.
        :raises SourceError: when Neutron does not answer about a port of OVN.
        """
        if not is_patch(parent):
            _await(lambda: self._inactive(ports), POLL_STATUS, ports)
            self._entries.write(parent, ports)
            return
        try:
            _await(lambda: self._without_number(ports), POLL, ports)
            part = Part([row_of(one) for one in ports])
            change(self._remote, lambda rows: self._marks(rows, ports), part=part)
        except OvsdbError as error:
            raise AttachDriverError(cause=AWAY, whole=True) from error

    def forget(self, attachments: Iterable[Attachment]) -> None:
        """Remove the entries of attachments; a row goes with its port.

        :raises AttachDriverError: as :meth:`dfmeta.attach.drivers.entries.Entries.remove`.
        """
        self._entries.remove({one.id for one in attachments})

    def state(self) -> WiredState:
        """Return which rows and entries of subports there are.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        try:
            rows = read(self._remote)
        except OvsdbError as error:
            raise AttachDriverError(cause=AWAY, whole=True) from error
        ids = [(one.name, one.external_ids) for one in rows.on(self._bridge)]
        return WiredState(
            parents=frozenset(
                own.get("iface-id", "") for name, own in ids if name.startswith(PARENT)
            ),
            marks={own[KEY]: own.get("iface-id", "") for _name, own in ids if KEY in own},
            claims=claims_of(rows, self._bridge),
        )

    def _without_number(self, ports: Iterable[str]) -> list[str]:
        missing = without_number(self._remote, map(row_of, ports))
        return [one for one in ports if row_of(one) in missing]

    def _inactive(self, ports: Iterable[str]) -> list[str]:
        found = self._statuses(ports)
        return [one for one in ports if found.get(one) != ACTIVE]

    def _marks(self, rows: Rows, ports: Ports) -> list[Operation]:
        operations = list[Operation]()
        for port_id, one in ports.items():
            row = rows.ports.get(row_of(port_id))
            if row is None or row.external_ids.get("iface-id") != port_id:
                raise _not_wired([port_id], ports)
            marks = {KEY: one.id}
            marks |= {INSTANCE_KEY: one.instance_id} if one.instance_id else {}
            if any(row.external_ids.get(key) != value for key, value in marks.items()):
                changes = (
                    ("external_ids", "delete", as_set(marks)),
                    ("external_ids", "insert", as_map(marks)),
                )
                operations.append(mutate("Interface", row.interface, *changes))
        return operations


def is_patch(parent: Parent) -> bool:
    """Return whether the VM's trunk has a bridge of its own, and so a row for each subport."""
    return parent.port_name.startswith(PARENT)


def row_of(port_id: str) -> str:
    """Return the name of a subport's interface on the integration bridge."""
    return f"{INNER}{port_id}"[:NAME_MAX]


def _await(left: Callable[[], Sequence[str]], pause: float, ports: Iterable[str]) -> None:
    """Wait until none of the ports is left."""
    deadline = clock.now() + WAIT
    while missing := left():
        if clock.now() >= deadline:
            raise _not_wired(missing, ports)
        clock.sleep(pause)


def _not_wired(missing: Iterable[str], ports: Iterable[str]) -> AttachDriverError:
    """Return the error; if no port works, it is about all of them."""
    return AttachDriverError(
        cause=f"the network agent of the host has not connected the port in {WAIT:g} s",
        whole=set(missing) == set(ports),
    )
