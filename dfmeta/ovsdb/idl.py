"""The IDL and ovsdbapp for OVSDB's thread, without threads and connections of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ovs.json
from ovs.db.idl import Idl, SchemaHelper
from ovs.jsonrpc import Connection, Message
from ovs.stream import Stream
from ovsdbapp.backend.ovs_idl import command, idlutils, transaction
from ovsdbapp.schema.open_vswitch import impl_idl

from dfmeta.ovsdb.message_parser import MessageParser
from dfmeta.runtime.threads import original

_threading = original("threading")
_DATABASE = "Open_vSwitch"
TRANSACTION_TIMEOUT = 10.0
"""Seconds until a transaction fails without an answer."""


def schema_helper(remote: str, columns: Mapping[str, Sequence[str]]) -> Any:
    """Ask the server for its schema; return the part that an IDL of these columns needs.

    As ovsdbapp's ``get_schema_helper`` does, which would take a quarter of the CPU time of a
    daemon's start: it uses the package's own parser (see :mod:`dfmeta.ovsdb.message_parser`), and
    all tables.

    :param remote: OVSDB's address, or several with commas between them; the first that answers.
    :param columns: table → its columns.
    :raises ConnectionError: none answers.
    """
    for address in idlutils.parse_connection(remote):
        if schema := _schema(address):
            break
    else:
        raise ConnectionError(f"Could not retrieve schema from {remote}")
    schema["tables"] = {
        name: _part(table, set(columns[name]))
        for name, table in schema["tables"].items()
        if name in columns
    }
    helper = SchemaHelper(None, schema)
    for name, wanted in columns.items():
        helper.register_columns(name, list(wanted))
    return helper


def _part(table: Mapping[str, Any], columns: set[str]) -> dict[str, Any]:
    """Return the schema of a table with only these columns."""
    return {
        **table,
        "columns": {name: kind for name, kind in table["columns"].items() if name in columns},
        "indexes": [index for index in table.get("indexes", ()) if columns.issuperset(index)],
    }


def _schema(address: str) -> Any:
    """Return the schema of the server at an address; None: it does not answer, or has none."""
    error, stream = Stream.open_block(Stream.open(address))
    if error:
        return None
    connection = Connection(stream)
    _parse_fast(connection)
    error, reply = connection.transact_block(Message.create_request("get_schema", [_DATABASE]))
    connection.close()
    return None if error or reply.error else reply.result


def _parse_fast(connection: Any) -> None:
    """Have the next message parsed by the standard library, unless the package has an extension."""
    if connection.parser is None and ovs.json.PARSER == ovs.json.PARSER_PY:
        connection.parser = MessageParser()


class Noticing(Idl):  # type: ignore[misc]  # the IDL has no types
    """An IDL that records changed rows and sends echoes."""

    def __init__(self, remote: str, helper: Any) -> None:
        self.notices: list[Any] = []
        self._echo: tuple[Any, Any] | None = None
        """Session and id of the echo that is not answered yet."""
        self.echoed = False
        """Whether the echo has been answered, with all changes before the answer applied."""
        super().__init__(remote, helper)
        # The IDL drops unexpected replies, so each message is checked before the IDL gets it.
        self._next_message, self._session.recv = self._session.recv, self._receive

    def echo(self) -> bool:
        """Send an echo if none is pending and this session receives changes; return whether sent.

        ovsdb-server sends changes before it handles a request (RFC 7047, 4.1.6 and 4.1.11), and
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

    def proved(self) -> None:
        """Note that the present connection has delivered rows: after its loss the first pause is
        the shortest one again.

        The library does so only after a connection whose last message came later than the pause
        was long (ovs.reconnect, disconnected()). A server without changes is silent from the first
        second on, so that each of its restarts would double the pause, up to 8 seconds.
        """
        self._session.reconnect.backoff = 0

    def _receive(self) -> Any:
        if self._session.rpc is not None:
            _parse_fast(self._session.rpc)
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
        """Record *row*; called after the whole message with this change has been applied."""
        self.notices.append(row)

    def take(self) -> list[Any]:
        """Return the rows recorded since the last call."""
        taken, self.notices = self.notices, []
        return taken


class Handle:
    """The connection object that ovsdbapp's API and transactions need."""

    is_running = True
    """Always true: the thread runs the IDL itself, and the API has nothing to start."""

    def __init__(self, idl: Any) -> None:
        self.idl = idl
        self.timeout = TRANSACTION_TIMEOUT
        self.lock = _threading.RLock()


class Api(impl_idl.OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
    """ovsdbapp's commands on a connection that belongs to this object.

    The base class stores the first connection of the process in the class, so that transactions
    after a reconnect would use a closed session.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        super().__init__(handle, start=False)

    @property
    def ovsdb_connection(self) -> Handle:
        """Return the connection of this object."""
        return self._handle

    @ovsdb_connection.setter
    def ovsdb_connection(self, connection: Handle) -> None:
        """Ignore the value: the base class sets the connection that it was just given."""


class Transaction(transaction.Transaction):  # type: ignore[misc]  # ovsdbapp has no types
    """A transaction that does not wait for ovs-vswitchd to act on it."""

    def pre_commit(self, txn: Any) -> None:
        """Create the set in which the commands record new interfaces."""
        txn.expected_ifaces = set()


class Change(command.BaseCommand):  # type: ignore[misc]  # ovsdbapp has no types
    """A command that changes rows of the IDL.

    :param act: called with the IDL and its transaction, and again if a row that it has verified was
        changed meanwhile: it must read the rows itself.
    """

    def __init__(self, api: Any, act: Callable[[Any, Any], None]) -> None:
        super().__init__(api)
        self._act = act

    def run_idl(self, txn: Any) -> None:
        """Make the changes; see ovsdbapp's base class."""
        self._act(self.api.idl, txn)
