"""Watches OVSDB in an OS thread of its own; :mod:`dfmeta.ovsdb.bridge_reader` reads the rows.

The IDL's JSON parser parses a whole reply at once (most of a second for 1,000 interfaces), so it
must not run on the hub. It runs in an OS thread, which sends values to the hub in order, through a
queue and a pipe.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from dfmeta import errors, model
from dfmeta.ovsdb import bridge_reader, meta_bridge
from dfmeta.ovsdb import idl as ovsdb_idl
from dfmeta.ovsdb.idl import Act, Columns, Noticing, schema_helper, transact
from dfmeta.ovsdb.jsonrpc import POLLIN, Poller, why
from dfmeta.runtime import hub, threads
from dfmeta.runtime.hub import Bell
from dfmeta.runtime.throttle import FIRST_PAUSE

LOG = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

_threading = threads.original("threading")
_time = threads.original("time")
"""Not patched by eventlet: patched modules would wait on a hub that this thread does not run."""

COLUMNS: Columns = {
    "Open_vSwitch": ("bridges", "next_cfg", "external_ids", "other_config"),
    "Bridge": (
        *("name", "ports", "datapath_id", "datapath_type", "controller", "fail_mode"),
        "external_ids",
    ),
    "Controller": ("target", "is_connected"),
    "Port": (
        *("name", "interfaces", "tag", "vlan_mode", "trunks", "cvlans", "external_ids"),
        "other_config",
    ),
    "Interface": (
        *("name", "type", "ofport", "external_ids", "mac", "mac_in_use", "error", "options"),
        *("mtu", "mtu_request"),
    ),
}
TRANSACTION_TIMEOUT = 10.0
"""Seconds until a transaction fails without an answer."""


class _Transaction:
    """A transaction that a greenthread waits for."""

    def __init__(self, act: Act[Any]) -> None:
        self.act = act
        self.done = threads.Event()
        self.given_up = False
        self.result: Any = None
        self.error: Exception | None = None


class DatabaseFollower(ABC, Generic[V]):
    """A thread that follows a database, and delivers values on the hub, one at a time."""

    name: ClassVar[str]
    longest_pause: ClassVar[float] = FIRST_PAUSE
    """Seconds between two attempts to connect, at most; the pauses grow."""

    def __init__(self, remote: str, deliver: Callable[[V], object]) -> None:
        self.remote = remote
        self._deliver = deliver
        self._updates: deque[V] = deque()
        self._updated, self._wake = Bell(), Bell()
        self._stopping = False
        self._pause = FIRST_PAUSE
        run = hub.VITAL.guard(f"{self.name} session", self._run, may_return=True)
        self._thread = _threading.Thread(target=run, name=self.name, daemon=True)

    # The hub's side

    def start(self) -> None:
        """Start the thread, and the greenthread that delivers its values."""
        self._thread.start()
        name = f"delivery of {self.name}'s changes"
        self._spawn(name, self._updated, self._updates, self._deliver)

    def stop(self) -> None:
        """End the thread; no more values are delivered."""
        self._stopping = True
        self._wake.ring()
        if self._thread.is_alive():
            self._thread.join(FIRST_PAUSE)

    def _spawn(self, name: str, bell: Bell, values: deque[T], take: Callable[[T], object]) -> None:
        """Deliver values of the thread on the hub from now on, in a greenthread."""

        def run() -> None:
            while not self._stopping:
                bell.wait()
                while values:
                    take(values.popleft())

        hub.VITAL.spawn(name, run, may_return=True)

    # The thread's side

    @abstractmethod
    def _serve_connection(self) -> None:
        """Follow the database as long as the connection is of use."""

    @abstractmethod
    def _lost(self) -> None:
        """Note that there is no connection."""

    def _give(self, value: V) -> None:
        self._updates.append(value)
        self._updated.ring()

    def _run(self) -> None:
        logged = ""
        while not self._stopping:
            try:
                self._serve_connection()
            except Exception as error:  # the IDL raises many kinds; the thread must outlive all
                if str(error) != logged:
                    LOG.warning("%s at %s: %s", self.name, self.remote, error)
                    LOG.debug("Thread of %s", self.name, exc_info=True)
                logged = str(error)
            self._lost()
            if not self._stopping:
                _time.sleep(self._pause)
            self._pause = min(2 * self._pause, self.longest_pause)


class OvsdbWatcher(DatabaseFollower[bridge_reader.Update]):
    """A thread that follows OVSDB, and the hub's interface to it.

    :param remote: OVSDB's address, such as ``unix:/var/run/openvswitch/db.sock``.
    :param bridge: name of the integration bridge.
    :param tap: name of tap-metadata.
    :param deliver: called on the hub with each :class:`Update`, one at a time.
    :param meta: names of the second bridge and its ports; None: the identity scheme has none.
    """

    name = "OVSDB"

    def __init__(
        self,
        remote: str,
        bridge: str,
        tap: str,
        *,
        deliver: Callable[[bridge_reader.Update], None],
        meta: model.MetaNames | None = None,
    ) -> None:
        super().__init__(remote, deliver)
        self.bridge, self.tap = bridge, tap
        self._jobs: deque[_Transaction] = deque()
        self._finished: deque[_Transaction] = deque()
        self._answered_jobs = Bell()
        self._reader = bridge_reader.BridgeReader(bridge, tap, meta)
        self._last: bridge_reader.Update | None = None
        self._seqno = 0
        self._asked = self._sent = self._answered = 0
        """Numbers of the latest query, of the latest one that the last echo covers, and of the
        latest one that is answered."""

    # The hub's side

    def start(self) -> None:
        """Start the thread, and the greenthreads that deliver updates and results."""
        super().start()
        self._spawn("results of OVSDB's transactions", self._answered_jobs, self._finished, _wake)

    def ask(self) -> int:
        """Request a confirmation that OVSDB has sent all changes so far; never waits.

        Only one echo is pending at a time, and the next one covers all queries in between. A query
        while OVSDB does not answer is confirmed after the reconnect.

        :return: number of the query, from 1; see :attr:`Update.answered`.
        """
        self._asked += 1
        self._wake.ring()
        return self._asked

    def ensure_tap(self) -> None:
        """Make tap-metadata a port of the bridge; see :func:`dfmeta.ovsdb.meta_bridge.ensure_tap`.

        :raises OvsdbError: when the transaction fails; caused by
            :class:`~dfmeta.ovsdb.meta_bridge.TapElsewhereError` where another bridge has a port of
            that name.
        """
        self.run(
            lambda idl, txn: meta_bridge.ensure_tap(
                idl, txn, self.bridge, self.tap, least_mtu=self._reader.least_mtu
            )
        )

    def remove_taps(self, only: str = "") -> list[str]:
        """Remove the ports of the bridge that are marked as dfmeta's tap-metadata, with any name.

        :param only: remove only the port with this name; empty: all.
        :return: names of the removed ports; there may be two after a change of
            ``metadata_interface``.
        :raises OvsdbError: when the transaction fails.
        """
        return self.run(lambda idl, _txn: meta_bridge.remove_taps(idl, self.bridge, only))

    def ensure_meta(self, names: model.MetaNames) -> None:
        """Create the second bridge with its ports, or correct them; see
        :func:`dfmeta.ovsdb.meta_bridge.ensure`.

        An :class:`Update` follows in which ``meta.sound`` is true, unless it was true before or
        other programs change the rows again.

        :raises OvsdbError: when the transaction fails; caused by
            :class:`~dfmeta.ovsdb.meta_bridge.TapElsewhereError` where another bridge has a port of
            one of the names, and by :class:`~dfmeta.ovsdb.meta_bridge.MetaDatapathError` where the
            bridge has another datapath, and ports of others.
        """
        self.run(lambda idl, txn: meta_bridge.ensure(idl, txn, self.bridge, names))

    def remove_meta(self) -> list[str]:
        """Remove the second bridge and its ports, as far as dfmeta has created them.

        :return: names of the removed ports, and of removed bridges after them.
        :raises OvsdbError: when the transaction fails.
        """
        return self.run(lambda idl, _txn: meta_bridge.remove(idl, self.bridge))

    def reconfigure(self) -> None:
        """Make ovs-vswitchd configure its ports again, and report their numbers again.

        A port that is changed twice in quick succession may keep the error and the number -1 of the
        first change in OVSDB, although it works (seen with Open vSwitch 3.1).

        :raises OvsdbError: when the transaction fails.
        """
        self.run(ovsdb_idl.reconfigure)

    def write_ids(self, rows: Mapping[str, model.MetaIds]) -> None:
        """Write the Meta addresses of ports; see :func:`dfmeta.ovsdb.meta_bridge.write_ids`.

        :raises OvsdbError: when the transaction fails.
        """
        self.run(lambda idl, _txn: meta_bridge.write_ids(idl, rows))

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Remove keys of dfmeta in ``external_ids`` from all interfaces of the bridge.

        :raises OvsdbError: when the transaction fails.
        """
        self.run(lambda idl, _txn: meta_bridge.remove_keys(idl, self.bridge, keys))

    def run(self, act: Act[T]) -> T:
        """Carry out a transaction in the thread, and return its result; the hub continues.

        :raises OvsdbError: when the transaction fails.
        """
        job = _Transaction(act)
        self._jobs.append(job)
        self._wake.ring()
        with threads.Timeout(TRANSACTION_TIMEOUT, False):
            job.done.wait()
        if not job.done.ready():
            job.given_up = True
            raise errors.OvsdbError(connection=self.remote, cause="no answer to a transaction")
        if isinstance(job.error, errors.DfmetaError):
            raise job.error
        if job.error is not None:
            raise errors.OvsdbError(connection=self.remote, cause=why(job.error)) from job.error
        result: T = job.result
        return result

    # The thread's side

    def _lost(self) -> None:
        self._tell(bridge_reader.Update(connected=False))

    def _serve_connection(self) -> None:
        idl = Noticing(self.remote, schema_helper(self.remote, COLUMNS))
        self._seqno = idl.change_seqno
        try:
            while not self._stopping:
                self._turn(idl)
        finally:
            idl.close()
            self._refuse_jobs()

    def _turn(self, idl: Any) -> None:
        poller = Poller()
        idl.run()
        # Compared with the last reading, not with the state before this run: a transaction runs the
        # IDL too.
        if idl.change_seqno != self._seqno and idl.has_ever_connected():
            self._seqno = idl.change_seqno
            idl.proved()
            self._tell(self._reader.read(idl, idl.changes()))
        elif idl._session.is_connected() is False and self._last and self._last.connected:
            self._lost()
        self._echo(idl)
        if self._jobs and idl.state == idl.IDL_S_MONITORING:
            self._do(idl, self._jobs.popleft())
            return
        if idl.has_ever_connected() and not idl._session.is_connected():
            self._refuse_jobs()
        idl.wait(poller)
        poller.fd_wait(self._wake.fileno(), POLLIN)
        poller.block()
        self._wake.clear()

    def _echo(self, idl: Noticing) -> None:
        """Deliver the answer of the last echo, and send the next echo."""
        if idl.echoed and self._last is not None:
            idl.echoed, self._answered = False, self._sent
            self._tell(replace(self._last, changed=(), gone=(), answered=self._answered))
        latest = self._asked
        if latest > self._answered and idl.echo():
            self._sent = latest

    def _refuse_jobs(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            job.error = ConnectionError("the connection was lost")
            self._finish(job)

    def _do(self, idl: Any, job: _Transaction) -> None:
        if job.given_up:
            return
        try:
            job.result = transact(idl, job.act, seconds=TRANSACTION_TIMEOUT)
        except Exception as error:  # the waiting caller raises it
            job.error = error
        self._finish(job)

    def _finish(self, job: _Transaction) -> None:
        self._finished.append(job)
        self._answered_jobs.ring()

    def _tell(self, update: bridge_reader.Update) -> None:
        if update == self._last:
            return
        self._last = update
        self._give(update)


def _wake(job: _Transaction) -> None:
    job.done.send(None)
