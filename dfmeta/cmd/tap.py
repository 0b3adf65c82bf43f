"""tap-metadata: port, device, address and listener, brought and kept in place."""

from __future__ import annotations

import logging
import socket
import time
from ipaddress import IPv4Address
from typing import Any

from dfmeta.exceptions import HostError, StartError
from dfmeta.flows.service import Tap
from dfmeta.host import device
from dfmeta.host.netlink import HostSide, Wanted
from dfmeta.ports.ovsdb import OvsdbWatcher, Update
from dfmeta.proxy.server import listen
from dfmeta.state import State

LOG = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at address, rules and route."""


class TapKeeper:
    """Knows how tap-metadata is to be, and makes it so.

    :param group: the options ``[df_metadata]``.
    :param state: gives the port of an earlier run, and remembers what was changed on the host.
    """

    def __init__(self, group: Any, state: State) -> None:
        self._group = group
        self._state = state
        self.host = HostSide(
            Wanted(group.metadata_interface, IPv4Address(group.host_ip), group.route_table)
        )
        self.sock: Any = None
        self.in_place = False
        self.last_error = "OVSDB does not have it yet"
        self._prepared: str | None = None
        self._next_look = 0.0

    def listen_early(self) -> Any:
        """Open the listener if device and address are there from an earlier run; else None."""
        if self._group.metadata_interface not in {name for _index, name in socket.if_nameindex()}:
            return None
        try:
            self.host.ensure()
            return self.listen()
        except (HostError, StartError) as error:
            LOG.debug("Not listening yet: %s", error)
            return None

    def listen(self) -> Any:
        """Open the listener; port 0 takes the remembered one, or a free one.

        :raises StartError: when it cannot be had.
        """
        name, address = self._group.metadata_interface, self._group.host_ip
        if self._group.port == 0 and self._state.port:
            try:
                self.sock = listen(name, address, self._state.port)
            except StartError as error:
                LOG.info("%s; taking another port", error.fields["cause"])
            else:
                return self.sock
        self.sock = listen(name, address, self._group.port)
        return self.sock

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
        if self._prepared != update.tap.mac:
            device.disable_tx_checksum(self._group.metadata_interface)
            before = device.raise_arp_ignore()
            if before is not None:
                self._state.arp_ignore = before
            self._prepared = update.tap.mac
        if done:
            LOG.info("Put in place on %s: %s", self._group.metadata_interface, ", ".join(done))
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
