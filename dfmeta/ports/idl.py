"""The IDL and ovsdbapp as OVSDB's thread uses them: no threads and no connections of their own."""

from __future__ import annotations

from typing import Any

from eventlet.patcher import original
from ovs.db.idl import Idl
from ovs.jsonrpc import Message
from ovsdbapp.backend.ovs_idl import transaction
from ovsdbapp.schema.open_vswitch import impl_idl

_threading = original("threading")
TRANSACTION_TIMEOUT = 10.0
"""Seconds."""


class Noticing(Idl):  # type: ignore[misc]  # the IDL has no types
    """An IDL that notes which rows have changed, and sends echoes."""

    def __init__(self, remote: str, helper: Any) -> None:
        self.notices: list[Any] = []
        self._echo: tuple[Any, Any] | None = None
        """Session and id of the echo under way."""
        self.echoed = False
        """Whether it has been answered, and all that was said before is in place."""
        super().__init__(remote, helper)
        # The IDL drops replies that it does not expect, each in its turn.
        self._next_message, self._session.recv = self._session.recv, self._receive

    def echo(self) -> bool:
        """Send an echo, if none is under way and this session hears of changes; whether it was.

        ovsdb-server hands out changes before it takes a request (RFC 7047, 4.1.6 and 4.1.11), and
        JSON-RPC keeps the order.
        """
        session = self._session.get_seqno()
        under_way = self._echo is not None and self._echo[0] == session
        if under_way or self.state != self.IDL_S_MONITORING or not self._session.is_connected():
            return False
        request = Message.create_request("echo", [])
        if self._session.send(request):
            return False
        self._echo = session, request.id
        return True

    def _receive(self) -> Any:
        message = self._next_message()
        if (
            self._echo is not None
            and message is not None
            and message.type in (Message.T_REPLY, Message.T_ERROR)
            and self._echo == (self._session.get_seqno(), message.id)
        ):
            self._echo, self.echoed = None, True
        return message

    def notify(self, event: str, row: Any, updates: Any = None) -> None:
        """Note *row*; called when all that came with it is in place."""
        self.notices.append(row)

    def take(self) -> list[Any]:
        """Give back what was noted since the last time."""
        taken, self.notices = self.notices, []
        return taken


class Handle:
    """What ovsdbapp's API and transactions ask of a connection object."""

    is_running = True
    """The thread runs the IDL itself: there is nothing for the API to start."""

    def __init__(self, idl: Any) -> None:
        self.idl = idl
        self.timeout = TRANSACTION_TIMEOUT
        self.lock = _threading.RLock()


class Api(impl_idl.OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
    """ovsdbapp's commands on a connection of this object's own.

    The class keeps the first connection of the process for ever otherwise, so that transactions
    after a reconnect would go to a session that is closed.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        super().__init__(handle, start=False)

    @property
    def ovsdb_connection(self) -> Handle:
        """The connection."""
        return self._handle

    @ovsdb_connection.setter
    def ovsdb_connection(self, connection: Handle) -> None:
        """The base class sets what was just given to it."""


class Transaction(transaction.Transaction):  # type: ignore[misc]  # ovsdbapp has no types
    """A transaction that does not wait for ovs-vswitchd to act on it."""

    def pre_commit(self, txn: Any) -> None:
        """Give the commands the set that they note new interfaces in."""
        txn.expected_ifaces = set()
