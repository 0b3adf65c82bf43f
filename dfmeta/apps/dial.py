"""Connections to the bridge: dial its management socket, or wait to be dialled."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import eventlet
import eventlet.green.socket as green_socket
import os_ken.base.app_manager  # noqa: F401  # the controller cannot be imported before it
from os_ken.controller.controller import datapath_connection_factory

LOG = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 0.25


class _BridgeSocket:
    """A unix socket that takes os-ken's TCP_NODELAY for done: EOPNOTSUPP there."""

    def __init__(self) -> None:
        self._sock = green_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def setsockopt(self, level: int, *args: Any) -> None:
        """Set an option, unless it is one of TCP's."""
        if level != socket.IPPROTO_TCP:
            self._sock.setsockopt(level, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def dial(path: Path) -> None:
    """Keep a connection to *path* for ever; run it in a thread of its own.

    No Controller row is needed for it, so that nobody's ``set-controller`` can take it away. One
    connection only: the socket's backlog is small.
    """
    pause, missed = FIRST_PAUSE, False
    while True:
        sock = _BridgeSocket()
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            if not missed:
                LOG.info("Waiting for %s: %s", path, error.strerror)
            missed = True
            sock.close()
            eventlet.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        pause, missed = FIRST_PAUSE, False
        datapath_connection_factory(sock, str(path))
        eventlet.sleep(FIRST_PAUSE)


def listen(host: str, port: int) -> None:
    """Serve a bridge whose operator has pointed a controller at *host*:*port*."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = eventlet.listen((host, port), family=family)
    while True:
        sock, address = listener.accept()
        eventlet.spawn_n(datapath_connection_factory, sock, address)
