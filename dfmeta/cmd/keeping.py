"""Where the guests' listener is kept over a restart: with systemd, or with a holder of our own."""

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
"""In systemd's store. What a socket unit passes has another name: that is not ours to replace."""


class Keeper(Protocol):
    """Keeps a listener while no daemon runs."""

    def take(self) -> int | None:
        """Descriptor of the listener of an earlier run, or None."""
        ...

    def keep(self, fd: int) -> None:
        """Keep *fd*, in place of what was kept before."""
        ...

    def look_after(self, fd: int) -> None:
        """See that *fd* is still kept."""
        ...

    def drop(self) -> None:
        """Keep nothing any more."""
        ...


def keeper(group: Any, state: State, environ: Mapping[str, str]) -> Keeper:
    """Give systemd's store where there is one, else a holder of our own.

    :param group: the options ``[df_metadata]``.
    :param state: what the run before has left.
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
    """Tell systemd something (sd_notify(3)); nothing where there is no systemd."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + path[1:] if path.startswith("@") else path)
            socket.send_fds(sock, [message.encode()], list(fds))
        except OSError as error:
            LOG.warning("systemd does not take %s: %s", message.splitlines()[0], error)


class SystemdKeeper:
    """systemd's file descriptor store: needs FileDescriptorStoreMax= in the unit.

    :param held: the holder of a daemon that ran without systemd.
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
        """Store *fd*."""
        self.drop()
        notify(self._environ, f"FDSTORE=1\nFDNAME={FD_NAME}", (fd,))

    def look_after(self, fd: int) -> None:
        """Nothing can take it from systemd."""

    def drop(self) -> None:
        """Have systemd close what it has stored."""
        notify(self._environ, f"FDSTOREREMOVE=1\nFDNAME={FD_NAME}")
