"""tap-metadata: port, device, address and listener, brought and kept in place."""

from __future__ import annotations

import logging
import socket
import time
from ipaddress import IPv4Address
from typing import Any

import eventlet.green.socket as green_socket

from dfmeta.cmd.keeping import Keeper
from dfmeta.exceptions import HostError, StartError
from dfmeta.flows.service import Tap
from dfmeta.host import device
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.ports.ovsdb import OvsdbWatcher, Update
from dfmeta.proxy.server import listen
from dfmeta.state import State

LOG = logging.getLogger(__name__)

SO_BINDTOIFINDEX = 62
"""socket(7); Python has no name for it."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at address, rules and route."""


class TapKeeper:
    """Knows how tap-metadata is to be, and makes it so.

    :param group: the options ``[df_metadata]``.
    :param state: gives the port of an earlier run, and remembers what was changed on the host.
    :param keeper: keeps the listener over a restart.
    """

    def __init__(self, group: Any, state: State, keeper: Keeper) -> None:
        self._group = group
        self._state = state
        self._keeper = keeper
        self._index = 0
        self.host = HostSide(
            Wanted(group.metadata_interface, IPv4Address(group.host_ip), group.route_table)
        )
        self.sock: Any = None
        self.in_place = False
        self.last_error = "OVSDB does not have it yet"
        self._prepared = 0
        self._next_look = 0.0

    def listen_early(self) -> Any:
        """Take the listener that was kept, or open one if the device is there from an earlier run.

        What is left of that run leads guests here already. None when there is no device yet.
        """
        if not self._present():
            return None
        try:
            self.host.ensure()
            return self._take_kept() or self.listen()
        except (HostError, StartError) as error:
            LOG.debug("Not listening yet: %s", error)
            return None

    def listen(self) -> Any:
        """Open the listener and have it kept; port 0 takes the remembered one, or a free one.

        :raises StartError: when it cannot be had.
        """
        sock = self._open()
        self._use(sock)
        try:
            self._keeper.keep(sock.fileno())
        except HostError as error:
            LOG.warning("A restart will refuse guests: %s", error)
        return sock

    @property
    def stale(self) -> bool:
        """Whether the device has been made anew since the listener was opened."""
        return self.sock is not None and self._index != _index_of(self.sock)

    def look_now(self) -> None:
        """Look at the host's side at the next occasion."""
        self._next_look = 0.0

    def keep_listener(self) -> None:
        """See that the listener is still kept.

        :raises HostError: when it cannot be.
        """
        if self.sock is not None:
            self._keeper.look_after(self.sock.fileno())

    def _present(self) -> bool:
        return self._group.metadata_interface in {name for _index, name in socket.if_nameindex()}

    def _use(self, sock: Any) -> None:
        self.sock = sock
        self._index = socket.if_nametoindex(self._group.metadata_interface)

    def _take_kept(self) -> Any:
        fd = self._keeper.take()
        if fd is None:
            return None
        sock = green_socket.socket(fileno=fd)
        self._use(sock)
        address, port = sock.getsockname()[:2]
        wanted = (self._state.port, 0) if self._group.port == 0 else (self._group.port,)
        if address == self._group.host_ip and port in wanted and not self.stale:
            LOG.info("Took over the listener of an earlier run, port %d", port)
            return sock
        sock.close()
        self.sock = None
        return None

    def _open(self) -> Any:
        name, address = self._group.metadata_interface, self._group.host_ip
        if self._group.port == 0 and self._state.port:
            try:
                return listen(name, address, self._state.port)
            except StartError as error:
                LOG.info("%s; taking another port", error.fields["cause"])
        return listen(name, address, self._group.port)

    def look_after(self, watcher: OvsdbWatcher, update: Update) -> bool:
        """See that port, device, address, rules and route are there.

        :return: whether they are.
        :raises DfmetaError: when OVSDB or the kernel refuses.
        """
        if not update.connected or update.bridge is None:
            return self.in_place
        if update.tap is None or not update.tap.ours:
            self.in_place = False
            watcher.ensure_tap()
            return False
        if update.tap.ofport is None or not update.tap.mac:
            self.last_error = "Open vSwitch has not given it a port number"
            self.in_place = False
            return False
        if self.in_place and time.monotonic() < self._next_look:
            return True
        self._next_look = time.monotonic() + LOOK_INTERVAL
        self.in_place = False
        done = self.host.ensure()
        index = socket.if_nametoindex(self._group.metadata_interface)
        if self._prepared != index:
            device.disable_tx_checksum(self._group.metadata_interface)
            before = device.raise_arp_ignore()
            if before is not None:
                self._state.arp_ignore = before
            self._prepared = index
        if done:
            LOG.info("Put in place on %s: %s", self._group.metadata_interface, ", ".join(done))
        self._index = index
        self.in_place = True
        return True

    def as_flows_need_it(self, update: Update, sock: Any) -> Tap | None:
        """What the flows lead to, or None while there is no such port."""
        if update.tap is None or update.tap.ofport is None or not update.tap.mac:
            return None
        return Tap(
            ofport=update.tap.ofport,
            mac=update.tap.mac,
            port=int(sock.getsockname()[1]),
            ip=self._group.host_ip,
            guest_ip=self._group.ip,
        )


def _index_of(sock: Any) -> int:
    return int(sock.getsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX))
