"""The connection to OVSDB: the IDL of the package ovs, and its transactions.

The daemon's thread (:mod:`dfmeta.ovsdb.watcher`) and commands (:class:`OvsdbClient`) share it. A
transaction is a function of the IDL and its transaction, which reads rows and changes them. It is
called again if a column that it has verified was changed meanwhile (RFC 7047, 5.2.6), or if another
program has used a name: it must read the rows itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from dfmeta.errors import DfmetaError, OvsdbError
from dfmeta.ovsdb.jsonrpc import Message, Poller, RefusedError, call, details, prepare, why
from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.runtime.throttle import FIRST_PAUSE

# isort: split
from ovs.db.idl import Idl, SchemaHelper, Transaction
from ovs.stream import Stream

from dfmeta.runtime import clock

T = TypeVar("T")
Act = Callable[[Any, Any], T]
"""A transaction: a function of the IDL and its ``ovs.db.idl.Transaction``."""
Columns = Mapping[str, Sequence[str]]
"""Table → the columns that are read."""

TRIES: Final = 20
_DATABASE: Final = "Open_vSwitch"
SOUTHBOUND: Final = "OVN_Southbound"
"""Database of OVN (ovn-sb(5))."""
_NAME_TAKEN: Final = '"constraint violation"'
"""Part of the error for a name that another row has."""


class Ovsdb(Protocol):
    """A way to OVSDB for transactions."""

    def run(self, act: Act[T]) -> T:
        """Carry out a transaction and return its result; one without changes only reads.

        :raises OvsdbError: when OVSDB does not answer, or refuses the change.
        """


class OvsdbClient:
    """OVSDB for a command: each transaction has a connection of its own.

    :param remote: OVSDB's address, such as ``unix:/var/run/openvswitch/db.sock``.
    :param columns: those that the transactions read.
    """

    def __init__(self, remote: str, columns: Columns) -> None:
        self._remote, self._columns = remote, columns

    def run(self, act: Act[T]) -> T:
        """Carry out a transaction; see :meth:`Ovsdb.run`."""
        try:
            idl = loaded(self._remote, self._columns)
            try:
                return transact(idl, act)
            finally:
                idl.close()
        except DfmetaError:
            raise
        except Exception as error:  # the IDL raises many kinds
            raise OvsdbError(connection=self._remote, cause=why(error)) from error


def transact(idl: Any, act: Act[T], *, seconds: float = ANSWER_TIMEOUT) -> T:
    """Carry out a transaction and return its result.

    :raises TimeoutError: when OVSDB does not answer in time.
    :raises RefusedError: when OVSDB refuses the change, or other programs change the rows at each
        try.
    """
    deadline = clock.now() + seconds
    for _try in range(TRIES):
        seqno = idl.change_seqno
        txn, result = _attempt(idl, act, deadline)
        status = txn.commit()
        if status in (txn.UNCHANGED, txn.SUCCESS):
            return result
        if status != txn.TRY_AGAIN and _NAME_TAKEN not in txn.get_error():
            raise RefusedError(details(txn.get_error()))
        _await_change(idl, seqno, deadline)
    raise RefusedError(f"another program changes the same rows all the time ({status})")


def _attempt(idl: Any, act: Act[T], deadline: float) -> tuple[Any, T]:
    """Return a transaction that has been answered, and its result."""
    txn = Transaction(idl)
    try:
        result = act(idl, txn)
        txn.commit()
        if not _wait(idl, lambda: txn.commit() != txn.INCOMPLETE, deadline):
            raise TimeoutError
    finally:
        txn.abort()  # does nothing after an answer
    return txn, result


def _await_change(idl: Any, seqno: int, deadline: float) -> None:
    """Wait for the rows that the last try has not seen, and for the connection."""
    if not _wait(idl, lambda: idl.state == idl.IDL_S_MONITORING, deadline):
        raise TimeoutError
    _wait(idl, lambda: idl.change_seqno != seqno, min(deadline, clock.now() + FIRST_PAUSE))


def verify(txn: Any, row: Any, *columns: str) -> None:
    """Let a transaction fail, and be tried again, if columns of a row were changed meanwhile.

    ``Row.verify()`` alone has no effect on a row that the transaction does not change.
    """
    for column in columns:
        row.verify(column)
    txn._txn_rows[row.uuid] = row


def reconfigure(idl: Any, _txn: Any) -> None:
    """Make ovs-vswitchd configure its ports, and report their numbers, as ovs-vsctl(8) does.

    It counts ``next_cfg`` up (ovs-vswitchd.conf.db(5), Open_vSwitch). A transaction that changes
    other rows calls ``increment("next_cfg")`` of that row instead, which meets no conflict.
    """
    (root,) = idl.tables["Open_vSwitch"].rows.values()
    root.verify("next_cfg")
    root.next_cfg += 1


def loaded(remote: str, columns: Columns, *, seconds: float = ANSWER_TIMEOUT) -> Noticing:
    """Return an IDL with the rows.

    :param remote: OVSDB's address, or several with commas between them.
    :raises OSError: when none answers, or not in time.
    """
    deadline = clock.now() + seconds
    idl = Noticing(remote, schema_helper(remote, columns))
    if not _wait(idl, idl.has_ever_connected, deadline):
        idl.close()
        raise TimeoutError
    return idl


def use_files(private_key: str, certificate: str, authorities: str) -> None:
    """Let this process' connections by ``ssl:`` use these PEM files; empty: not configured."""
    Stream.ssl_set_private_key_file(private_key)
    Stream.ssl_set_certificate_file(certificate)
    Stream.ssl_set_ca_cert_file(authorities)


def southbound_fault(remote: str) -> str:
    """Return why OVN's southbound database cannot be read; empty: it can."""
    try:
        schema_helper(remote, {}, SOUTHBOUND)
    except (OSError, RefusedError) as error:
        return why(error)
    return ""


def schema_helper(remote: str, columns: Columns, database: str = _DATABASE) -> Any:
    """Ask the server for its schema; return the part that an IDL of these columns needs.

    :param remote: OVSDB's address, or several with commas between them; the first that answers.
    :raises OSError: none answers.
    """
    if "ssl:" in remote and not Stream._SSL_private_key_file:
        raise OSError("set [ovn] ovn_sb_private_key, ovn_sb_certificate and ovn_sb_ca_cert")
    for address in Idl._parse_remotes(None, remote):
        try:
            schema = call(address, "get_schema", [database])
            break
        except OSError as error:
            failure = error
    else:
        raise failure
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


def _wait(idl: Any, condition: Callable[[], bool], deadline: float) -> bool:
    """Run the IDL until a condition is true; return whether it is."""
    while True:
        idl.run()
        if condition():
            return True
        left = deadline - clock.now()
        if left <= 0:
            return False
        poller = Poller()
        idl.wait(poller)
        poller.timer_wait(max(1, round(1000 * left)))
        poller.block()


class Noticing(Idl):  # type: ignore[misc]  # the IDL has no types
    """An IDL that records changed rows and sends echoes."""

    def __init__(self, remote: str, helper: Any) -> None:
        self.notices: list[Any] = []
        self._read = -1
        """The session in which all rows were last read."""
        self._echo: tuple[Any, Any] | None = None
        """Session and id of the echo that is not answered yet."""
        self.echoed = False
        """Whether the echo has been answered, with all changes before the answer applied."""
        super().__init__(remote, helper)
        self.leader_only = False  # any member of a cluster is enough for those that only read
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
            prepare(self._session.rpc)
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

    def changes(self) -> list[Any] | None:
        """Return the rows recorded since the last call; None after a reconnect.

        Any row may have changed then: the IDL does not report rows that were deleted meanwhile.
        """
        taken, self.notices = self.notices, []
        before, self._read = self._read, self._session.get_seqno()
        return taken if before == self._read else None
