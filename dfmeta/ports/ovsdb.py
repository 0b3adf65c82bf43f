"""Watches br-int's interfaces in OVSDB, in an OS thread of its own.

The IDL's JSON parser takes a reply in one go (most of a second for 1,000 interfaces), so it must
not run on the hub. It runs in a real thread; what it finds comes to the hub as
:class:`Update` values through a queue and a pipe, in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import eventlet
from eventlet.hubs import trampoline
from eventlet.patcher import original
from ovs.db.data import Atom
from ovs.db.types import UuidType
from ovs.poller import POLLIN, Poller
from ovsdbapp.backend.ovs_idl import idlutils

from dfmeta import hub
from dfmeta.exceptions import OvsdbError
from dfmeta.inspect.offload import USERSPACE
from dfmeta.model import TAP_MAC, TAP_MARK, TAP_VLAN, Port
from dfmeta.ports.idl import TRANSACTION_TIMEOUT, Api, Handle, Noticing, Transaction
from dfmeta.ports.vif import InterfaceRow, vif

LOG = logging.getLogger(__name__)

_os = original("os")
_threading = original("threading")
_time = original("time")
"""Unpatched: eventlet's own would wait on a hub of the thread's own for what is not there."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "Open_vSwitch": ("bridges", "cur_cfg", "next_cfg"),
    "Bridge": ("name", "ports", "datapath_id", "datapath_type", "controller"),
    "Controller": ("target",),
    "Port": ("name", "interfaces", "tag", "vlan_mode", "cvlans", "external_ids", "other_config"),
    "Interface": ("name", "type", "ofport", "external_ids", "mac", "mac_in_use", "error"),
}
"""ovsdbapp's transactions look at cur_cfg and next_cfg; without them each logs an error."""
RECONNECT_PAUSE = 0.2
JOIN_TIMEOUT = 0.3
"""Seconds that the thread is waited for at the end; it is a daemon's and holds nothing."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """What the rest of the daemon needs to know of the bridge."""

    datapath_id: int | None
    controllers: int
    """How many Controller rows it has: gaining the first or losing the last clears its flows."""
    userspace: bool = False
    """It has the userspace datapath (ovs-vswitchd.conf.db(5), Bridge.datapath_type)."""


@dataclass(frozen=True, slots=True)
class TapPort:
    """tap-metadata as OVSDB has it."""

    ofport: int | None
    mac: str
    ours: bool
    """It is marked as ours and configured so that nothing is flooded to it."""
    marked: bool
    """It is marked as ours."""


@dataclass(frozen=True, slots=True)
class Update:
    """The bridge as it is after a change."""

    connected: bool
    bridge: Bridge | None = None
    tap: TapPort | None = None
    changed: tuple[Port, ...] = ()
    gone: tuple[str, ...] = ()
    answered: int = 0
    """The latest question of :meth:`OvsdbWatcher.ask` that OVSDB has answered, all that it said
    before being read."""


class TapElsewhereError(Exception):
    """The name of tap-metadata is that of a port of another bridge.

    :param marked: it is marked as dfmeta's.
    """

    def __init__(self, tap: str, bridge: str, *, marked: bool) -> None:
        super().__init__(f"{tap} is a port of {bridge}")
        self.tap, self.bridge, self.marked = tap, bridge, marked


class _Job:
    """A transaction that the hub waits for."""

    def __init__(self, build: Callable[[Any, Any], None]) -> None:
        self.build = build
        self.done = _threading.Event()
        self.given_up = False
        self.error: Exception | None = None


class OvsdbWatcher:
    """A thread on OVSDB, and the hub's end of it.

    :param remote: OVSDB's address, such as ``unix:/var/run/openvswitch/db.sock``.
    :param bridge: name of the integration bridge.
    :param tap: name of tap-metadata.
    :param deliver: called on the hub with each :class:`Update`, one at a time.
    """

    def __init__(
        self, remote: str, bridge: str, tap: str, *, deliver: Callable[[Update], None]
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
        self._known: dict[str, Port] = {}
        self._changed: dict[str, Port] = {}
        """What the next update is to tell, kept where a reading ends with an exception."""
        self._gone: dict[str, None] = {}
        """Likewise, in their order."""
        self._interfaces: dict[Any, tuple[Any, ...]] = {}
        """Row of a port of the bridge → rows of its interfaces."""
        self._owners: dict[Any, Any] = {}
        """Row of an interface → row of its port."""
        self._tap: TapPort | None = None
        self._tap_row: Any = None
        self._session = -1
        """The session that the bridge was last read whole in."""
        self._last: Update | None = None
        self._seqno = 0
        self._asked = self._sent = self._answered = 0
        """The latest question: of all, that the last echo stands for, that is answered."""

    # The hub's side

    def start(self) -> None:
        """Start the thread, and the greenthread that delivers."""
        self._thread.start()
        hub.VITAL.spawn("delivery of OVSDB's news", self._deliver_loop, may_return=True)

    def stop(self) -> None:
        """End the thread; nothing is delivered any more."""
        self._stopping = True
        _poke(self._to_thread[1])
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT)

    def ask(self) -> int:
        """Ask OVSDB whether it has told of all that it knows; never waits.

        One echo is under way at a time, and the next one stands for all questions meanwhile. What
        is asked while OVSDB is away is answered when it is back.

        :return: the question's number, from 1; see :attr:`Update.answered`.
        """
        self._asked += 1
        _poke(self._to_thread[1])
        return self._asked

    def ensure_tap(self) -> None:
        """Make tap-metadata a port of the bridge that nothing is flooded to.

        An untagged port is a trunk of all VLANs: NORMAL floods every tenant's broadcasts to it;
        see :data:`~dfmeta.model.TAP_VLAN`.

        :raises OvsdbError: when the transaction fails; caused by :class:`TapElsewhereError` where
            another bridge has a port of that name.
        """
        self._transact(self._build_tap)

    def remove_taps(self, only: str = "") -> list[str]:
        """Take what is marked as our tap-metadata away from the bridge, whatever its name is.

        :param only: the name of the one that is to go.
        :return: the names; a change of ``metadata_interface`` may have left one more.
        :raises OvsdbError: when the transaction fails.
        """
        names: list[str] = []

        def build(api: Any, txn: Any) -> None:
            bridges = api.tables["Bridge"].rows.values()
            ports = [one for row in bridges if row.name == self.bridge for one in row.ports]
            marked = [port.name for port in ports if any(map(_marked, port.interfaces))]
            names.extend(name for name in marked if only in ("", name))
            for name in names:
                txn.add(api.del_port(name, self.bridge, True))

        self._transact(build)
        return names

    def _transact(self, build: Callable[[Any, Any], None]) -> None:
        job = _Job(build)
        self._jobs.append(job)
        _poke(self._to_thread[1])
        with eventlet.Timeout(TRANSACTION_TIMEOUT, False):
            while not job.done.is_set():
                eventlet.sleep(0.01)
        if not job.done.is_set():
            job.given_up = True
            raise OvsdbError(connection=self.remote, cause="no answer to a transaction")
        if job.error is not None:
            raise OvsdbError(connection=self.remote, cause=job.error) from job.error

    def _deliver_loop(self) -> None:
        while not self._stopping:
            trampoline(self._to_hub[0], read=True)
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
        helper = idlutils.get_schema_helper(self.remote, "Open_vSwitch")
        for table, columns in COLUMNS.items():
            helper.register_columns(table, list(columns))
        idl = Noticing(self.remote, helper)
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
        # Against what was last read, not against before this run: a transaction runs the IDL too.
        if idl.change_seqno != self._seqno and idl.has_ever_connected():
            self._seqno = idl.change_seqno
            self._tell(self._read(idl, self._changes(idl)))
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
        """Hand on what the last echo has answered, and send the next."""
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
        except Exception as error:  # handed to who waits for it
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
        """Rows that have changed; None when it may be any, after a reconnect: the IDL does not
        tell of what went meanwhile."""
        notices, session = idl.take(), idl._session.get_seqno()
        if session != self._session:
            self._session = session
            return None
        return list(notices)

    def _read(self, idl: Any, changes: Iterable[Any] | None = None) -> Update:
        """Read what the *changes* touch, or everything without them.

        What a change costs does not depend on how many ports there are.
        """
        rows = list(idl.tables["Bridge"].rows.values())
        bridge = next((row for row in rows if row.name == self.bridge), None)
        members = self._members(bridge, changes)
        touched: dict[Any, None] = {}  # a set that keeps its order
        for row in changes or ():
            if row._table.name == "Interface":
                touched[self._owners.get(row.uuid)] = None
            elif row._table.name == "Port":
                touched[row.uuid] = None
        if members is not None:
            touched |= dict.fromkeys(self._interfaces.keys() ^ members)
        if members is not None and changes is None:
            touched = dict.fromkeys((*self._interfaces, *members))
        for uuid in touched:
            there = _has_port(bridge, uuid) if members is None else uuid in members
            if there or uuid in self._interfaces:
                port = idl.tables["Port"].rows.get(uuid) if there else None
                self._read_port(uuid, port)
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        return Update(
            connected=True,
            bridge=_read_bridge(bridge) if bridge is not None else None,
            tap=self._tap,
            changed=tuple(changed.values()),
            gone=tuple(gone),
        )

    def _members(self, bridge: Any, changes: Iterable[Any] | None) -> Collection[Any] | None:
        """The bridge's ports, if the *changes* do not tell which of them came and went."""
        if changes is not None and bridge is not None:
            ports = {row.uuid for row in changes if row._table.name == "Port"}
            came = sum(_has_port(bridge, uuid) for uuid in ports - self._interfaces.keys())
            went = sum(not _has_port(bridge, uuid) for uuid in ports & self._interfaces.keys())
            if len(self._interfaces) + came - went == len(_listed(bridge)):
                return None
        return dict.fromkeys(port.uuid for port in bridge.ports).keys() if bridge else ()

    def _read_port(self, uuid: Any, port: Any) -> None:
        """Note how the guests behind a row of Port have changed, and which are gone.

        :param port: the row; None when the bridge does not have it any more.
        """
        there = port.interfaces if port is not None else ()
        # What may raise comes first: what is noted is noted as a whole.
        tap = None
        found: dict[Any, Port] = {}
        for interface in there:
            if interface.name == self.tap:
                tap = _read_tap(port, interface)
                continue
            guest = vif(_interface_row(port, interface))
            if guest is not None:
                found[interface.uuid] = guest
        if tap is not None:
            self._tap, self._tap_row = tap, uuid
        elif uuid == self._tap_row:
            self._tap = self._tap_row = None
        before, now = self._interfaces.pop(uuid, ()), tuple(one.uuid for one in there)
        if port is not None:
            self._interfaces[uuid] = now
        self._owners.update(dict.fromkeys(now, uuid))
        for guest in found.values():
            if self._known.get(guest.row) != guest:
                self._known[guest.row] = self._changed[guest.row] = guest
        for interface in {*before, *now} - found.keys():
            # Unless another port has it now.
            if self._owners.get(interface) != uuid:
                continue
            if interface not in now:
                del self._owners[interface]
            if self._known.pop(str(interface), None) is not None:
                self._changed.pop(str(interface), None)
                self._gone[str(interface)] = None

    def _build_tap(self, api: Any, txn: Any) -> None:
        for row in api.tables["Bridge"].rows.values():
            for port in row.ports if row.name != self.bridge else ():
                if port.name == self.tap:
                    marked = any(map(_marked, port.interfaces))
                    raise TapElsewhereError(self.tap, row.name, marked=marked)
        interface_ids = {"skip_cleanup": "true", **dict([TAP_MARK])}
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
            )
        )


def _listed(bridge: Any) -> Any:
    """The bridge's ports as the IDL keeps them: ``Row.ports`` would look up each of them."""
    return bridge._data["ports"].values


def _has_port(bridge: Any, uuid: Any) -> bool:
    return Atom(UuidType, uuid) in _listed(bridge)


def _read_bridge(row: Any) -> Bridge:
    number = row.datapath_id[0] if row.datapath_id else ""
    return Bridge(
        int(number, 16) if number else None,
        controllers=len(row.controller),
        userspace=row.datapath_type == USERSPACE,
    )


def _marked(interface: Any) -> bool:
    key, value = TAP_MARK
    return bool(interface.external_ids.get(key) == value)


def _read_tap(port: Any, interface: Any) -> TapPort:
    marked = _marked(interface)
    ours = (
        marked
        and interface.type == "internal"
        and list(port.tag) == [TAP_VLAN.tag]
        and list(port.vlan_mode) == [TAP_VLAN.vlan_mode]
        and tuple(port.cvlans) == TAP_VLAN.cvlans
    )
    number = interface.ofport[0] if len(interface.ofport) == 1 else 0
    mac = interface.mac_in_use[0] if interface.mac_in_use else ""
    return TapPort(number if number > 0 else None, mac=mac, ours=ours, marked=marked)


def _interface_row(port: Any, interface: Any) -> InterfaceRow:
    return InterfaceRow(
        uuid=str(interface.uuid),
        name=interface.name,
        type=interface.type,
        ofport=tuple(interface.ofport),
        external_ids=dict(interface.external_ids),
        tag=tuple(port.tag),
        vlan_mode=tuple(port.vlan_mode),
        mac_in_use=tuple(interface.mac_in_use),
    )


def _poke(fd: int) -> None:
    try:
        _os.write(fd, b"\0")
    except BlockingIOError:
        return  # it is full: the other side is being woken already


def _drain(fd: int) -> None:
    try:
        while _os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
