"""Keeps the guests' listener during a restart, in systemd's store or in a holder process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from dfmeta.cmd.activation import passed
from dfmeta.cmd.holding import HolderKeeper, Terms
from dfmeta.state import State
from dfmeta.wiring.lock import bridge_id

LOG = logging.getLogger(__name__)

FD_NAME = "dfmeta-guests"
"""Name in systemd's store. Listeners of socket units have other names and must not be replaced."""


class Keeper(Protocol):
    """Keeps a listener while no daemon runs."""

    def take(self) -> int | None:
        """Return the descriptor of the listener of an earlier run, or None."""
        ...

    def keep(self, fd: int) -> None:
        """Keep *fd*, in place of any descriptor that was kept before."""
        ...

    def look_after(self, fd: int) -> None:
        """Check that *fd* is still kept, and keep it again if not."""
        ...

    def drop(self) -> None:
        """Stop keeping the listener."""
        ...


def keeper(group: Any, state: State, environ: Mapping[str, str]) -> Keeper:
    """Return a keeper with systemd's store if systemd runs the process, else with a holder process.

    :param group: the options ``[df_metadata]``.
    :param state: state of the previous run.
    """
    held = HolderKeeper(
        bridge_id(group.ovsdb_connection, group.integration_bridge),
        Terms(
            group.host_ip,
            group.port or state.port,
            state.listener,
            seconds=group.listener_keep,
            device=group.metadata_interface,
        ),
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

    :param held: keeper with the holder of an earlier daemon that ran without systemd.
    """

    def __init__(self, environ: Mapping[str, str], held: HolderKeeper) -> None:
        self._environ = environ
        self._held = held

    def take(self) -> int | None:
        """Find the stored descriptor among those that systemd passed (sd_listen_fds(3))."""
        found = passed(self._environ, FD_NAME)
        for spare in found[:-1]:
            os.close(spare)
        if found:
            return found[-1]
        fd = self._held.take()
        if fd is not None:
            self.keep(fd)
            self._held.drop()
        return fd

    def keep(self, fd: int) -> None:
        """Put *fd* into systemd's store, in place of an earlier descriptor."""
        self.drop()
        notify(self._environ, f"FDSTORE=1\nFDNAME={FD_NAME}", (fd,))

    def look_after(self, fd: int) -> None:
        """Do nothing: systemd does not lose a stored descriptor."""

    def drop(self) -> None:
        """Make systemd close the stored descriptor."""
        notify(self._environ, f"FDSTOREREMOVE=1\nFDNAME={FD_NAME}")
