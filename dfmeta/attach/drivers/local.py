"""The driver ``local``: attachments as patch ports between a trunk and the integration bridge.

An attachment is a pair of patch ports, as Neutron makes it for a subport of a trunk. ``spi-`` is on
the integration bridge, in the VLAN of the container's network, and ``spt-`` on the bridge of the
VM's trunk, in the VLAN of the container. Both have ``external_ids:dfmeta-attachment``, so that the
end that is left of a broken pair is found. A VM gets its trunk by :mod:`dfmeta.ovsdb.trunk_bridge`.

All pairs of a call are one transaction. Its condition is that the trunk's bridge has the ports that
were read: a VLAN id cannot be given to two programs.

Trust: :class:`~dfmeta.attach.model.Attachment` is a row of dfmeta's own table. The rows of OVSDB
are those of the host's programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.attach.drivers.mac_use import is_learned, is_ports
from dfmeta.attach.model import Attachment, Found, Network, Parent
from dfmeta.errors import AttachDriverError, OvsdbError
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.ovsdb.transactions import (
    Inserts,
    Operation,
    Part,
    PortRow,
    Rows,
    as_map,
    as_set,
    change,
    mutate,
    read,
    read_ports,
    reconfigure,
    reference,
    unchanged,
    update,
    without_number,
)
from dfmeta.ovsdb.trunk_bridge import AGENTS_PATCH, NAME_MAX, agent_of, is_ours
from dfmeta.ovsdb.trunk_bridge import names_of as trunk_names
from dfmeta.ovsdb.trunks import PARENT
from dfmeta.ovsdb.vif import ADDRESS_KEY, INSTANCE_KEY
from dfmeta.ovsdb.vswitchd import Vswitchd, VswitchdError, run_folder
from dfmeta.runtime import clock

INNER: Final = "spi-"
"""Beginning of the name of the end on the integration bridge."""
OUTER: Final = "spt-"
"""Beginning of the name of the end on the trunk's bridge."""
WAIT: Final = 5.0
"""Seconds to wait for the OpenFlow numbers of new ports."""
ASK_AGAIN: Final = 1.0
"""Seconds after which ovs-vswitchd is asked again for a number that it has not given."""
POLL: Final = 0.005
"""Seconds between two readings of the numbers."""
_OWN_KEYS: Final = ("iface-id", "attached-mac", KEY, INSTANCE_KEY, ADDRESS_KEY)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of an attachment, as it has to be."""

    name: str
    bridge: str
    peer: str
    tag: int | None
    vlan_mode: str
    external_ids: Mapping[str, str]

    def is_like(self, row: PortRow) -> bool:
        """Return whether a port of its bridge is this end."""
        ids = {key: row.external_ids[key] for key in _OWN_KEYS if key in row.external_ids}
        return (row.peer, row.tag, row.vlan_mode, row.trunks, ids) == (
            *(self.peer, self.tag, self.vlan_mode, (), self.external_ids),
        )

    def interface(self) -> dict[str, Any]:
        """Return the columns of a new interface."""
        options = as_map({"peer": self.peer})
        return {"type": "patch", "options": options, "external_ids": as_map(self.external_ids)}

    def port(self) -> dict[str, Any]:
        """Return the columns of its port."""
        return {
            "tag": as_set([] if self.tag is None else [self.tag]),
            "vlan_mode": as_set([self.vlan_mode] if self.vlan_mode else []),
            "trunks": as_set([]),
        }


class LocalDriver:
    """Makes attachments by OVSDB alone; see :class:`dfmeta.attach.model.Driver`.

    :param remote: OVSDB's address, ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param bridge: name of the integration bridge.
    :param networks: name → network.
    :param is_meta_mac: tells whether a MAC is one of the second bridge's (``meta_ip``).
    :param await_checks: returns when the switch checks the source of each frame of ports, which it
        gets by their names; raises AttachDriverError if it does not. None: nothing is checked.
    """

    def __init__(
        self,
        remote: str,
        bridge: str,
        networks: Mapping[str, Network],
        *,
        is_meta_mac: Callable[[str], bool] = lambda mac: False,
        await_checks: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._remote, self._bridge, self._networks = remote, bridge, networks
        self._is_meta_mac, self._await_checks = is_meta_mac, await_checks
        self._vswitchd = Vswitchd(run_folder(remote))

    def make(self, parent: Parent, attachments: Sequence[Attachment]) -> None:
        """Create the ports of attachments, all or none, and wait until they have numbers.

        Ends that exist are corrected. A new inner end gets its peer when the sources of its frames
        are checked: until then, no frame passes.

        :raises AttachDriverError: when a VLAN id or a name is another program's, when a network is
            unknown, when the parent has no trunk of dfmeta, or when Open vSwitch does not answer.
        """
        if not attachments:
            return

        def build(rows: Rows, *, inner: bool = False) -> list[Operation]:
            cause, trunk = self._trunk(rows, parent.port_name)
            if cause:
                # The whole cause is among ports that were not read.
                raise _error(self.ready(parent) or cause)
            self._refuse_vids(rows, trunk, attachments)
            ends = [end for one in attachments for end in self._ends(one, trunk)]
            here = [end for end in ends if end.bridge == self._bridge]
            return _creating(rows, here if inner else ends, trunk)

        names = _names(attachments)
        ours = (parent.port_name, *trunk_names(parent.port_id))
        part = Part([*ours, *names], [one.vid for one in attachments])
        if self._await_checks is not None:
            inner = [names_of(one.id)[0] for one in attachments]
            self._change(lambda rows: build(rows, inner=True), part)
            self._await(inner, has_peers=False)
            self._await_checks(inner)
        self._change(build, part)
        self._await(names)

    def remove(self, attachments: Sequence[Attachment]) -> None:
        """Delete the ports of attachments, whole or half, in one transaction.

        :raises AttachDriverError: when Open vSwitch does not answer.
        """
        ids = {one.id for one in attachments}
        if not ids:
            return

        def build(rows: Rows) -> list[Operation]:
            ends = [one for one in rows.ports.values() if one.external_ids.get(KEY) in ids]
            return [*_deleting(rows, ends), reconfigure(rows)] if ends else []

        self._change(build, Part(_names(attachments)))

    def found(self) -> Sequence[Found]:
        """Return the attachments of which OVSDB has both ends or one.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        rows = self._read()
        ends: dict[str, list[PortRow]] = {}
        for one in rows.ports.values():
            if one.name in names_of(_id_of(one)):
                ends.setdefault(_id_of(one), []).append(one)
        return [self._found(rows, name, there) for name, there in ends.items()]

    def ready(self, parent: Parent) -> str:
        """Return the cause for which a parent can get no attachments; empty: it can."""
        try:
            return self._trunk(self._rows_of(parent.port_name), parent.port_name)[0]
        except AttachDriverError as error:
            return error.cause

    def has_mac(self, parent: Parent, mac: str, network: Network) -> bool:
        """Return whether another port has a MAC, or another device of the network has used it.

        The MAC of a gateway behind another host is known by the frames that it has sent lately.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        if self._is_meta_mac(mac) or is_ports(self._read().ports.values(), mac, parent):
            return True
        try:
            return is_learned(self._vswitchd.learned(self._bridge), mac, network.local_vlan)
        except VswitchdError as error:
            raise _error("Open vSwitch does not tell the MACs of the network") from error

    def _trunk(self, rows: Rows, name: str) -> tuple[str, str]:
        """Return why a port has no trunk of dfmeta, and the bridge of its trunk."""
        inner = rows.ports.get(name)
        outer = rows.ports.get(inner.peer) if inner is not None else None
        if inner is None or inner.bridge != self._bridge:
            return f"{self._bridge} has no port {name}", ""
        if outer is None or not name.startswith(PARENT):
            if sign := agent_of(rows, self._bridge):
                return f"the host has {sign}: the driver local cannot be used beside it", ""
            return f"{name} is not on a trunk: run `dfmeta trunk enable {name}`", ""
        if not is_ours(rows, outer.bridge):
            return f"the trunk of {name} on {outer.bridge} is Neutron's or another program's", ""
        return "", outer.bridge

    def _ends(self, attachment: Attachment, trunk: str) -> tuple[_End, _End]:
        network = self._networks.get(attachment.network)
        if network is None:
            raise _error(f"the network {attachment.network} is not configured on this host")
        inner, outer = names_of(attachment.id)
        ids = {
            "iface-id": attachment.port_id,
            "attached-mac": attachment.mac,
            KEY: attachment.id,
        }
        own = {ADDRESS_KEY: str(attachment.ip)}
        own |= {INSTANCE_KEY: attachment.instance_id} if attachment.instance_id else {}
        return (
            _End(inner, self._bridge, outer, network.local_vlan or None, "", ids | own),
            _End(outer, trunk, inner, attachment.vid, "access", ids),
        )

    def _refuse_vids(self, rows: Rows, trunk: str, attachments: Iterable[Attachment]) -> None:
        users = {one.tag: one for one in rows.on(trunk) if one.tag}
        for one in attachments:
            user = users.get(one.vid)
            if user is not None and _id_of(user) != one.id:
                raise _error(
                    f"VLAN id {one.vid} of the trunk is used by the port {user.name} of {trunk}"
                )

    def _found(self, rows: Rows, name: str, ends: Sequence[PortRow]) -> Found:
        outer = [one for one in ends if one.bridge != self._bridge]
        vid = outer[0].tag or 0 if len(outer) == 1 else 0
        if (
            len(ends) != 2
            or len(outer) != 1
            or {ends[0].peer, ends[1].peer} != {one.name for one in ends}
        ):
            return Found(id=name, parent="", vid=vid)
        checked = any(ADDRESS_KEY in one.external_ids for one in ends)
        parents = [
            one.external_ids.get("iface-id", "")
            for one in rows.on(outer[0].bridge)
            if one.peer.startswith(PARENT)
        ]
        parent = parents[0] if len(parents) == 1 else ""
        # Without the address, of an earlier version, its source is not checked.
        return Found(id=name, parent=parent, vid=vid, whole=checked)

    def _await(self, names: Sequence[str], *, has_peers: bool = True) -> None:
        """Wait until ports have OpenFlow numbers, and no error unless their peers are missing.

        A port that is changed twice in quick succession may keep the error and the number -1 of
        the first change in OVSDB, although it works (seen with Open vSwitch 3.1): ovs-vswitchd is
        asked again.
        """
        left: Mapping[str, str] = dict.fromkeys(names, "")
        deadline = clock.now() + WAIT
        again = clock.now() + ASK_AGAIN
        while True:
            try:
                left = without_number(self._remote, left, has_peers=has_peers)
            except OvsdbError as error:
                raise _away(error) from error
            if not left:
                return
            now = clock.now()
            if now >= deadline:
                name, why = next(iter(left.items()))
                raise _error(
                    f"Open vSwitch has not made {len(left)} of {len(names)} ports work in "
                    f"{WAIT:g} s; {name}: {why}"
                )
            if now >= again:
                again = now + ASK_AGAIN
                self._change(lambda rows: [reconfigure(rows)], Part(()))
            clock.sleep(POLL)

    def _rows_of(self, name: str) -> Rows:
        """Read a port, its peer and the signs of Neutron's agent.

        A reading of all rows takes longer with each port of the host, and any VM may ask often.
        """
        try:
            rows = read_ports(self._remote, [name, AGENTS_PATCH])
            peer = rows.ports[name].peer if name in rows.ports else ""
            return read_ports(self._remote, [name, peer, AGENTS_PATCH]) if peer else rows
        except OvsdbError as error:
            raise _away(error) from error

    def _read(self) -> Rows:
        try:
            return read(self._remote)
        except OvsdbError as error:
            raise _away(error) from error

    def _change(self, build: Callable[[Rows], Sequence[Operation]], part: Part) -> None:
        try:
            change(self._remote, build, part=part)
        except OvsdbError as error:
            raise _away(error) from error


def names_of(attachment: str) -> tuple[str, str]:
    """Return the names of the ends of an attachment by its id: inner and outer."""
    return f"{INNER}{attachment}"[:NAME_MAX], f"{OUTER}{attachment}"[:NAME_MAX]


def _names(attachments: Iterable[Attachment]) -> list[str]:
    return [name for one in attachments for name in names_of(one.id)]


def _id_of(port: PortRow) -> str:
    return port.external_ids.get(KEY, "")


def _error(cause: str) -> AttachDriverError:
    return AttachDriverError(cause=cause)


def _away(error: OvsdbError) -> AttachDriverError:
    return _error(f"OVSDB does not do its part: {error.fields['cause']}")


def _creating(rows: Rows, ends: Sequence[_End], trunk: str) -> list[Operation]:
    """Return the operations that make the missing ends, and correct the others; none if all are."""
    new, stale = Inserts(), list[PortRow]()
    made: dict[str, list[Any]] = {}
    updates: list[Operation] = []
    for end in ends:
        row = rows.ports.get(end.name)
        if row is not None and _id_of(row) != end.external_ids[KEY]:
            raise _error(f"the port {end.name} of {row.bridge} belongs to another program")
        if row is not None and row.bridge == end.bridge:
            updates += [] if end.is_like(row) else _correcting(row, end)
            continue
        stale += [] if row is None else [row]
        reference_to = new.port(end.name, interface=end.interface(), port=end.port())
        made.setdefault(end.bridge, []).append(reference_to)
    if not made and not updates:
        return []
    bridge = rows.bridges[trunk]
    return [
        unchanged("Bridge", bridge.uuid, "ports", as_set(map(reference, bridge.ports))),
        *_deleting(rows, stale),
        *new.operations,
        *(
            mutate("Bridge", rows.bridges[name].uuid, ("ports", "insert", as_set(ports)))
            for name, ports in made.items()
        ),
        *updates,
        reconfigure(rows),
    ]


def _correcting(row: PortRow, end: _End) -> list[Operation]:
    return [
        update("Port", row.uuid, **end.port()),
        update("Interface", row.interface, type="patch", options=as_map({"peer": end.peer})),
        mutate(
            "Interface",
            row.interface,
            ("external_ids", "delete", as_set(_OWN_KEYS)),
            ("external_ids", "insert", as_map(end.external_ids)),
        ),
    ]


def _deleting(rows: Rows, ends: Iterable[PortRow]) -> list[Operation]:
    """Return the operations that delete ports; OVSDB deletes rows that no bridge refers to."""
    gone: dict[str, list[Any]] = {}
    for one in ends:
        gone.setdefault(one.bridge, []).append(reference(one.uuid))
    return [
        mutate("Bridge", rows.bridges[name].uuid, ("ports", "delete", as_set(ports)))
        for name, ports in gone.items()
    ]
