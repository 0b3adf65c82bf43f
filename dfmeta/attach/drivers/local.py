"""The driver ``local``: attachments as patch ports between a trunk and the integration bridge.

An attachment is a pair of patch ports, as Neutron makes it for a subport of a trunk. ``spi-`` is on
the integration bridge, in the VLAN of the container's network, and ``spt-`` on the bridge of the
VM's trunk, in the VLAN of the container. Both have ``external_ids:dfmeta-attachment``, so that the
end that is left of a broken pair is found. A VM gets its trunk by :mod:`dfmeta.ovsdb.trunk_bridge`.

All pairs of a call are one transaction. Its condition is that the trunk's bridge has the ports that
were read: a VLAN id cannot be given to two programs.

Trust: :class:`~dfmeta.attach.model.Attachment` is a row of dfmeta's own table. The rows of OVSDB
are those of the host's programs. A bridge learns the sources of frames, which any device of a
network may have forged: a MAC that is found there may only be refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from dfmeta import errors, model
from dfmeta.attach.model import Attachment, Found, Network, Parent
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.ovsdb import trunks, vif
from dfmeta.ovsdb.external_ids import META_KEYS
from dfmeta.ovsdb.idl import Act, Ovsdb, reconfigure, verify
from dfmeta.ovsdb.rows import Interface, InterfacePlace, Rows, without_number
from dfmeta.ovsdb.trunk_bridge import agent_of, is_ours, new_port
from dfmeta.ovsdb.vswitchd import Vswitchd, VswitchdError
from dfmeta.runtime import clock
from dfmeta.runtime.clock import ANSWER_TIMEOUT, CHECK_INTERVAL

T = TypeVar("T")

INNER: Final = "spi-"
"""Beginning of the name of the end on the integration bridge."""
OUTER: Final = "spt-"
"""Beginning of the name of the end on the trunk's bridge."""
_OWN_KEYS: Final = ("iface-id", "attached-mac", KEY, vif.INSTANCE_KEY, vif.ADDRESS_KEY)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of an attachment, as it has to be."""

    name: str
    bridge: str
    peer: str
    tag: int | None
    vlan_mode: str
    external_ids: Mapping[str, str]

    def is_like(self, row: Interface) -> bool:
        """Return whether a port of its bridge is this end."""
        ids = {key: row.external_ids[key] for key in _OWN_KEYS if key in row.external_ids}
        return (row.peer, row.tag, row.vlan_mode, row.trunks, ids) == (
            *(self.peer, self.tag, self.vlan_mode, (), self.external_ids),
        )

    def write(self, port: Any, interface: Any) -> None:
        """Write the columns of an end into its rows; keys of others stay."""
        port.tag = [] if self.tag is None else [self.tag]
        port.vlan_mode = [self.vlan_mode] if self.vlan_mode else []
        port.trunks = []
        interface.type, interface.options = "patch", {"peer": self.peer}
        for key in _OWN_KEYS:
            if key in self.external_ids:
                interface.setkey("external_ids", key, self.external_ids[key])
            else:
                interface.delkey("external_ids", key)


class LocalDriver:
    """Makes attachments by OVSDB alone; see :class:`dfmeta.attach.model.AttachmentDriver`.

    :param ovsdb: carries out transactions.
    :param vswitchd: ovs-vswitchd of the host.
    :param bridge: name of the integration bridge.
    :param networks: name → network.
    :param is_meta_mac: tells whether a MAC is one of the second bridge's (``meta_ip``).
    :param await_checks: returns when the switch checks the source of each frame of ports, which it
        gets by their names; raises AttachDriverError if it does not. None: nothing is checked.
    """

    def __init__(
        self,
        ovsdb: Ovsdb,
        vswitchd: Vswitchd,
        bridge: str,
        networks: Mapping[str, Network],
        *,
        is_meta_mac: Callable[[str], bool] = lambda mac: False,
        await_checks: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._ovsdb, self._vswitchd = ovsdb, vswitchd
        self._bridge, self._networks = bridge, networks
        self._is_meta_mac, self._await_checks = is_meta_mac, await_checks

    def make(self, parent: Parent, attachments: Sequence[Attachment]) -> None:
        """Create the ports of attachments, all or none, and wait until they have numbers.

        Ends that exist are corrected. A new inner end gets its peer when the sources of its frames
        are checked: until then, no frame passes.

        :raises AttachDriverError: when a VLAN id or a name is another program's, when a network is
            unknown, when the parent has no trunk of dfmeta, or when Open vSwitch does not answer.
        """
        if not attachments:
            return

        def act(idl: Any, txn: Any, *, inner: bool = False) -> None:
            rows = Rows(idl)
            cause, trunk = self._trunk(rows, parent.port_name)
            if cause:
                raise _error(cause)
            self._refuse_vids(rows, trunk, attachments)
            ends = [end for attachment in attachments for end in self._ends(attachment, trunk)]
            here = [end for end in ends if end.bridge == self._bridge]
            if _create(rows, txn, here if inner else ends, trunk):
                rows.root.increment("next_cfg")

        if self._await_checks is not None:
            inner = [names_of(attachment.id)[0] for attachment in attachments]
            self._run(partial(act, inner=True))
            self._await(inner, has_peers=False)
            self._await_checks(inner)
        self._run(act)
        self._await([name for attachment in attachments for name in names_of(attachment.id)])

    def remove(self, attachments: Sequence[Attachment]) -> None:
        """Delete the ports of attachments, whole or half, in one transaction.

        :raises AttachDriverError: when Open vSwitch does not answer.
        """

        def act(idl: Any, _txn: Any) -> None:
            rows = Rows(idl)
            ends = [
                rows.places[name]
                for attachment in attachments
                for name in names_of(attachment.id)
                if name in rows.places and _id_of(rows.places[name].interface) == attachment.id
            ]
            if ends:
                _delete(ends)
                rows.root.increment("next_cfg")

        if attachments:
            self._run(act)

    def found(self) -> Sequence[Found]:
        """Return the attachments of which OVSDB has both ends or one.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        return self._run(lambda idl, _txn: self._found_in(Rows(idl)))

    def ready(self, parent: Parent) -> str:
        """Return the cause for which a parent can get no attachments; empty: it can."""
        try:
            return self._run(lambda idl, _txn: self._trunk(Rows(idl), parent.port_name)[0])
        except errors.AttachDriverError as error:
            return error.cause

    def has_mac(self, parent: Parent, mac: str, network: Network) -> bool:
        """Return whether another port has a MAC, or another device of the network has used it.

        The MAC of a gateway behind another host is known by the frames that it has sent lately.

        :raises AttachDriverError: when OVSDB does not answer.
        """
        if self._is_meta_mac(mac) or self._run(lambda idl, _txn: is_ports(Rows(idl), mac, parent)):
            return True
        try:
            return is_learned(self._vswitchd.learned(self._bridge), mac, network.local_vlan)
        except VswitchdError as error:
            raise _error("Open vSwitch does not tell the MACs of the network") from error

    def _trunk(self, rows: Rows, name: str) -> tuple[str, str]:
        """Return why a port has no trunk of dfmeta, and the bridge of its trunk."""
        inner = rows.get(name)
        outer = rows.get(inner.peer) if inner is not None else None
        if inner is None or inner.bridge != self._bridge:
            return f"{self._bridge} has no port {name}", ""
        if outer is None or not name.startswith(trunks.PARENT):
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
        checked = {vif.ADDRESS_KEY: str(attachment.ip)}
        checked |= {vif.INSTANCE_KEY: attachment.instance_id} if attachment.instance_id else {}
        return (
            _End(inner, self._bridge, outer, network.local_vlan or None, "", ids | checked),
            _End(outer, trunk, inner, attachment.vid, "access", ids),
        )

    def _refuse_vids(self, rows: Rows, trunk: str, attachments: Iterable[Attachment]) -> None:
        users = {row.tag: row for row in rows.on(trunk) if row.tag}
        for attachment in attachments:
            user = users.get(attachment.vid)
            if user is not None and _id_of(user) != attachment.id:
                vid = attachment.vid
                raise _error(
                    f"VLAN id {vid} of the trunk is used by the port {user.name} of {trunk}"
                )

    def _found_in(self, rows: Rows) -> list[Found]:
        ends: dict[str, list[Interface]] = {}
        for name, place in rows.places.items():
            attachment = _id_of(place.interface)
            if name in names_of(attachment):
                ends.setdefault(attachment, []).append(place.read())
        return [self._found(rows, attachment, pair) for attachment, pair in ends.items()]

    def _found(self, rows: Rows, name: str, ends: Sequence[Interface]) -> Found:
        outer = [end for end in ends if end.bridge != self._bridge]
        vid = outer[0].tag or 0 if len(outer) == 1 else 0
        if (
            len(ends) != 2
            or len(outer) != 1
            or {ends[0].peer, ends[1].peer} != {end.name for end in ends}
        ):
            return Found(id=name, parent="", vid=vid)
        checked = any(vif.ADDRESS_KEY in end.external_ids for end in ends)
        parents = [
            end.external_ids.get("iface-id", "")
            for end in rows.on(outer[0].bridge)
            if end.peer.startswith(trunks.PARENT)
        ]
        parent = parents[0] if len(parents) == 1 else ""
        # Without the address, its source is not checked.
        return Found(id=name, parent=parent, vid=vid, whole=checked)

    def _await(self, names: Sequence[str], *, has_peers: bool = True) -> None:
        """Wait until ports have OpenFlow numbers, and no error unless their peers are missing.

        A port that is changed twice in quick succession may keep the error and the number -1 of
        the first change in OVSDB, although it works (seen with Open vSwitch 3.1): ovs-vswitchd is
        asked again.
        """
        left: Mapping[str, str] = dict.fromkeys(names, "")
        deadline = clock.now() + ANSWER_TIMEOUT
        again = clock.now() + CHECK_INTERVAL
        while True:
            left = self._run(partial(_without_number, names=list(left), has_peers=has_peers))
            if not left:
                return
            now = clock.now()
            if now >= deadline:
                name, why = next(iter(left.items()))
                raise _error(
                    f"Open vSwitch has not made {len(left)} of {len(names)} ports work in "
                    f"{ANSWER_TIMEOUT:g} s; {name}: {why}"
                )
            if now >= again:
                again = now + CHECK_INTERVAL
                self._run(reconfigure)
            clock.sleep(clock.POLL)

    def _run(self, act: Act[T]) -> T:
        try:
            return self._ovsdb.run(act)
        except errors.OvsdbError as error:
            raise _error(f"OVSDB does not do its part: {error.fields['cause']}") from error


def names_of(attachment: str) -> tuple[str, str]:
    """Return the names of the ends of an attachment by its id: inner and outer."""
    return f"{INNER}{attachment}"[: model.NAME_MAX], f"{OUTER}{attachment}"[: model.NAME_MAX]


def _id_of(interface: Any) -> str:
    """Return the attachment of an interface, a row or a value; empty: none."""
    return str(interface.external_ids.get(KEY, ""))


def _error(cause: str) -> errors.AttachDriverError:
    return errors.AttachDriverError(cause=cause)


def _without_number(
    idl: Any, _txn: Any, *, names: Sequence[str], has_peers: bool
) -> Mapping[str, str]:
    return without_number(idl, names, has_peers=has_peers)


def _create(rows: Rows, txn: Any, ends: Iterable[_End], trunk: str) -> bool:
    """Make the missing ends, and correct the others; return whether there were any."""
    changed = False
    for end in ends:
        row, place = rows.get(end.name), rows.places.get(end.name)
        if row is not None and _id_of(row) != end.external_ids[KEY]:
            raise _error(f"the port {end.name} of {row.bridge} belongs to another program")
        if row is not None and row.bridge == end.bridge and end.is_like(row):
            continue
        if not changed:
            verify(txn, rows.bridges[trunk], "ports")
            changed = True
        if place is not None and place.bridge.name == end.bridge:
            end.write(place.port, place.interface)
            continue
        if place is not None:
            _delete([place])
        port = new_port(rows, txn, end.name)
        end.write(port, port.interfaces[0])
        rows.bridges[end.bridge].addvalue("ports", port)
    return changed


def _delete(ends: Iterable[InterfacePlace]) -> None:
    """Delete ports; OVSDB deletes rows that no bridge refers to."""
    for end in ends:
        end.bridge.delvalue("ports", end.port)


_LEARNED = 4
"""Columns of fdb/show: port, VLAN, MAC, age."""


def is_ports(ports: Iterable[Interface], mac: str, parent: Parent) -> bool:
    """Return whether a port, except containers' and the VM's own, has a MAC.

    :param mac: in lower case with colons.
    """
    return any(
        model.ATTACHMENT_KEY not in port.external_ids
        and port.external_ids.get("iface-id") != parent.port_id
        and mac in _macs(port)
        for port in ports
    )


def is_learned(table: str, mac: str, vlan: int) -> bool:
    """Return whether a bridge has learned a MAC in a VLAN.

    :param table: the answer of ovs-vswitchd to fdb/show (ovs-vswitchd(8)).
    :param vlan: 0: untagged.
    """
    lines = (line.split() for line in table.splitlines())
    return any(
        len(line) == _LEARNED and (line[1], line[2].lower()) == (str(vlan), mac) for line in lines
    )


def _macs(port: Interface) -> Iterator[str]:
    yield port.mac_in_use.lower()
    yield port.external_ids.get("attached-mac", "").strip().lower()
    yield port.external_ids.get(META_KEYS.mac, "").strip().lower()
