"""Watches OVSDB in an OS thread of its own; :mod:`dfmeta.ovsdb.bridge_reader` reads the rows.

The IDL's JSON parser parses a whole reply at once (most of a second for 1,000 interfaces), so it
must not run on the hub. It runs in an OS thread, which sends :class:`Update` values to the hub in
order, through a queue and a pipe.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ovs.poller import POLLIN, Poller

from dfmeta.errors import OvsdbError
from dfmeta.model import TAP_MAC, TAP_MARK, TAP_MTU, TAP_VLAN, MetaIds, MetaNames
from dfmeta.ovsdb import meta_writer
from dfmeta.ovsdb.bridge_reader import BridgeReader, Update, is_marked
from dfmeta.ovsdb.conflicts import TapElsewhereError
from dfmeta.ovsdb.idl import (
    TRANSACTION_TIMEOUT,
    Api,
    Change,
    Handle,
    Noticing,
    Transaction,
    schema_helper,
)
from dfmeta.ovsdb.meta_rows import has_mtu, owner_of_port
from dfmeta.runtime import hub, threads
from dfmeta.runtime.threads import original, wait_for_io

LOG = logging.getLogger(__name__)

_os = original("os")
_threading = original("threading")
_time = original("time")
"""Not patched by eventlet: patched modules would wait on a hub that this thread does not run."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "Open_vSwitch": ("bridges", "cur_cfg", "next_cfg", "other_config"),
    "Bridge": (
        "name",
        "ports",
        "datapath_id",
        "datapath_type",
        "controller",
        "fail_mode",
        "external_ids",
    ),
    "Controller": ("target", "is_connected"),
    "Port": ("name", "interfaces", "tag", "vlan_mode", "cvlans", "external_ids", "other_config"),
    "Interface": (
        "name",
        "type",
        "ofport",
        "external_ids",
        "mac",
        "mac_in_use",
        "error",
        "options",
        "mtu",
        "mtu_request",
    ),
}
"""ovsdbapp's transactions read cur_cfg and next_cfg; without them each one logs an error.
:meth:`OvsdbWatcher.reconfigure` counts next_cfg up."""
RECONNECT_PAUSE = 0.2
JOIN_TIMEOUT = 0.3
"""Seconds to wait for the thread at the end; it is a daemon thread and holds no resources."""


class _Job:
    """A transaction that the hub waits for."""

    def __init__(self, build: Callable[[Any, Any], None]) -> None:
        self.build = build
        self.done = _threading.Event()
        self.given_up = False
        self.error: Exception | None = None


class OvsdbWatcher:
    """A thread that follows OVSDB, and the hub's interface to it.

    :param remote: OVSDB's address, such as ``unix:/var/run/openvswitch/db.sock``.
    :param bridge: name of the integration bridge.
    :param tap: name of tap-metadata.
    :param deliver: called on the hub with each :class:`Update`, one at a time.
    :param meta: names of the second bridge and its ports; None: the identity scheme has none.
    """

    def __init__(
        self,
        remote: str,
        bridge: str,
        tap: str,
        *,
        deliver: Callable[[Update], None],
        meta: MetaNames | None = None,
    ) -> None:
        self.remote, self.bridge, self.tap = remote, bridge, tap
        self._deliver = deliver
        self._updates: deque[Update] = deque()
        self._jobs: deque[_Job] = deque()
        self._to_hub = _os.pipe()
        self._to_thread = _os.pipe()
        for fd in (*self._to_hub, *self._to_thread):
            _os.set_blocking(fd, False)
        self._stopping = False
        run = hub.VITAL.guard("OVSDB session", self._run, may_return=True)
        self._thread = _threading.Thread(target=run, name="ovsdb", daemon=True)
        self._reader = BridgeReader(bridge, tap, meta)
        self._session = -1
        """The session in which the whole bridge was last read."""
        self._last: Update | None = None
        self._seqno = 0
        self._asked = self._sent = self._answered = 0
        """Numbers of the latest query, of the latest one that the last echo covers, and of the
        latest one that is answered."""

    # The hub's side

    def start(self) -> None:
        """Start the thread, and the greenthread that delivers the updates."""
        self._thread.start()
        hub.VITAL.spawn("delivery of OVSDB's changes", self._deliver_loop, may_return=True)

    def stop(self) -> None:
        """End the thread; no more updates are delivered."""
        self._stopping = True
        _poke(self._to_thread[1])
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT)

    def ask(self) -> int:
        """Request a confirmation that OVSDB has sent all changes so far; never waits.

        Only one echo is pending at a time, and the next one covers all queries in between. A query
        while OVSDB does not answer is confirmed after the reconnect.

        :return: number of the query, from 1; see :attr:`Update.answered`.
        """
        self._asked += 1
        _poke(self._to_thread[1])
        return self._asked

    def ensure_tap(self) -> None:
        """Make tap-metadata a port of the bridge, without flooding to it.

        An untagged port would be a trunk of all VLANs, and NORMAL would flood every tenant's
        broadcasts to it; see :data:`~dfmeta.model.TAP_VLAN`. A port of that name on this dfmeta's
        second bridge, from a run with another identity scheme, is removed.

        :raises OvsdbError: when the transaction fails; caused by
            :class:`~dfmeta.ovsdb.conflicts.TapElsewhereError` where another bridge has a port of
            that name.
        """
        self._transact(self._build_tap)

    def remove_taps(self, only: str = "") -> list[str]:
        """Remove the ports of the bridge that are marked as dfmeta's tap-metadata, with any name.

        :param only: remove only the port with this name; empty: all.
        :return: names of the removed ports; there may be two after a change of
            ``metadata_interface``.
        :raises OvsdbError: when the transaction fails.
        """
        names: list[str] = []

        def build(api: Any, txn: Any) -> None:
            bridges = api.tables["Bridge"].rows.values()
            ports = [one for row in bridges if row.name == self.bridge for one in row.ports]
            marked = [port.name for port in ports if any(map(is_marked, port.interfaces))]
            names.extend(name for name in marked if only in ("", name))
            for name in names:
                txn.add(api.del_port(name, self.bridge, True))

        self._transact(build)
        return names

    def ensure_meta(self, names: MetaNames) -> None:
        """Create the second bridge with its ports, or correct them; see
        :func:`dfmeta.ovsdb.meta_writer.ensure`.

        An :class:`Update` follows in which ``meta.sound`` is true, unless it was true before or
        other programs change the rows again.

        :raises OvsdbError: when the transaction fails; caused by
            :class:`~dfmeta.ovsdb.conflicts.TapElsewhereError` where another bridge has a port of
            one of the names, and by :class:`~dfmeta.ovsdb.conflicts.MetaDatapathError` where the
            bridge has another datapath, and ports of others.
        """
        self._change(lambda idl, txn: meta_writer.ensure(idl, txn, self.bridge, names))

    def remove_meta(self) -> list[str]:
        """Remove the second bridge and its ports, as far as dfmeta has created them.

        :return: names of the removed ports, and of removed bridges after them.
        :raises OvsdbError: when the transaction fails.
        """
        removed: list[str] = []

        def act(idl: Any, _txn: Any) -> None:
            removed[:] = meta_writer.remove(idl, self.bridge)

        self._change(act)
        return removed

    def reconfigure(self) -> None:
        """Make ovs-vswitchd configure its ports again, and report their numbers again.

        It counts ``next_cfg`` up, as ovs-vsctl(8) does (ovs-vswitchd.conf.db(5), Open_vSwitch). A
        port that is changed twice in quick succession may keep the error and the number -1 of the
        first change in OVSDB, although it works (seen with Open vSwitch 3.1).

        :raises OvsdbError: when the transaction fails.
        """

        def act(idl: Any, _txn: Any) -> None:
            (root,) = idl.tables["Open_vSwitch"].rows.values()
            root.verify("next_cfg")
            root.next_cfg += 1

        self._change(act)

    def write_ids(self, rows: Mapping[str, MetaIds]) -> None:
        """Write the Meta addresses of ports; see :func:`dfmeta.ovsdb.meta_writer.write_ids`.

        :raises OvsdbError: when the transaction fails.
        """
        self._change(lambda idl, _txn: meta_writer.write_ids(idl, rows))

    def remove_ids(self) -> None:
        """Remove dfmeta's Meta addresses from all ports of the bridge.

        :raises OvsdbError: when the transaction fails.
        """
        self._change(lambda idl, _txn: meta_writer.remove_ids(idl, self.bridge))

    def remove_lists(self) -> None:
        """Remove the lists of subports from all ports of the bridge.

        :raises OvsdbError: when the transaction fails.
        """
        self._change(lambda idl, _txn: meta_writer.remove_lists(idl, self.bridge))

    def _change(self, act: Callable[[Any, Any], None]) -> None:
        self._transact(lambda api, txn: txn.add(Change(api, act)))

    def _transact(self, build: Callable[[Any, Any], None]) -> None:
        job = _Job(build)
        self._jobs.append(job)
        _poke(self._to_thread[1])
        with threads.Timeout(TRANSACTION_TIMEOUT, False):
            while not job.done.is_set():
                threads.sleep(0.01)
        if not job.done.is_set():
            job.given_up = True
            raise OvsdbError(connection=self.remote, cause="no answer to a transaction")
        if job.error is not None:
            raise OvsdbError(connection=self.remote, cause=job.error) from job.error

    def _deliver_loop(self) -> None:
        while not self._stopping:
            wait_for_io(self._to_hub[0], read=True)
            _drain(self._to_hub[0])
            while self._updates:
                self._deliver(self._updates.popleft())

    # The thread's side

    def _run(self) -> None:
        said = ""
        while not self._stopping:
            try:
                self._serve_connection()
            except Exception as error:  # the IDL raises many kinds; the thread must outlive all
                if str(error) != said:
                    LOG.warning("OVSDB at %s: %s", self.remote, error)
                    LOG.debug("OVSDB thread", exc_info=True)
                said = str(error)
            self._tell(Update(connected=False))
            if not self._stopping:
                _time.sleep(RECONNECT_PAUSE)

    def _serve_connection(self) -> None:
        idl = Noticing(self.remote, schema_helper(self.remote, COLUMNS))
        api = Api(Handle(idl))
        self._seqno, self._session = idl.change_seqno, -1
        try:
            while not self._stopping:
                self._turn(idl, api)
        finally:
            idl.close()
            for job in self._jobs:
                job.error = job.error or ConnectionError("the connection was lost")
                job.done.set()
            self._jobs.clear()

    def _turn(self, idl: Any, api: Any) -> None:
        poller = Poller()
        idl.run()
        # Compared with the last reading, not with the state before this run: a transaction runs the
        # IDL too.
        if idl.change_seqno != self._seqno and idl.has_ever_connected():
            self._seqno = idl.change_seqno
            idl.proved()
            self._tell(self._reader.read(idl, self._changes(idl)))
        elif idl._session.is_connected() is False and self._last and self._last.connected:
            self._tell(Update(connected=False))
        self._echo(idl)
        if self._jobs and idl.has_ever_connected():
            job = self._jobs.popleft()
            if not job.given_up:
                self._do(api, job)
            return
        idl.wait(poller)
        poller.fd_wait(self._to_thread[0], POLLIN)
        poller.block()
        _drain(self._to_thread[0])

    def _echo(self, idl: Noticing) -> None:
        """Deliver the answer of the last echo, and send the next echo."""
        if idl.echoed and self._last is not None:
            idl.echoed, self._answered = False, self._sent
            self._tell(replace(self._last, changed=(), gone=(), answered=self._answered))
        asked = self._asked
        if asked > self._answered and idl.echo():
            self._sent = asked

    def _do(self, api: Any, job: _Job) -> None:
        try:
            txn = Transaction(
                api, api.ovsdb_connection, timeout=TRANSACTION_TIMEOUT, check_error=True
            )
            job.build(api, txn)
            txn.do_commit()
        except Exception as error:  # the waiting caller raises it
            job.error = error
        finally:
            job.done.set()

    def _tell(self, update: Update) -> None:
        if update == self._last:
            return
        self._last = update
        self._updates.append(update)
        _poke(self._to_hub[1])

    def _changes(self, idl: Any) -> list[Any] | None:
        """Return the changed rows; None after a reconnect.

        Any row may have changed then: the IDL does not report rows that were deleted meanwhile.
        """
        notices, session = idl.take(), idl._session.get_seqno()
        if session != self._session:
            self._session = session
            return None
        return list(notices)

    def _build_tap(self, api: Any, txn: Any) -> None:
        for row in api.tables["Bridge"].rows.values():
            for port in row.ports if row.name != self.bridge else ():
                if port.name != self.tap:
                    continue
                owner = row.name if any(map(is_marked, port.interfaces)) else owner_of_port(port)
                if owner != self.bridge:
                    raise TapElsewhereError(self.tap, row.name, owner=owner)
        mtus = [
            row.mtu_request[0]
            for row in api.tables["Interface"].rows.values()
            if row.name == self.tap and has_mtu(row, self._reader.least_mtu)
        ]
        interface_ids = {"skip_cleanup": "true", **dict([TAP_MARK])}
        txn.add(Change(api, lambda idl, _txn: meta_writer.make_way(idl, self.bridge, self.tap)))
        txn.add(api.add_port(self.bridge, self.tap, may_exist=True))
        vlan = TAP_VLAN
        txn.add(api.db_set("Port", self.tap, ("tag", vlan.tag), ("vlan_mode", vlan.vlan_mode)))
        txn.add(api.db_set("Port", self.tap, ("cvlans", list(vlan.cvlans))))
        txn.add(
            api.db_set(
                "Interface",
                self.tap,
                ("type", "internal"),
                ("mac", TAP_MAC),
                ("external_ids", interface_ids),
                ("mtu_request", [*mtus, max(TAP_MTU, self._reader.least_mtu)][0]),
            )
        )


def _poke(fd: int) -> None:
    try:
        _os.write(fd, b"\0")
    except BlockingIOError:
        return  # the pipe is full: the other side will wake anyway


def _drain(fd: int) -> None:
    try:
        while _os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
