"""The daemon's own engine behind haproxy: requests that haproxy does not answer itself.

haproxy makes a connection for each such request, to a listener that has no name, and begins it with
a header of the PROXY protocol, version 2. The header has the guest's key as the source address, and
as its unique id the time at which the request arrived at haproxy: the time that a request has
waited there, for a Nova that does not answer, counts towards hold_timeout.

Source: "The PROXY protocol", versions 1 and 2, sections 2.2 and 2.2.7 (HAProxy, 2020). Trust: only
haproxy can connect, through a descriptor of the listener's place in the file system (O_PATH,
open(2)), from which the name is removed. A connection counts only if the kernel names a process of
haproxy as its peer as well (SO_PEERCRED, unix(7)). The rest of the header is haproxy's.
"""

import os
import re
import socket
import struct
import tempfile
from collections.abc import Callable, Container
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final, NamedTuple

from dfmeta.errors import HaproxyError, StartError
from dfmeta.http import connection, exchange, server
from dfmeta.http.limits import BACKLOG, Limits
from dfmeta.identity.registry import Claim
from dfmeta.proxy.application import guest_service
from dfmeta.proxy.engines.haproxy.config import LAST
from dfmeta.runtime import clock
from dfmeta.runtime.threads import green_socket, wait_for_io

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_START: Final = struct.Struct("!12sBBH")
_PROXY: Final = 0x21
_LENGTHS: Final = {0x11: 4, 0x21: 16}
"""TCP over IPv4 and IPv6 → bytes of an address."""
_PORTS: Final = struct.Struct("!HH")
_TLV: Final = struct.Struct("!BH")
_UNIQUE_ID: Final = 0x05
_CREDENTIALS: Final = struct.Struct("3i")
_SOCKET: Final = "socket"
_ID: Final = re.compile(r"([0-9]{1,12})\.([0-9]{3})(.*)", re.ASCII)


class Entrance(NamedTuple):
    """A listener, and the way to it for another process."""

    listener: Any
    descriptor: int
    """Of the listener's place (O_PATH): who inherits N connects to ``/proc/self/fd/N``."""


def listen(*folders: Path | str) -> Entrance:
    """Return a listener that only heirs of a descriptor can connect to.

    :param folders: where its name may be for a moment, in a folder that only this user can enter;
        the first that is possible is taken.
    :raises StartError: when none is.
    """
    faults = []
    for folder in folders:
        try:
            with tempfile.TemporaryDirectory(prefix="handover-", dir=folder) as private:
                return _bound(Path(private))
        except OSError as error:
            faults.append(f"{folder}: {error.strerror}")
    raise StartError(
        cause=f"no socket for haproxy can be made: {', '.join(faults)}",
        remedy="Check that the directory [df_metadata] state_path exists and is writable",
    )


def _bound(private: Path) -> Entrance:
    """Return a listener in a folder that only this user can enter.

    The folder and the name in it are to be removed; the listener and the descriptor stay.
    """
    sock = green_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(private, os.O_PATH | os.O_DIRECTORY)
    try:
        # A path of its own may be longer than an address can be (unix(7)).
        sock.bind(f"/proc/self/fd/{folder}/{_SOCKET}")
        # haproxy runs as another user.
        (private / _SOCKET).chmod(0o666)
        sock.listen(BACKLOG)
        return Entrance(sock, os.open(private / _SOCKET, os.O_PATH))
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)


def read_header(start: bytes, rest: bytes, *, now: float) -> server.Introduction:
    """Return the guest whose request a connection has; haproxy has counted those that it knows.

    :param start: the first bytes, of :func:`rest_length`'s size.
    :param now: seconds since the epoch.
    :raises HaproxyError: when it is not a header as haproxy sends it.
    """
    signature, command, family, length = _START.unpack(start)
    size = _LENGTHS.get(family, 0)
    if signature != SIGNATURE or command != _PROXY or not size or length != len(rest):
        raise HaproxyError(cause="a connection of it does not begin with a PROXY header")
    addresses = 2 * size + _PORTS.size
    if length < addresses:
        raise HaproxyError(cause="a PROXY header of it is too short")
    raw = rest[:size]
    port, _local_port = _PORTS.unpack_from(rest, 2 * size)
    address = IPv4Address(raw) if size == 4 else IPv6Address(raw)
    match = _ID.fullmatch(_unique_id(rest[addresses:]))
    if match is None:
        raise HaproxyError(cause="a PROXY header of it has no time")
    seconds, milliseconds, guest = match.groups()
    waited = now - int(seconds) - int(milliseconds) / 1000
    return server.Introduction(address, port, waited=max(waited, 0.0), counted=bool(guest))


def rest_length(start: bytes) -> int:
    """Return the number of bytes that follow the first ones."""
    return int(_START.unpack(start)[3])


class HandedOver(connection.ServerConnection[Claim]):
    """The connection of haproxy for one request of a guest."""

    def _render(self, status: str, headers: connection.Headers, *, minor: int, keep: bool) -> bytes:
        if not keep:
            # haproxy does not pass "Connection: close" on to its rules.
            headers = [*headers, (LAST, "true")]
        return super()._render(status, headers, minor=minor, keep=keep)


def handover_server(
    listener: Any,
    claims: server.ClaimSource[Claim],
    application: exchange.Handler[Claim],
    *,
    peers: Callable[[], Container[int]],
    hold_timeout: float,
    limits: Limits,
) -> server.HttpServer[Claim]:
    """Return the server of the requests that haproxy hands over.

    :param listener: of :func:`listen`.
    :param peers: return the process ids of haproxy.
    """
    return server.HttpServer(
        [listener],
        claims,
        guest_service(application, limits=limits, hold_timeout=hold_timeout),
        connect=HandedOver,
        introduce=lambda client: _introduced(client, peers()),
        name="requests from haproxy",
    )


def _introduced(client: Any, peers: Container[int]) -> server.Introduction:
    """Read the header of a connection.

    :raises OSError: when it is not haproxy's, or ends.
    :raises HaproxyError: as :func:`read_header`.
    """
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process = _CREDENTIALS.unpack(raw)[0]
    if process not in peers:
        raise PermissionError(f"process {process} is not haproxy")
    until = clock.now() + clock.ANSWER_TIMEOUT
    start = _exactly(client, _START.size, until)
    rest = _exactly(client, rest_length(start), until)
    return read_header(start, rest, now=clock.wall())


def _unique_id(tlvs: bytes) -> str:
    """Return the unique id among the type-length-value fields of a header; empty if none."""
    while len(tlvs) >= _TLV.size:
        kind, length = _TLV.unpack_from(tlvs)
        value, tlvs = tlvs[_TLV.size : _TLV.size + length], tlvs[_TLV.size + length :]
        if kind == _UNIQUE_ID:
            return value.decode("ascii", "replace")
    return ""


def _exactly(client: Any, size: int, until: float) -> bytes:
    """Return that many bytes.

    :raises OSError: when the connection ends, or they do not come in time.
    """
    data = bytearray()
    while len(data) < size:
        try:
            piece = client.recv(size - len(data))
        except BlockingIOError:
            left = max(until - clock.now(), 0.001)
            wait_for_io(client, read=True, timeout=left, timeout_exc=TimeoutError)
            continue
        if not piece:
            raise ConnectionResetError("it ended early")
        data += piece
    return bytes(data)
