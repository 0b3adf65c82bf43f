"""One daemon for each bridge."""

from __future__ import annotations

import hashlib
import socket
from ipaddress import ip_address
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
    return f"dfmeta-agent {bridge_id(ovsdb_connection, bridge)}"


def bridge_id(ovsdb_connection: str, bridge: str) -> str:
    """Name a bridge of a database in 32 characters, the same however the address is spelt.

    :param ovsdb_connection: the option. A path is followed through symbolic links; a host's name
        stays a name, since a name server may be away.
    """
    kind, _, where = ovsdb_connection.partition(":")
    if kind == "unix":
        where = str(Path(where).resolve())
    else:
        host, _, port = where.rpartition(":")
        where = f"{_host(host)}:{int(port)}"
    # Hashed: the kernel takes 107 bytes.
    return hashlib.sha256(f"{where} {bridge}".encode(errors="surrogateescape")).hexdigest()[:32]


def _host(spelt: str) -> str:
    try:
        address = ip_address(spelt.strip("[]"))
    except ValueError:
        return spelt.lower()
    return f"[{address}]" if address.version == 6 else str(address)
