"""Keeps the guests' listeners during a restart, in systemd's store or in a holder process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from dfmeta.cmd.activation import passed
from dfmeta.cmd.listener_holder import HolderKeeper, Terms, close_all
from dfmeta.runtime.threads import original
from dfmeta.wiring.process import bridge_id

LOG = logging.getLogger(__name__)

_socket = original("socket")

FD_NAMES = {socket.AF_INET: "dfmeta-guests", socket.AF_INET6: "dfmeta-guests6"}
"""Names in systemd's store. Listeners of socket units have other names and must not be replaced."""


def keeper(group: Any, environ: Mapping[str, str]) -> Keeper:
    """Return a keeper with systemd's store if systemd runs the process, else with a holder process.

    :param group: the options ``[df_metadata]``.
    """
    held = HolderKeeper(
        bridge_id(group.ovsdb_connection, group.integration_bridge),
        Terms(seconds=group.listener_keep, device=group.metadata_interface),
    )
    return SystemdKeeper(environ, held) if environ.get("NOTIFY_SOCKET") else held


def notify(environ: Mapping[str, str], message: str, fds: tuple[int, ...] = ()) -> None:
    """Send *message* to systemd (sd_notify(3)); do nothing without systemd."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + path[1:] if path.startswith("@") else path)
            socket.send_fds(sock, [message.encode()], list(fds))
        except OSError as error:
            LOG.warning("systemd does not accept %s: %s", message.splitlines()[0], error)


class SystemdKeeper:
    """systemd's file descriptor store: needs FileDescriptorStoreMax= in the unit.

    It has the methods of :class:`~dfmeta.cmd.listener_holder.HolderKeeper`.

    :param held: keeper with the holder of an earlier daemon that ran without systemd.
    """

    def __init__(self, environ: Mapping[str, str], held: HolderKeeper) -> None:
        self._environ = environ
        self._held = held

    def take(self) -> Sequence[int]:
        """Find the stored descriptors among those that systemd passed (sd_listen_fds(3))."""
        found = [passed(self._environ, name) for name in FD_NAMES.values()]
        for fds in found:
            close_all(fds[:-1])
        stored = [fds[-1] for fds in found if fds]
        if stored:
            return stored
        held = self._held.take()
        if held:
            self.keep(held)
            self._held.drop()
        return held

    def keep(self, fds: Sequence[int]) -> None:
        """Put *fds* into systemd's store, in place of earlier descriptors."""
        self.drop()
        for fd in fds:
            with _socket.socket(fileno=os.dup(fd)) as sock:
                name = FD_NAMES[sock.family]
            notify(self._environ, f"FDSTORE=1\nFDNAME={name}", (fd,))

    def look_after(self, fds: Sequence[int]) -> None:
        """Do nothing: systemd does not lose a stored descriptor."""

    def drop(self) -> None:
        """Make systemd close the stored descriptors."""
        for name in FD_NAMES.values():
            notify(self._environ, f"FDSTOREREMOVE=1\nFDNAME={name}")


Keeper = HolderKeeper | SystemdKeeper
"""Keeps listeners while no daemon runs."""
