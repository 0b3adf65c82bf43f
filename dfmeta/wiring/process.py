"""What a process is to others: the lock of its bridge, and its last line.

A program that ends with an error writes one line to stderr. The traceback of an unexpected error is
for developers: a command prints it if :data:`DEBUG` is set, and a daemon always, since the error
may not happen again (:mod:`dfmeta.wiring.logs`).
"""

import hashlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import dfmeta
from dfmeta import errors

LOG = logging.getLogger(__name__)

PROG: Final = "dfmeta"
DEBUG: Final = "DFMETA_DEBUG"
"""Environment variable; a value other than 0 and the empty one turns tracebacks on."""
INTERRUPTED: Final = 130
"""Exit status after an interrupt: 128 + SIGINT, like that of shells."""


def print_error(prog: str, error: errors.DfmetaError) -> None:
    """Write an error's line to stderr."""
    sys.stderr.write(f"{prog}: {error.line}\n")


def print_unexpected(prog: str, error: BaseException) -> None:
    """Write the line of an unexpected error to stderr, after a traceback if :data:`DEBUG` is
    set."""
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error)
    print_error(prog, unexpected_error(error))


def unexpected_error(error: BaseException) -> errors.DfmetaError:
    """Return the error to report for an unexpected exception."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return errors.RefusedBySystemError(what=os.fsdecode(error.filename), cause=error.strerror)
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(dfmeta.__file__).parent)
    inside = [frame for frame in frames if frame.filename.startswith(root)] or list(frames)
    place = "an unknown place"
    if inside:
        place = f"{os.path.relpath(inside[-1].filename, Path(root).parent)}:{inside[-1].lineno}"
    return errors.UnexpectedError(kind=type(error).__name__, place=place, cause=error)


def escape_unencodable() -> None:
    """Make stdout and stderr escape characters that the locale's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        # An object that replaces a stream may not have this method.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def warn(errors: Iterable[errors.DfmetaError]) -> None:
    """Log errors that do not stop the program, one line each."""
    for error in errors:
        LOG.warning("%s", error.line)


class BridgeLock:
    """A lock that a daemon holds while it serves a bridge; it is freed when the process ends.

    It is a name in the abstract namespace (unix(7)): a killed daemon cannot leave a file behind,
    and the name does not depend on state_path, which may differ between two daemons.
    """

    def __init__(self, ovsdb_connection: str, bridge: str) -> None:
        self._bridge = bridge
        self._name = lock_name(ovsdb_connection, bridge)
        self._sock: socket.socket | None = None

    def __enter__(self) -> Self:
        """Take the lock.

        :raises AlreadyRunningError: when another process holds it.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(f"\0{self._name}")
        except OSError as error:
            sock.close()
            raise errors.AlreadyRunningError(bridge=self._bridge, lock=f"@{self._name}") from error
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
