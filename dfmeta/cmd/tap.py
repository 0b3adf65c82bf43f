"""tap-metadata: port, device, address and listener, brought and kept in place."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import eventlet.green.socket as green_socket

from dfmeta.cmd.keeping import Keeper
from dfmeta.exceptions import HostError, StartError
from dfmeta.flows.service import Tap
from dfmeta.host import device
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.ports.ovsdb import OvsdbWatcher, Update
from dfmeta.proxy.sockets import NO_DEVICE, confine, confined, keep_room, listen, silence
from dfmeta.state import State

LOG = logging.getLogger(__name__)

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
        self.host = HostSide(
            Wanted(group.metadata_interface, IPv4Address(group.host_ip), group.route_table)
        )
        self.sock: Any = None
        self.made_anew: Callable[[], None] = lambda: None
        """Called when the device has been made anew, before anything comes in on it."""
        self.in_place = False
        self.last_error = "OVSDB does not have it yet"
        self._confined = NO_DEVICE
        """The device that the listener hears."""
        self._kept_elsewhere = False
        """Whether a service manager keeps the listener, without our asking."""
        self._prepared = 0
        self._next_look = 0.0

    @property
    def place(self) -> str:
        """Where the listener is to stand, HOST:PORT."""
        return f"{self._group.host_ip}:{self._group.port}"

    def adopt(self, sock: Any) -> None:
        """Use a listener that a service manager has opened, whatever was kept before.

        It may be older than the device and than its address. Nobody is heard before the device
        is there; who is in its queue has been heard on any device, if this is its first daemon.

        :param sock: None where there is none.
        :raises OSError: when the kernel refuses.
        """
        if sock is None:
            return
        if not confined(sock):
            strangers = silence(sock)
            if strangers:
                LOG.warning("Reset %d connections of before anybody watched", strangers)
        stale = self._keeper.take()
        if stale is not None:
            os.close(stale)
        self._keeper.drop()
        keep_room(sock)
        self.sock, self._kept_elsewhere = sock, True
        LOG.info("Took over the service manager's listener, port %d", sock.getsockname()[1])

    def listen_early(self) -> Any:
        """Take the listener that was kept, or open one if the device is there from an earlier run.

        What is left of that run leads guests here already. None when there is no device yet.
        """
        if not self._present():
            return None
        try:
            if self.sock is not None:
                self._follow()
            kept = self.sock or self._take_kept()
            self.host.ensure()
            return kept or self._listen_anew()
        except (HostError, StartError, OSError) as error:
            LOG.debug("Not listening yet: %s", error)
            return None

    def listen(self) -> Any:
        """Take the listener that was kept, or open one; the device is there.

        :raises StartError: when it cannot be had.
        """
        return self.sock or self._take_kept() or self._listen_anew()

    def _listen_anew(self) -> Any:
        """Open the listener and have it kept; port 0 takes the remembered one, or a free one."""
        sock = self._open()
        self._use(sock)
        try:
            self._keeper.keep(sock.fileno())
        except HostError as error:
            LOG.warning("A restart will refuse guests: %s", error)
        return sock

    def look_now(self) -> None:
        """Look at the host's side at the next occasion."""
        self._next_look = 0.0

    def keep_listener(self) -> None:
        """See that the listener is still kept.

        :raises HostError: when it cannot be.
        """
        if self.sock is not None and not self._kept_elsewhere:
            self._keeper.look_after(self.sock.fileno())

    def _present(self) -> bool:
        return self._group.metadata_interface in {name for _index, name in socket.if_nameindex()}

    def _use(self, sock: Any) -> None:
        self.sock = sock
        self._confined = self._index()

    def _take_kept(self) -> Any:
        fd = self._keeper.take()
        if fd is None:
            return None
        sock = green_socket.socket(fileno=fd)
        address, port = sock.getsockname()[:2]
        wanted = (self._state.port, 0) if self._group.port == 0 else (self._group.port,)
        if address != self._group.host_ip or port not in wanted:
            sock.close()
            return None
        LOG.info("Took over the listener of an earlier run, port %d", port)
        confine(sock, self._index())
        keep_room(sock)
        self._use(sock)
        return sock

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
        try:
            self._put_in_place()
        except HostError:
            self.in_place = False
            raise
        # Not before, and not away for the time of a look: others wait for it to be so.
        self.in_place = True
        return True

    def _put_in_place(self) -> None:
        # Before it has an address: nothing is to come in that finds nobody.
        index = self._follow()
        done = self.host.ensure()
        if self._prepared != index:
            device.disable_tx_checksum(self._group.metadata_interface)
            before = device.raise_arp_ignore()
            if before is not None:
                self._state.arp_ignore = before
            self._prepared = index
        if done:
            LOG.info("Put in place on %s: %s", self._group.metadata_interface, ", ".join(done))

    def _follow(self) -> int:
        """Have listener and connections hear the device that is there now; return its number.

        :raises HostError: when the kernel refuses.
        """
        name = self._group.metadata_interface
        try:
            index = self._index()
            if self.sock is not None and index != self._confined:
                confine(self.sock, index)
                before, self._confined = self._confined, index
                if before != NO_DEVICE:
                    self.made_anew()
                    LOG.info("%s has been made anew; listening on it again", name)
        except OSError as error:
            raise HostError(
                what="listening on the device", device=name, cause=error.strerror
            ) from error
        return index

    def _index(self) -> int:
        return socket.if_nametoindex(self._group.metadata_interface)

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
