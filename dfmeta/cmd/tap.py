"""Creates and maintains tap-metadata: port, device, address and listener."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import eventlet
import eventlet.green.socket as green_socket

from dfmeta.apps.controller import Controller
from dfmeta.cmd.keeping import Keeper
from dfmeta.exceptions import DfmetaError, HostError, StartError
from dfmeta.flows.family import IPV6
from dfmeta.flows.service import Tap
from dfmeta.host import device
from dfmeta.host.changes import Changes
from dfmeta.host.netlink import Wanted
from dfmeta.host.sides import HostSides
from dfmeta.ports.bridge_reader import Update
from dfmeta.ports.ovsdb import OvsdbWatcher
from dfmeta.proxy.sockets import NO_DEVICE, confine, confined, keep_room, listen, silence
from dfmeta.state import HostMemory, State
from dfmeta.wiring.layout import keys_of

LOG = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two checks for notifications of changes from the kernel."""
FULL_LOOK_INTERVAL = 30.0
"""Seconds between two checks of address, rules and route without a notification."""
HOLDER_END = 1.0
"""Seconds of attempts to open the listener: a holder that is just ending still has the address."""
POLL = 0.05
NOT_THERE = "it is not in OVSDB yet"


class TapKeeper:
    """Brings tap-metadata into its configured state and keeps it there.

    :param group: the options ``[df_metadata]``.
    :param state: has the TCP port of the previous run, and records changes of the host.
    :param keeper: keeps the listener during a restart.
    :param made_anew: called when the device has been created again, before a frame arrives on it.
    """

    def __init__(
        self,
        group: Any,
        state: State,
        keeper: Keeper,
        *,
        made_anew: Callable[[], object] = lambda: None,
    ) -> None:
        self._group = group
        self._state = state
        self._keeper = keeper
        wanted = Wanted(group.metadata_interface, IPv4Address(group.host_ip), group.route_table)
        self._keys = keys_of(group)
        self._guest_ip6 = tuple(str(IPv6Address(text)) for text in group.ip6)
        self._host_ip6 = str(IPv6Address(group.host_ip6)) if group.ip6 else ""
        wanted6 = self._wanted6(wanted.device, self._host_ip6, wanted.table)
        self.host = HostSides(wanted, wanted6)
        self._family = wanted.family
        self.sock: Any = None
        self._made_anew = made_anew
        self.in_place = False
        self.last_error = NOT_THERE
        self._confined = NO_DEVICE
        """Index of the device from which the listener accepts packets."""
        self._kept_elsewhere = False
        """Whether a service manager opened the listener, and so keeps it."""
        self._next_look = self._next_full_look = 0.0
        self._changes = Changes()
        self._made: set[str] = set()
        """Objects that this process has created or changed: "port", "listener", "arp_ignore"."""

    @property
    def listen_address(self) -> str:
        """Return the configured address of the listener, HOST:PORT."""
        return f"{self._group.host_ip}:{self._group.port}"

    @property
    def fault(self) -> str:
        """Return the fault of the device; empty when there is none."""
        return "" if self.in_place else f"{self._group.metadata_interface}: {self.last_error}"

    @property
    def ipv6_fault(self) -> str:
        """Return what is wrong with IPv6 on the host; empty when nothing is, or ``ip6`` is empty.

        Guests are served over IPv4 all the same.
        """
        return self.host.ipv6_fault

    def take_over(self, sock: Any) -> None:
        """Use a listener that a service manager has opened; drop any listener kept before.

        The listener may be older than the device and its address. A filter drops all packets until
        the device exists. If this is the listener's first daemon, connections in its queue may have
        arrived on any device, and are reset.

        :param sock: None when there is no such listener.
        :raises OSError: when the kernel refuses.
        """
        if sock is None:
            return
        if not confined(sock):
            strangers = silence(sock)
            if strangers:
                LOG.warning(
                    "Reset %d connections that arrived before the filter of the listener was set",
                    strangers,
                )
        stale = self._keeper.take()
        if stale is not None:
            os.close(stale)
        self._keeper.drop()
        keep_room(sock)
        self.sock, self._kept_elsewhere = sock, True
        LOG.info("Took over the service manager's listener, port %d", sock.getsockname()[1])

    def listen_early(self) -> Any:
        """Take the listener that was kept, or open one if the device exists from an earlier run.

        Flows of that run already lead guests to it. Return None when there is no device yet.
        """
        if not self._present():
            return None
        try:
            if self.sock is not None:
                self._follow()
            # Before the device is up, so that no connection is refused.
            sock = self.sock or self._take_kept() or self._listen_anew(self._port)
            self.host.ensure()
        except (HostError, StartError, OSError) as error:
            LOG.debug("Not listening yet: %s", error)
            return None
        return sock

    def listen(self) -> Any:
        """Take the listener that was kept, or open one; the device must exist.

        With port 0 it uses the port of the previous run, or a free port.

        :raises StartError: when the listener cannot be opened.
        """
        give_up = time.monotonic() + HOLDER_END
        while True:
            try:
                return self.sock or self._take_kept() or self._listen_anew(self._port)
            except StartError as error:
                if time.monotonic() >= give_up:
                    if self._group.port:
                        raise
                    LOG.info("%s; taking another port", error.fields["cause"])
                    return self._listen_anew(0)
            eventlet.sleep(POLL)

    @property
    def _port(self) -> int:
        return int(self._group.port or self._state.port)

    def _listen_anew(self, port: int) -> Any:
        """Open the listener and pass it to the keeper.

        :param port: 0 for a free one.
        """
        sock = listen(self._group.metadata_interface, self._group.host_ip, port)
        self._use(sock)
        self._made.add("listener")
        try:
            self._keeper.keep(sock.fileno())
        except HostError as error:
            LOG.warning("The listener is not kept, and a restart will refuse guests: %s", error)
        return sock

    def look_now(self) -> None:
        """Make the next :meth:`look_after` check the host's side completely."""
        self._next_look = self._next_full_look = 0.0

    def keep_listener(self) -> None:
        """Check that the listener is still kept, and keep it again if not.

        :raises HostError: when it cannot be kept.
        """
        if self.sock is not None and not self._kept_elsewhere:
            self._keeper.look_after(self.sock.fileno())

    def _present(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._index())
        return False

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
            LOG.info(
                "Closed the listener of an earlier run at %s:%d: the configured address is %s",
                *(address, port, self.listen_address),
            )
            sock.close()
            return None
        LOG.info("Took over the listener of an earlier run, port %d", port)
        confine(sock, self._index())
        keep_room(sock)
        self._use(sock)
        return sock

    def look_after(self, watcher: OvsdbWatcher, update: Update) -> bool:
        """Check port, device, address, rules and route, and create those that are missing.

        :return: whether all are in place.
        :raises DfmetaError: when OVSDB or the kernel refuses.
        """
        if not update.connected or update.bridge is None:
            return self.in_place
        if update.tap is None or not update.tap.ours:
            self.last_error = NOT_THERE
            self.in_place = False
            watcher.ensure_tap()
            if update.tap is None:
                self._made.add("port")
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
        # Not set earlier, and not cleared during a check: other greenthreads wait for it.
        self.in_place = True
        return True

    def _put_in_place(self) -> None:
        # Before the device has an address, so that no packet arrives without a listener.
        self._follow()
        now = time.monotonic()
        # Taken before the check, so that a change during the check causes another one.
        changed = self._changes.take()
        done, wanting = self.host.look()
        if changed or wanting or not self.in_place or now >= self._next_full_look:
            self._next_full_look = now + FULL_LOOK_INTERVAL
            done += self.host.ensure()
        if device.disable_tx_checksum(self._group.metadata_interface):
            done.append("TX checksum offload off")
        before = device.raise_arp_ignore() if self._family.arp else None
        if before is not None:
            self._state.arp_ignore = before
            self._made.add("arp_ignore")
            done.append(f"arp_ignore {device.RAISED} for all devices (it was {before})")
        if done:
            LOG.info("Configured %s: %s", self._group.metadata_interface, ", ".join(done))

    def remove_former(self, watcher: OvsdbWatcher) -> None:
        """Remove objects that the previous run created for another device, address or table."""
        group, former = self._group, self._state.host
        address = str(group.host_ip)
        now = HostMemory(group.metadata_interface, address, group.route_table, self._host_ip6)
        if former is None or former == now:
            self._state.host = now
            return
        wanted = Wanted(former.device, IPv4Address(former.address), former.table)
        try:
            wanted6 = self._wanted6(former.device, former.address6, former.table)
            done = self.host.remove_former(wanted, wanted6)
            if former.device != now.device:
                done += [f"port {name}" for name in watcher.remove_taps(former.device)]
        except DfmetaError as error:
            # The next start tries again, and so does --cleanup.
            LOG.warning("Leftovers of the former configuration could not be removed: %s", error)
            return
        self._state.host = now
        if done:
            LOG.info("Removed leftovers of the former configuration: %s", ", ".join(done))

    def _wanted6(self, name: str, address: str, table: int) -> Wanted | None:
        """Return IPv6's side of the host; None for an empty address."""
        if not address:
            return None
        return Wanted(name, IPv6Address(address), table, IPV6, self._keys.next_hop(6))

    def undo(self, watcher: OvsdbWatcher, controller: Controller) -> None:
        """Remove everything that a failed start has created, and nothing that existed before.

        A port that existed before may serve guests through flows and listener of an earlier run.
        """
        done = []
        try:
            if "port" in self._made:
                controller.withdraw()
            if "listener" in self._made:
                self._keeper.drop()
            done += self.host.undo()
            before = self._state.arp_ignore
            if "arp_ignore" in self._made and before is not None:
                device.restore_arp_ignore(before)
                self._state.arp_ignore = None
                done.append("arp_ignore")
            if "port" in self._made:
                done += [
                    f"port {name}" for name in watcher.remove_taps(self._group.metadata_interface)
                ]
        except DfmetaError as error:
            LOG.warning("Some changes of this failed start could not be removed: %s", error)
        if done:
            LOG.info("Removed the changes of this failed start: %s", ", ".join(done))

    def _follow(self) -> None:
        """Attach listener and connections to the current device.

        :raises HostError: when the kernel refuses.
        """
        name = self._group.metadata_interface
        try:
            index = self._index()
            if self.sock is not None and index != self._confined:
                confine(self.sock, index)
                before, self._confined = self._confined, index
                if before != NO_DEVICE:
                    self._made_anew()
                    LOG.info("%s was created again; listening on it", name)
        except OSError as error:
            raise HostError(what="listening", device=name, cause=error.strerror or error) from error

    def _index(self) -> int:
        return socket.if_nametoindex(self._group.metadata_interface)

    def as_flows_need_it(self, update: Update, sock: Any) -> Tap | None:
        """Return the target of the flows; None while the port does not exist."""
        if update.tap is None or update.tap.ofport is None or not update.tap.mac:
            return None
        return Tap(
            ofport=update.tap.ofport,
            mac=update.tap.mac,
            port=int(sock.getsockname()[1]),
            ip=self._group.host_ip,
            guest_ip=self._group.ip,
            ip6=self._host_ip6 if self.host.serves_ipv6 else "",
            guest_ip6=self._guest_ip6 if self.host.serves_ipv6 else (),
            keys=self._keys,
        )
