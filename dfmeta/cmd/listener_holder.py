"""The holder of the guests' listeners, from the daemon's side; see :mod:`dfmeta.cmd.holder`."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dfmeta
from dfmeta.cmd import holder
from dfmeta.errors import HostError
from dfmeta.host.process import named_sockets
from dfmeta.runtime import threads
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
    """How a holder keeps the listeners.

    :param seconds: how long the listeners are kept without a daemon.
    :param device: network device that the holder sets down when it ends.
    """

    seconds: int
    device: str


class HolderKeeper:
    """A holder process of dfmeta's that keeps descriptors open; see :mod:`dfmeta.cmd.holder`."""

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self._terms = terms
        self._connection: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        """The holder process, if this process has started it."""

    def take(self) -> list[int]:
        """Return the listeners' descriptors from the holder; none when there is no holder."""
        return self._ask() if self._join() else []

    def keep(self, fds: Sequence[int]) -> None:
        """Pass *fds* to the holder, or start a holder with them.

        :param fds: descriptors of the listeners, IPv4's first.
        :raises HostError: when neither works.
        """
        if self._connection is not None or self._join():
            try:
                holder.send_fds(self._connection, holder.KEEP, fds)
                kept, _fds = self._receive()
            except OSError as error:
                LOG.debug("The holder does not answer: %s", error)
                kept = b""
            if kept == holder.KEEP:
                return
            self.release()
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
        """End the holder."""
        self._end()
        if self._process is not None:
            self._process.wait(ANSWER_TIMEOUT)

    def _ask(self) -> list[int]:
        """Return the descriptors that the connected holder has; none when it does not answer."""
        if self._connection is None:
            return []
        try:
            self._connection.send(holder.TAKE)
            _message, fds = self._receive()
        except OSError as error:
            LOG.debug("The holder does not answer: %s", error)
            fds = []
        if not fds:
            self.release()
        return fds

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
