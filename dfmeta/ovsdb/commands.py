"""ovsdbapp's commands within a transaction of :mod:`dfmeta.ovsdb.idl`.

ovsdbapp has a connection, a thread and transactions of its own. Here the caller runs the IDL and
commits, so that a command only changes rows.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from ovsdbapp.schema.open_vswitch import impl_idl


class Commands(impl_idl.OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
    """The commands of ``ovsdbapp.schema.open_vswitch.api.API``; each runs by :meth:`insert`.

    :param idl: an IDL with the rows that the commands look for.
    :param txn: its transaction.
    """

    def __init__(self, idl: Any, txn: Any) -> None:
        self._txn = txn
        self._connection = SimpleNamespace(idl=idl, is_running=True, lock=nullcontext())
        # Commands that add ports note their interfaces here, for whoever waits for ovs-vswitchd.
        txn.expected_ifaces = set()
        super().__init__(self._connection, start=False)

    @property
    def ovsdb_connection(self) -> Any:
        """Return the connection of this object; the base class keeps one for the whole process."""
        return self._connection

    @ovsdb_connection.setter
    def ovsdb_connection(self, connection: Any) -> None:
        """Ignore the value: the base class sets the connection that it was just given."""

    def insert(self, table: str, command: Any) -> Any:
        """Run a command that adds a row to *table*, and return the row."""
        command.run_idl(self._txn)
        return self.idl.tables[table].rows[command.result]
