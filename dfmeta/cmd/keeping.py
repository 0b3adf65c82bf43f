"""Where the guests' listener is kept over a restart: with systemd, or with a holder of our own."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import eventlet
import eventlet.green.socket as green_socket

from dfmeta.cmd.activation import passed
from dfmeta.exceptions import HostError
from dfmeta.proxy import holder

LOG = logging.getLogger(__name__)

FD_NAME = "dfmeta-guests"
"""In systemd's store. What a socket unit passes has another name: that is not ours to replace."""
ANSWER_TIMEOUT = 2.0
START_TRIES = 100
START_PAUSE = 0.02


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


def keeper(ovsdb_connection: str, bridge: str, environ: Mapping[str, str]) -> Keeper:
    """Give systemd's store where there is one, else a holder of our own."""
    if environ.get("NOTIFY_SOCKET"):
        return SystemdKeeper(environ)
    return HolderKeeper(hashlib.sha256(f"{ovsdb_connection} {bridge}".encode()).hexdigest()[:32])


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
    """systemd's file descriptor store: needs FileDescriptorStoreMax= in the unit."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def take(self) -> int | None:
        """Find the stored descriptor among those that systemd passed (sd_listen_fds(3))."""
        found = passed(self._environ, FD_NAME)
        for spare in found[:-1]:
            os.close(spare)
        return found[-1] if found else None

    def keep(self, fd: int) -> None:
        """Store *fd*."""
        self.drop()
        notify(self._environ, f"FDSTORE=1\nFDNAME={FD_NAME}", (fd,))

    def look_after(self, fd: int) -> None:
        """Nothing can take it from systemd."""

    def drop(self) -> None:
        """Have systemd close what it has stored."""
        notify(self._environ, f"FDSTOREREMOVE=1\nFDNAME={FD_NAME}")


class HolderKeeper:
    """A process of our own that has the descriptor open; see :mod:`dfmeta.proxy.holder`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        """The holder, if this process has started it."""

    def take(self) -> int | None:
        """Ask the holder, if there is one."""
        if not self._connect():
            return None
        try:
            self._connection.send(holder.TAKE)
            _message, fd = self._receive()
        except OSError as error:
            LOG.debug("The holder does not answer: %s", error)
            self.release()
            return None
        return fd

    def keep(self, fd: int) -> None:
        """Give *fd* to the holder, or start one with it.

        :raises HostError: when neither works.
        """
        if self._connection is not None or self._connect():
            try:
                holder.send_fd(self._connection, holder.KEEP, fd)
                self._receive()
            except OSError as error:
                LOG.debug("The holder does not answer: %s", error)
                self.release()
            else:
                return
        self._start(fd)

    def look_after(self, fd: int) -> None:
        """Start another holder when ours is gone.

        :raises HostError: when that does not work.
        """
        if self._connection is not None:
            try:
                self._connection.setblocking(False)
                gone = self._connection.fd.recv(1) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if not gone:
                return
            LOG.warning("The listener's holder is gone; starting another")
            self.release()
        self.keep(fd)

    def drop(self) -> None:
        """End the holder."""
        if self._connection is not None or self._connect():
            try:
                self._connection.send(holder.DROP)
                self._receive()
            except OSError as error:
                LOG.debug("The holder has ended: %s", error)
            self.release()
        if self._process is not None:
            self._process.wait(ANSWER_TIMEOUT)

    def _start(self, fd: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            [sys.executable, "-m", "dfmeta.proxy.holder", self.name, str(fd)],
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        for _try in range(START_TRIES):
            if self._connect():
                return
            eventlet.sleep(START_PAUSE)
        raise HostError(what="keeping the listener", device=self.name, cause="no holder started")

    def _connect(self) -> bool:
        connection = green_socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(holder.address(self.name))
            # Any user of the host may take a name in the abstract namespace before we do, and would
            # be given the listener, and with it guests' connections.
            ours = holder.allowed(connection)
        except OSError:
            ours = False
        if not ours:
            connection.close()
            return False
        self._connection = connection
        return True

    def _receive(self) -> tuple[bytes, int | None]:
        with eventlet.Timeout(ANSWER_TIMEOUT, OSError("no answer in time")):
            while True:
                try:
                    return holder.receive(self._connection.fd)
                except BlockingIOError:
                    eventlet.sleep(0.001)

    def release(self) -> None:
        """Let go of the holder, which keeps what it has."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
