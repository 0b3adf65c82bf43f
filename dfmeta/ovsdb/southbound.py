"""Follows the port bindings of this host in OVN's southbound database, in an OS thread of its own.

ovn-northd copies each logical switch port into a row of Port_Binding (ovn-sb(5)), with the
external_ids that Neutron's driver writes. Only the rows are monitored whose ``logical_port`` or
``parent_port`` is a port of this host (``monitor_cond``, ovsdb-server(7), 4.1.12), so that the load
of a host does not grow with the cloud. Nothing is written.

Trust: the programs that write OVN's databases. A tenant has chosen the ids of its ports' devices.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from dfmeta.ovsdb import external_ids, jsonrpc
from dfmeta.ovsdb.idl import SOUTHBOUND, Columns, Noticing, schema_helper
from dfmeta.ovsdb.watcher import LOG, DatabaseFollower
from dfmeta.runtime.throttle import FIRST_PAUSE

_TABLE: Final = "Port_Binding"
_COLUMNS: Final[Columns] = {_TABLE: ("logical_port", "parent_port", "tag", "mac", "external_ids")}
_OF_NEUTRON: Final = ("device_id", "device_owner", "project_id")

Binding = Mapping[str, Any]
"""A row: ``parent`` (the VM's logical port; empty: it is no container's), ``port_id``, ``vid`` and
``mac`` as in a list of subports, and ``device_id``, ``device_owner`` and ``project_id`` as in
Neutron, each empty if it is not set."""


class BindingsUpdate(NamedTuple):
    """A change of this host's port bindings."""

    covered: frozenset[str]
    """The ports of this host whose rows have been read, and those of their containers."""
    changed: Mapping[str, Binding | None]
    """Logical port → its row; None: it has none any more."""
    whole: bool
    """Whether other logical ports have no row any more."""


class Southbound(DatabaseFollower[BindingsUpdate]):
    """The thread that follows the southbound database.

    :param remote: its address, or several with commas between them; empty: see :meth:`redirect`.
    :param ports: returns the iface-ids of this host's ports; the thread calls it.
    """

    name = "OVN's southbound database"
    longest_pause = 8.0  # the IDL's, since all hosts wait for the same server

    def __init__(
        self,
        remote: str,
        ports: Callable[[], Collection[str]],
        deliver: Callable[[BindingsUpdate], object],
    ) -> None:
        super().__init__(remote, deliver)
        self._is_fixed, self._ports = bool(remote), ports
        self.ring = self._wake.ring
        """Takes that the ports of this host have changed."""
        self._ids: frozenset[str] | None = None
        self._covered: frozenset[str] = frozenset()
        self._connected = False

    def redirect(self, remote: str) -> None:
        """Take the address in OVSDB, unless one was given; known rows stay until it answers."""
        if remote != self.remote and not self._is_fixed:
            self.remote = remote
            self.ring()

    # The thread's side

    def _serve_connection(self) -> None:
        while not (remote := self.remote):
            self._rest(jsonrpc.Poller())
            if self._stopping:
                return
        idl = Noticing(remote, schema_helper(remote, _COLUMNS, SOUTHBOUND))
        self._ids = None
        try:
            while not self._stopping and self.remote == remote:
                self._turn(idl)
        finally:
            self._connected = False
            idl.close()

    def _lost(self) -> None:
        if self._connected:
            LOG.warning("%s at %s does not answer; known ports stay", self.name, self.remote)
        self._connected = False

    def _turn(self, idl: Noticing) -> None:
        ids = frozenset(self._ports())
        if ids != self._ids:
            self._ids = ids
            columns = ("logical_port", "parent_port")
            idl.cond_change(_TABLE, [[column, "==", each] for column in columns for each in ids])
        idl.run()
        if not idl._session.is_connected():
            self._lost()
        elif idl.state == idl.IDL_S_MONITORING:
            self._connected, self._pause = True, FIRST_PAUSE
            idl.proved()
            self._read(idl)
        poller = jsonrpc.Poller()
        idl.wait(poller)
        self._rest(poller)

    def _rest(self, poller: Any) -> None:
        poller.fd_wait(self._wake.fileno(), jsonrpc.POLLIN)
        poller.block()
        self._wake.clear()

    def _read(self, idl: Noticing) -> None:
        """Deliver the changed rows, and the ports whose rows the server has sent by now."""
        table, notices = idl.tables[_TABLE], idl.changes()
        # The server sends the rows of a new condition before it acknowledges the condition.
        covered = frozenset(each[2] for each in table.condition_state.acked if each is not False)
        rows = table.rows.values() if notices is None else notices
        changed: dict[str, Binding | None] = dict.fromkeys(row.logical_port for row in rows)
        changed |= {row.logical_port: _binding(row) for row in rows if row.uuid in table.rows}
        if changed or notices is None or covered != self._covered:
            self._covered = covered
            self._give(BindingsUpdate(covered, changed, whole=notices is None))


def _binding(row: Any) -> Binding:
    macs = (text.split()[0].lower() for text in sorted(row.mac) if text.strip())
    return {
        "parent": "".join(row.parent_port),
        "port_id": row.logical_port,
        "vid": next(iter(row.tag), 0),
        "mac": next((mac for mac in macs if not external_ids.wrong_mac(mac)), ""),
        **{key: row.external_ids.get(f"neutron:{key}", "") for key in _OF_NEUTRON},
    }
