"""The holder of the guests' listeners, from the daemon's side; see :mod:`dfmeta.cmd.holder`."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dfmeta
from dfmeta.cmd import holder
from dfmeta.errors import HostError
from dfmeta.host.process import named_sockets
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_socket, original

LOG = logging.getLogger(__name__)

_socket = original("socket")

_PACKAGES = Path(dfmeta.__file__).parents[1]
"""The directory that has dfmeta."""

ANSWER_TIMEOUT = 2.0
START_TRIES = 100
START_PAUSE = 0.02
LET_GO = 0.5
"""Seconds within which a holder notices that its daemon has ended."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a holder keeps the listeners, and how those of an earlier run are recognised.

    :param address: address of the IPv4 listener; no other daemon in this network namespace has it.
    :param port: TCP port of the listener; 0: not known.
    :param inode: inode of its socket in the previous run; 0: not known.
    :param seconds: how long the listeners are kept without a daemon.
    :param device: network device that the holder sets down when it ends.
    """

    address: str
    port: int
    inode: int
    seconds: int
    device: str

    def knows(self, fds: Sequence[int]) -> bool:
        """Return whether *fds* contain the IPv4 listener of an earlier run."""
        return any(self._is_mine(fd) for fd in fds)

    def _is_mine(self, fd: int) -> bool:
        try:
            with _socket.socket(fileno=os.dup(fd)) as sock:
                address, port = sock.getsockname()[:2]
                return address == self.address and (
                    port == self.port or os.fstat(fd).st_ino == self.inode
                )
        except (OSError, ValueError):
            return False


class HolderKeeper:
    """A holder process of dfmeta's that keeps descriptors open; see :mod:`dfmeta.cmd.holder`.

    The holder's name is made from the bridge. The holder of another configuration or release may
    have another name; it is recognised by the address of its IPv4 listener.
    """

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self._terms = terms
        self._connection: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        """The holder process, if this process has started it."""

    def take(self) -> list[int]:
        """Return the listeners' descriptors from the holder; none when there is no holder."""
        fds = self._ask() if self._join() else []
        return fds or self._take_over()

    def keep(self, fds: Sequence[int]) -> None:
        """Pass *fds* to the holder, or start a holder with them.

        :param fds: descriptors of the listeners, IPv4's first.
        :raises HostError: when neither works.
        """
        if self._connection is not None or self._join():
            try:
                holder.send_fds(self._connection, holder.KEEP_ALL, fds)
                kept, _fds = self._receive()
            except OSError as error:
                LOG.debug("The holder does not answer: %s", error)
                kept = b""
            if kept == holder.KEEP_ALL:
                return
            self.release()
            # The holder of an earlier release keeps one descriptor only: another one replaces it.
            self._end()
            self._await_end()
        self._start(fds)

    def look_after(self, fds: Sequence[int]) -> None:
        """Start another holder if the current one has ended.

        :raises HostError: when no holder can be started.
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
            LOG.warning("The holder of the listeners has ended; starting another one")
            self.release()
        self.keep(fds)

    def drop(self) -> None:
        """End the holder, and holders of earlier runs with other names."""
        self._end()
        for other, fds in self._others():
            close_all(fds)
            other._end()
        if self._process is not None:
            self._process.wait(ANSWER_TIMEOUT)

    def _take_over(self) -> list[int]:
        for other, fds in self._others():
            try:
                self.keep(fds)
            except HostError as error:
                LOG.warning("The listener is not kept, and a restart will refuse guests: %s", error)
            other._end()
            return fds
        return []

    def _others(self) -> Iterator[tuple[HolderKeeper, list[int]]]:
        """Yield holders with other names that keep this daemon's listeners, and the descriptors."""
        for name in _without_daemon(self.name):
            other = HolderKeeper(name, self._terms)
            fds = other._ask() if other._connect() else []
            if self._terms.knows(fds):
                LOG.info("Another holder has the listener of an earlier run; ending it: %s", name)
                yield other, fds
            else:
                close_all(fds)
            other.release()

    def _ask(self) -> list[int]:
        """Return the descriptors that the connected holder has; none when it does not answer."""
        # The holder of an earlier release disconnects at the first message.
        for message in (holder.TAKE_ALL, holder.TAKE):
            if self._connection is None and not self._connect():
                break
            try:
                self._connection.send(message)
                _message, fds = self._receive()
            except OSError as error:
                LOG.debug("The holder does not answer: %s", error)
                fds = []
            if fds:
                return fds
            self.release()
        return []

    def _end(self) -> None:
        if self._connection is not None or self._connect():
            try:
                self._connection.send(holder.DROP)
                self._receive()
            except OSError as error:
                LOG.debug("The holder has ended: %s", error)
            self.release()

    def _await_end(self) -> None:
        """Wait until the name is free, or for some time: a holder may be ending."""
        path = f"@{holder.PREFIX}{self.name}"
        for _try in range(START_TRIES):
            if path not in {one.name for one in named_sockets()}:
                break
            threads.sleep(START_PAUSE)

    def _start(self, fds: Sequence[int]) -> None:
        numbers = ",".join(map(str, fds))
        terms = [str(self._terms.seconds), self._terms.device]
        # Without the packages of the environment, whose search takes longer than the rest.
        command = [sys.executable, "-P", "-S", "-m", holder.__name__, self.name, numbers, *terms]
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            command,
            env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        for _try in range(START_TRIES):
            if self._join():
                return
            threads.sleep(START_PAUSE)
        raise HostError(
            what="keeping the listener", device=self.name, cause="no holder has started"
        )

    def _join(self) -> bool:
        """Connect to the holder and send it the current terms."""
        if not self._connect():
            return False
        try:
            self._connection.send(holder.terms(self._terms.seconds, self._terms.device))
        except OSError as error:
            LOG.debug("The holder has ended: %s", error)
            self.release()
        return self._connection is not None

    def _connect(self) -> bool:
        connection = green_socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(holder.address(self.name))
            # Any user of the host may bind a name in the abstract namespace first, and would then
            # receive the listener, and with it guests' connections.
            ours = holder.allowed(connection)
        except OSError:
            ours = False
        if not ours:
            connection.close()
            return False
        self._connection = connection
        return True

    def _receive(self) -> tuple[bytes, list[int]]:
        with threads.Timeout(ANSWER_TIMEOUT, OSError("no answer in time")):
            while True:
                try:
                    return holder.receive(self._connection.fd)
                except BlockingIOError:
                    threads.sleep(0.001)

    def release(self) -> None:
        """Close the connection to the holder, which keeps the listeners."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _without_daemon(own: str) -> list[str]:
    """Return names of holders, except *own*, that no daemon uses.

    A holder with a connected daemon answers no other daemon.

    Trust: any user may have bound such a name; see :meth:`HolderKeeper._connect`.
    """
    give_up = clock.now() + LET_GO
    while True:
        path = f"@{holder.PREFIX}"
        found = [
            (one.name.removeprefix(path), one.listens)
            for one in named_sockets()
            if one.name.startswith(path) and one.name != f"{path}{own}"
        ]
        used = {name for name, listens in found if not listens}
        if not used or clock.now() >= give_up:
            return sorted({name for name, _listens in found} - used)
        threads.sleep(START_PAUSE)
