"""The OpenFlow connection as transactions: a batch is sent with a barrier, and is then confirmed
or refused as a whole.

os-ken's send queue holds 16 messages and blocks when it is full. A handler that blocks stops the
reading of replies, and then the switch waits as well. So no function here that a handler calls
waits: it puts its messages into an outbox, which a separate thread empties with one write for each
batch.
"""

import fcntl
import termios
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.errors import NotConnectedError, SwitchError, SwitchTimeoutError
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.wire import Wire
from dfmeta.runtime import hub, threads

CONFIRM_TIMEOUT = 10.0
"""Seconds for the confirmation of a batch; Open vSwitch drops an idle bundle after as many."""
_NO_BYTES = bytes(4)
"""FIONREAD's count of 0, an int of C."""


class Pending:
    """A batch or a request under way. Any number of threads may wait for it."""

    def __init__(self, what: str, xids: Iterable[int]) -> None:
        self.what = what
        self.xids = frozenset(xids)
        self.entries: list[Any] = []
        """Entries of the reply to a multipart request."""
        self.give_up: Callable[[], None] = lambda: None
        """Called when :meth:`wait` has timed out: the reply is not awaited any more."""
        self._error: Exception | None = None
        self._done = threads.Event()

    @property
    def finished(self) -> bool:
        """Whether the batch or the request is confirmed or has failed."""
        return bool(self._done.ready())

    def fail(self, error: Exception) -> None:
        """Keep *error* if it is the first one; the barrier's reply ends the waiting."""
        self._error = self._error or error

    def finish(self) -> None:
        """Wake the waiting threads."""
        if not self._done.ready():
            self._done.send()

    def wait(self, timeout: float = CONFIRM_TIMEOUT) -> list[Any]:
        """Wait until the switch has confirmed the batch or answered the request.

        :param timeout: seconds.
        :return: the entries of a multipart reply; empty for a batch.
        :raises SwitchError: when the switch refused a message of the batch or the request.
        :raises SwitchTimeoutError: when the switch did not answer in time.
        :raises NotConnectedError: when the connection was lost meanwhile.
        """
        if not hub.wait(self._done, timeout):
            self.give_up()
            raise SwitchTimeoutError(what=self.what, seconds=timeout)
        if self._error is not None:
            raise self._error
        return self.entries


class Channel:
    """Sends over the connection to the bridge that is up, and gives replies to the waiting threads.

    :param bridge: name of the bridge, for log lines and errors.
    :param layout: numbers of tables and priorities.
    """

    def __init__(self, bridge: str, layout: Layout) -> None:
        self.bridge = bridge
        self.layout = layout
        self._datapath: Any = None
        self._wire: Wire | None = None
        self._outbox: threads.Queue | None = None
        self._by_xid: dict[int, Pending] = {}
        self._ends: dict[int, Pending] = {}
        self._bundles = 0
        self._xid = 0

    @property
    def connected(self) -> bool:
        """Whether a connection to the bridge is up."""
        return self._datapath is not None

    @property
    def unread(self) -> bool:
        """Whether the switch has sent messages that are not read yet (FIONREAD, unix(7))."""
        if self._datapath is None:
            return False
        try:
            count = fcntl.ioctl(self._datapath.socket.fileno(), termios.FIONREAD, _NO_BYTES)
        except (OSError, ValueError):
            return False  # the connection has just been closed
        return count != _NO_BYTES

    def uses(self, datapath: Any) -> bool:
        """Whether *datapath* is the connection that is up."""
        return self._datapath is not None and datapath is self._datapath

    @property
    def wire(self) -> Wire:
        """Builder of messages for the connection that is up.

        :raises NotConnectedError: when no connection is up.
        """
        if self._wire is None:
            raise NotConnectedError(bridge=self.bridge)
        return self._wire

    def attach(self, datapath: Any) -> None:
        """Use the connection *datapath*, which has finished its handshake."""
        self.detach(self._datapath)
        self._datapath, self._wire = datapath, Wire(self.layout, datapath)
        self._outbox = threads.Queue()
        hub.VITAL.spawn("OpenFlow sender", self._send_loop, datapath, self._outbox, may_return=True)

    def detach(self, datapath: Any) -> bool:
        """Stop using the connection *datapath*; all batches and requests under way on it fail.

        :return: False if *datapath* was not in use.
        """
        if datapath is None or datapath is not self._datapath:
            return False
        outbox, self._outbox = self._outbox, None
        self._datapath = self._wire = None
        if outbox is not None:
            outbox.put(None)
        ended, self._by_xid, self._ends = {*self._by_xid.values(), *self._ends.values()}, {}, {}
        for pending in ended:
            pending.fail(NotConnectedError(bridge=self.bridge))
            pending.finish()
        return True

    def post(self, messages: Iterable[Any]) -> None:
        """Send messages that need no confirmation (packet-outs)."""
        self._put(list(messages))

    def commit(self, mods: Iterable[Any], what: str, *, bundle: bool = True) -> Pending:
        """Send *mods* with a barrier behind them.

        :param what: name of the batch in errors.
        :param bundle: make *mods* take effect together or not at all.
        """
        mods = list(mods)
        if bundle and mods:
            self._bundles = self._bundles % ofp.MAX_XID + 1
            mods = self.wire.bundle(self._bundles, mods)
        barrier = self.wire.barrier()
        for message in (*mods, barrier):
            self._number(message)
        pending = Pending(what, (message.xid for message in mods))
        self._by_xid.update(dict.fromkeys(pending.xids, pending))
        self._ends[barrier.xid] = pending
        pending.give_up = partial(self._end, barrier.xid)
        self._put([*mods, barrier])
        return pending

    def request(self, message: Any, what: str) -> Pending:
        """Send a multipart request; :meth:`Pending.wait` returns the entries of the reply.

        :param what: name of the request in errors.
        """
        self._number(message)
        pending = Pending(what, (message.xid,))
        self._by_xid[message.xid] = self._ends[message.xid] = pending
        pending.give_up = partial(self._end, message.xid)
        self._put([message])
        return pending

    def gather(self, messages: Iterable[Any], what: str) -> list[Any]:
        """Send multipart requests together, and return the entries of all replies. Waits.

        :param what: name of the requests in errors.
        :raises DfmetaError: as :meth:`Pending.wait`.
        """
        pending = [self.request(message, what) for message in messages]
        return [entry for request in pending for entry in request.wait()]

    # Replies, from the shims

    def barrier_reply(self, xid: int) -> None:
        """Finish the batch of barrier *xid*: the switch has done everything before it."""
        self._end(xid)

    def multipart_reply(self, xid: int, entries: Iterable[Any], *, more: bool) -> None:
        """Take one part of the reply to request *xid*; *more* parts may follow."""
        pending = self._by_xid.get(xid)
        if pending is not None:
            pending.entries.extend(entries)
            if not more:
                self._end(xid)

    def error(self, xid: int, kind: int, code: int) -> bool:
        """Note that the switch refused message *xid*; False when that one is not awaited."""
        pending = self._by_xid.get(xid)
        if pending is None:
            return False
        cause = error_text(kind, code)
        pending.fail(SwitchError(what=pending.what, cause=cause, kind=kind, code=code))
        if xid in self._ends:
            self._end(xid)
        return True

    def _end(self, xid: int) -> None:
        pending = self._ends.pop(xid, None)
        if pending is not None:
            for number in pending.xids:
                self._by_xid.pop(number, None)
            pending.finish()

    def _number(self, message: Any) -> None:
        self._xid = self._xid % ofp.MAX_XID + 1
        message.set_xid(self._xid)

    def _put(self, messages: list[Any]) -> None:
        if self._outbox is None:
            raise NotConnectedError(bridge=self.bridge)
        data = bytearray()
        for message in messages:
            if message.xid is None:
                self._number(message)
            message.serialize()
            data += message.buf
        self._outbox.put(bytes(data))

    @staticmethod
    def _send_loop(datapath: Any, outbox: threads.Queue) -> None:
        while True:
            data = outbox.get()
            if data is None or not datapath.send(data):
                return


def error_text(kind: int, code: int) -> str:
    """Return the name of an OpenFlow error, from its type and code (OpenFlow 1.3.5, 7.4.4)."""
    if kind == ofp.OFPET_EXPERIMENTER:
        return f"experimenter error {code}"
    return f"{ofp.ofp_error_type_to_str(kind)}, {ofp.ofp_error_code_to_str(kind, code)}"
