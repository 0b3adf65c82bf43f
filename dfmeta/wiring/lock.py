"""The lock that allows one daemon for each bridge."""

from __future__ import annotations

import hashlib
import socket
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType

from dfmeta.errors import AlreadyRunningError


class BridgeLock:
    """A lock that a daemon holds while it serves a bridge; it is freed when the process ends.

    It is a name in the abstract namespace (unix(7)): a killed daemon cannot leave a file behind,
    and the name does not depend on state_path, which may differ between two daemons.
    """

    def __init__(self, ovsdb_connection: str, bridge: str) -> None:
        self._bridge = bridge
        self._name = lock_name(ovsdb_connection, bridge)
        self._sock: socket.socket | None = None

    def __enter__(self) -> BridgeLock:
        """Take the lock.

        :raises AlreadyRunningError: when another process holds it.
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
        """Release the lock."""
        if self._sock is not None:
            self._sock.close()


def lock_name(ovsdb_connection: str, bridge: str) -> str:
    """Return the name of the lock on a bridge, in the abstract namespace."""
    return f"dfmeta-agent {bridge_id(ovsdb_connection, bridge)}"


def bridge_id(ovsdb_connection: str, bridge: str) -> str:
    """Return an id of 32 characters for a bridge, the same for every spelling of its address.

    :param ovsdb_connection: the option. Symbolic links in a path are resolved; a host name is not,
        since a name server may be unavailable.
    """
    kind, _, where = ovsdb_connection.partition(":")
    if kind == "unix":
        where = str(Path(where).resolve())
    else:
        host, _, port = where.rpartition(":")
        where = f"{_host(host)}:{int(port)}"
    # A hash, since the kernel limits the name to 107 bytes.
    return hashlib.sha256(f"{where} {bridge}".encode(errors="surrogateescape")).hexdigest()[:32]


def _host(spelt: str) -> str:
    try:
        address = ip_address(spelt.strip("[]"))
    except ValueError:
        return spelt.lower()
    return f"[{address}]" if address.version == 6 else str(address)
