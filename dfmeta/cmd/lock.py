"""One daemon for each bridge."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from types import TracebackType

from dfmeta.exceptions import AlreadyRunningError


class BridgeLock:
    """Held while a daemon serves a bridge; gone with the process, however it ends.

    A name in the abstract namespace (unix(7)): no file can be left behind by a killed daemon, and
    it does not depend on state_path, which two daemons may have set differently.
    """

    def __init__(self, ovsdb_connection: str, bridge: str) -> None:
        self._bridge = bridge
        self._name = lock_name(ovsdb_connection, bridge)
        self._sock: socket.socket | None = None

    def __enter__(self) -> BridgeLock:
        """Take the lock.

        :raises AlreadyRunningError: when another process has it.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(f"\0{self._name}")
        except OSError as error:
            sock.close()
            raise AlreadyRunningError(bridge=self._bridge, lock=f"@{self._name}") from error
        self._sock = sock
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        if self._sock is not None:
            self._sock.close()


def lock_name(ovsdb_connection: str, bridge: str) -> str:
    """Name of the lock on a bridge, in the abstract namespace."""
    kind, _, path = ovsdb_connection.partition(":")
    where = str(Path(path).resolve()) if kind == "unix" else path
    # Hashed: the kernel takes 107 bytes.
    name = hashlib.sha256(f"{where} {bridge}".encode(errors="surrogateescape")).hexdigest()
    return f"dfmeta-agent {name[:32]}"
