"""Keeps the guests' listener open while no daemon runs.

A listening socket that nobody has open refuses guests and resets those that wait in its queue; a
guest whose data source is refused at boot comes up without keys. So where systemd does not keep
the socket (its file descriptor store), a process of a few lines does: it has the descriptor and
nothing else, reads nothing from guests, and gives it to the next daemon.

Run as ``python -m dfmeta.proxy.holder NAME FD``; nothing but the standard library is imported.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import sys

TAKE = b"take"
KEEP = b"keep"
DROP = b"drop"
MAX_MESSAGE = 16
_CREDENTIALS = struct.Struct("3i")


def address(name: str) -> str:
    """Address of a holder in the abstract namespace (unix(7)): no file can be left behind."""
    return f"\0dfmeta-listener {name}"[:107]


def allowed(connection: socket.socket) -> bool:
    """Whether the peer is of our own user, or root: the namespace itself has no permissions."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return uid in (0, os.geteuid())


def send_fd(connection: socket.socket, message: bytes, fd: int) -> None:
    """Send *message* with a descriptor (SCM_RIGHTS)."""
    rights = array.array("i", [fd])
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive(connection: socket.socket) -> tuple[bytes, int | None]:
    """Receive a message and the descriptor that came with it, if one did."""
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    message, ancillary, _flags, _address = connection.recvmsg(MAX_MESSAGE, space)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(data[: fds.itemsize])
            return message, fds[0]
    return message, None


def serve(name: str, fd: int) -> int:
    """Hold *fd* until it is told to drop it; gives the exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.bind(address(name))
        except OSError:
            return 1  # there is one already
        server.listen(4)
        held: int | None = fd
        while held is not None:
            connection, _peer = server.accept()
            with connection:
                # One daemon at a time: it keeps its connection for as long as it lives.
                held = _attend(connection, held) if allowed(connection) else held
    return 0


def _attend(connection: socket.socket, held: int) -> int | None:
    """Do what one daemon asks; give back what is held then, None when it was to be dropped."""
    while True:
        try:
            message, given = receive(connection)
            if message == TAKE:
                send_fd(connection, TAKE, held)
            elif message == KEEP and given is not None:
                os.close(held)
                held = given
                connection.send(KEEP)
            elif message == DROP:
                os.close(held)
                return None
            else:
                return held
        except OSError:
            return held


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], int(sys.argv[2])))
