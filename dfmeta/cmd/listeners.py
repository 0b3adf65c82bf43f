"""The guests' listeners on tap-metadata: one for IPv4, and one for IPv6 if the host has it.

Both have the same port number. They are taken from a service manager that opened them, or from the
keeper of an earlier run, and otherwise opened. Neither needs its address on the device: a listener
for IPv6 exists also while IPv6 is switched off there.
"""

import logging
import os
import socket
from collections.abc import Container, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from dfmeta.cmd.holder import take_down
from dfmeta.cmd.keepers import Keeper
from dfmeta.errors import HostError, StartError
from dfmeta.http.sockets import (
    NO_DEVICE,
    adopt,
    confine,
    confined,
    has_ipv6,
    index_of,
    keep_room,
    listen,
    silence,
)
from dfmeta.model import HttpHost
from dfmeta.runtime import clock, threads
from dfmeta.runtime.saved_state import SavedState

LOG = logging.getLogger(__name__)

FREE_TRIES = 16
"""Attempts to find a port that is free for both versions of IP."""


class GuestListeners:
    """Opens the listeners, keeps them over restarts, and confines them to the device.

    :param group: the options ``[df_metadata]``.
    :param state: has the TCP port of the previous run.
    :param keeper: keeps the listeners during a restart.
    """

    def __init__(self, group: Any, state: SavedState, keeper: Keeper) -> None:
        self._group = group
        self._state = state
        self._keeper = keeper
        self._addresses: dict[int, IPv4Address | IPv6Address] = {4: IPv4Address(group.host_ip)}
        if group.ip6 and has_ipv6():
            self._addresses[6] = IPv6Address(group.host_ip6)
        self.sockets: dict[int, Any] = {}
        """Version of IP → listening socket; IPv4's is first."""
        self._elsewhere: set[int] = set()
        """Versions whose listener a service manager opened, and so keeps."""
        self._former: list[Any] = []
        """Listeners of an earlier run at places that are not configured any more."""
        self._made: set[int] = set()
        """Versions whose listener this process has opened."""
        self._taken = False
        """Whether the keeper has given its listeners, which it does once."""
        self._exact = False
        """Whether all listeners of the keeper are used."""
        self._complete = False
        """Whether all listeners exist, and those are kept that need it."""
        self._confined = NO_DEVICE
        """Index of the device from which the listeners accept packets."""

    @property
    def places(self) -> dict[int, str]:
        """Return the configured places, HOST:PORT, of both versions, used or not."""
        hosts = {4: self._group.host_ip, 6: self._group.host_ip6}
        return {
            version: HttpHost(str(host), self._group.port).authority
            for version, host in hosts.items()
        }

    def take_over(self, given: Mapping[int, Any]) -> None:
        """Use listeners that a service manager has opened.

        They may be older than the device and its addresses. A filter drops all packets until the
        device exists. If this is a listener's first daemon, connections in its queue may have
        arrived on any device, and are reset.

        :param given: version of IP → listening socket.
        :raises OSError: when the kernel refuses.
        :raises StartError: when they have different ports.
        """
        for version, sock in sorted(given.items()):
            if version not in self._addresses:
                LOG.info("Closed the service manager's listener at %s: not used", _place(sock))
                sock.close()
                continue
            if not confined(sock):
                strangers = silence(sock)
                if strangers:
                    LOG.warning(
                        "Reset %d connections that arrived before the filter of the listener was "
                        "set",
                        strangers,
                    )
            keep_room(sock)
            self.sockets[version] = sock
            self._elsewhere.add(version)
            LOG.info("Took over the service manager's listener at %s", _place(sock))
        if len({_port(sock) for sock in self.sockets.values()}) > 1:
            raise StartError(
                cause="the service manager passes listeners with different ports: "
                + ", ".join(_place(sock) for sock in self.sockets.values()),
                remedy="Give each ListenStream= of the socket unit the same port",
            )

    def open(self) -> None:
        """Take the listeners that were kept, and open those that are missing.

        With port 0 they use the port of the previous run, or a free port.

        :raises StartError: when a listener cannot be opened.
        :raises OSError: ENODEV, when the device does not exist: call it again when it does; another
            error when the kernel refuses.
        """
        # A holder that is just ending still has the address.
        give_up = clock.now() + clock.CHECK_INTERVAL
        while True:
            try:
                return self.open_now()
            except StartError as error:
                if clock.now() >= give_up:
                    if self._group.port or self._elsewhere:
                        raise
                    LOG.info("%s; taking another port", error.cause)
                    return self._open_at_free_port()
            threads.sleep(clock.POLL)

    def open_now(self) -> None:
        """Open the listeners as :meth:`open` does, with one attempt at one port."""
        if not self._complete:
            if not self._taken:
                self._take_kept()
            self._listen_anew(self._group.port or self._state.port)
            if self._made or not self._exact:
                self._keep()
            self._complete = True
        self._confine(self._index())

    def follow(self) -> tuple[int, bool]:
        """Confine the listeners to the current device.

        :return: index of the device, and whether it was created again.
        :raises OSError: when the device does not exist, or the kernel refuses.
        """
        index, before = self._index(), self._confined
        if not self.sockets or index == before:
            return index, False
        self._confine(index)
        return index, before != NO_DEVICE

    def ensure_kept(self) -> None:
        """Check that the listeners are still kept, and keep them again if not.

        :raises HostError: when they cannot be kept.
        """
        kept = self._numbers(without=self._elsewhere)
        if kept:
            self._keeper.ensure_kept(kept)

    def leave(self) -> None:
        """Take the device down if no keeper outlives this process: it is process 1 of a container.

        Its holder ends with it, and no runtime passes descriptors on to systemd's store. The host
        would refuse guests; they repeat what a device that is down drops.
        """
        if os.getpid() == 1 and self._numbers(without=self._elsewhere):
            take_down(self._group.metadata_interface)

    def close_former(self) -> None:
        """Close the listeners of an earlier run that are not used.

        Until then they drop all packets: the flows of that run still lead guests to them, a closed
        port would refuse guests, and guests repeat what is dropped.
        """
        for sock in self._former:
            LOG.info(
                "Closed the listener of an earlier run at %s: the configured addresses are %s",
                *(_place(sock), ", ".join(self.places.values())),
            )
            sock.close()
        self._former.clear()

    def undo(self) -> None:
        """Stop keeping the listeners that this process has opened.

        :raises HostError: when the others cannot be kept.
        """
        if not self._made:
            return
        before = self._numbers(without=self._elsewhere | self._made)
        if before:
            self._keeper.keep(before)
        else:
            self._keeper.drop()

    def _take_kept(self) -> None:
        """Use the listeners that were kept."""
        kept = [adopt(fd) for fd in self._keeper.take()]
        kept.sort(key=lambda sock: int(sock.family))
        self._taken = bool(kept)
        used = [_place(sock) for sock in kept if self._use_kept(sock)]
        self._exact = self._taken and len(used) == len(kept)
        if used:
            LOG.info("Took over the listener of an earlier run: %s", ", ".join(used))

    def _use_kept(self, sock: Any) -> bool:
        """Use a listener that was kept, unless it does not fit; return whether it is used."""
        version = 6 if sock.family == socket.AF_INET6 else 4
        address, port = ip_address(sock.getsockname()[0]), _port(sock)
        fits = address == self._addresses.get(version) and port in self._ports()
        if version in self.sockets or not fits:
            silence(sock)
            self._former.append(sock)
            return False
        confine(sock, self._index())
        keep_room(sock)
        self.sockets[version] = sock
        return True

    def _ports(self) -> tuple[int, ...]:
        """Return the ports that a listener of an earlier run may have."""
        for sock in self.sockets.values():
            return (_port(sock),)
        return (self._group.port,) if self._group.port else (self._state.port, 0)

    def _listen_anew(self, port: int) -> None:
        """Open the listeners that are missing.

        :param port: port to use if no listener exists; 0 for a free one.
        """
        for version in sorted(self._addresses.keys() - self.sockets.keys()):
            number = next(map(_port, self.sockets.values()), port)
            address = self._addresses[version]
            self.sockets[version] = listen(self._group.metadata_interface, address, number)
            self._made.add(version)
        self.sockets = dict(sorted(self.sockets.items()))

    def _open_at_free_port(self) -> None:
        for attempt in range(1, FREE_TRIES + 1):
            for sock in self.sockets.values():
                sock.close()
            self.sockets.clear()
            try:
                self._listen_anew(0)
                break
            except StartError:
                if attempt == FREE_TRIES:
                    raise
        self._keep()
        self._complete = True
        self._confine(self._index())

    def _keep(self) -> None:
        kept = self._numbers(without=self._elsewhere)
        if not kept:
            self._keeper.drop()
            return
        try:
            self._keeper.keep(kept)
        except HostError as error:
            LOG.warning("The listener is not kept, and a restart will refuse guests: %s", error)

    def _numbers(self, *, without: Container[int]) -> list[int]:
        """Return the descriptors of the listeners, except of some versions."""
        return [sock.fileno() for version, sock in self.sockets.items() if version not in without]

    def _confine(self, index: int) -> None:
        for sock in self.sockets.values():
            confine(sock, index)
        self._confined = index

    def _index(self) -> int:
        return index_of(self._group.metadata_interface)


def _port(sock: Any) -> int:
    return int(sock.getsockname()[1])


def _place(sock: Any) -> str:
    host, port = sock.getsockname()[:2]
    return HttpHost(host, port).authority
