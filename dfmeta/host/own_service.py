"""Whether a server answers this host itself at the metadata address, before dfmeta takes it.

Trust: that something answers is a sign for the operator; nothing is sent to it or read from it.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

from dfmeta.flows.pipeline import METADATA_PORT
from dfmeta.host.device import held_addresses
from dfmeta.runtime.threads import original

_socket: Final = original("socket")
"""Not patched by eventlet: no call here waits."""


class OwnService:
    """A connection that begins at the start and is looked at when the start is complete.

    The start waits for no answer. One that comes after the host has got the address itself is
    dropped by the kernel.

    :param address: IPv4 address of the service.
    """

    def __init__(self, address: str) -> None:
        self._sock: Any = None
        with contextlib.suppress(OSError):
            if address in map(str, held_addresses()):
                return
            self._sock = _socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            self._sock.connect_ex((address, METADATA_PORT))

    def take(self) -> bool:
        """Return whether a server has answered, and end the connection."""
        sock, self._sock = self._sock, None
        if sock is None:
            return False
        with sock, contextlib.suppress(OSError):
            sock.getpeername()  # fails unless the connection is there
            return True
        return False
