"""Connections to the bridge: dial its management socket, or accept its connections."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import os_ken.base.app_manager  # noqa: F401  # the controller cannot be imported before it
from os_ken.controller.controller import datapath_connection_factory
from os_ken.exception import OFPUnknownVersion

from dfmeta.errors import StartError
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_socket
from dfmeta.runtime.throttle import FIRST_PAUSE, LogThrottle

LOG = logging.getLogger(__name__)


class Refusals:
    """Logs that a bridge refuses OpenFlow 1.3, which another attempt does not change.

    :param bridge: name of the bridge.
    :param clock: monotonic seconds.
    """

    def __init__(self, bridge: str, *, clock: Callable[[], float] = clock.now) -> None:
        self._bridge = bridge
        self._throttle = LogThrottle(clock=clock)

    def note(self) -> None:
        """Note one refusal, and log it unless a line was logged a short time ago."""
        if self._throttle.take() is not None:
            LOG.error(
                "The bridge %s does not speak OpenFlow 1.3, so dfmeta cannot install flows. Enable "
                "it: ovs-vsctl add Bridge %s protocols OpenFlow13",
                self._bridge,
                self._bridge,
            )


class _BridgeSocket:
    """A unix socket that ignores os-ken's TCP_NODELAY, which fails there with EOPNOTSUPP."""

    def __init__(self) -> None:
        self._sock = green_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Each request of a guest calls it twice: 0.7 us less for a call than by __getattr__.
        self.fileno: Callable[[], int] = self._sock.fileno

    def setsockopt(self, level: int, *args: Any) -> None:
        """Set an option of the socket; TCP options are ignored."""
        if level != socket.IPPROTO_TCP:
            self._sock.setsockopt(level, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _connect(path: Path) -> _BridgeSocket:
    sock = _BridgeSocket()
    try:
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        raise
    return sock


def dial(path: Path, refusals: Refusals) -> None:
    """Keep a connection to the management socket *path*; run this in a separate thread.

    The connection needs no Controller row in OVSDB, so no ``set-controller`` of another program can
    remove it. There is only one connection at a time: the socket's backlog is small.
    """
    missed = False
    while True:
        try:
            sock = _connect(path)
        except OSError as error:
            if not missed:
                LOG.info("Waiting for the management socket %s: %s", path, error.strerror)
            missed = True
        else:
            missed = False
            _serve(sock, str(path), refusals)
        threads.sleep(FIRST_PAUSE)


def listen(host: str, port: int) -> Any:
    """Open the listener for a bridge with the controller *host*:*port* in its configuration.

    :raises StartError: when the daemon cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return threads.listen((host, port), family=family)
    except OSError as error:
        raise StartError(
            cause=f"cannot listen on [df_metadata] openflow_connection = listen:{host}:{port}: "
            f"{error.strerror}",
            remedy="Stop the program that uses it, or set another address and port of this host",
        ) from error


def accept(listener: Any, refusals: Refusals) -> None:
    """Accept and serve connections; run this in a separate thread.

    Any user of the host may connect and send anything; an invalid message ends that connection
    only.
    """
    missed = False
    while True:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if not missed:
                LOG.warning(
                    "Cannot accept the bridge's connection: %s; trying again. Check the daemon's "
                    "limits on file descriptors and memory",
                    error.strerror,
                )
            missed = True
            threads.sleep(FIRST_PAUSE)
            continue
        missed = False
        threads.spawn_detached(_serve, sock, address, refusals)


def _serve(sock: Any, address: Any, refusals: Refusals) -> None:
    try:
        datapath_connection_factory(sock, address)
    except OFPUnknownVersion:
        # OpenFlow 1.1, which os-ken does not know, is refused like the other versions.
        refusals.note()
