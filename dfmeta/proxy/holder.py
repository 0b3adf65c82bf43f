"""Keeps the guests' listener open while no daemon runs.

A listening socket that nobody has open refuses guests and resets those that wait in its queue; a
guest whose data source is refused at boot comes up without keys. So where systemd does not keep
the socket (its file descriptor store), a process of a few lines does: it has the descriptor and
nothing else, reads nothing from guests, and gives it to the next daemon. When none has come for
some time, the holder ends. It takes the device down first: the host would refuse guests that
connect to a port without a listener, and a device that is down drops what they send, so that they
send it again until the next daemon has brought the device up.

Run as ``python -m dfmeta.proxy.holder NAME FD SECONDS DEVICE``; nothing but the standard library
is imported. Times are of the monotonic clock, which stands still while the host is suspended.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import sys
import time
from dataclasses import dataclass

TAKE = b"take"
KEEP = b"keep"
DROP = b"drop"
WAIT = b"wait"
"""With what is to be waited: ``wait SECONDS DEVICE``."""
MAX_MESSAGE = 64
PREFIX = "dfmeta-listener "
"""Of a holder's name in the abstract namespace."""
_CREDENTIALS = struct.Struct("3i")
_IFREQ = struct.Struct("16sH22x")
"""struct ifreq with ifr_flags (netdevice(7))."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1


@dataclass(slots=True)
class Held:
    """A listener, and how long it is kept without a daemon."""

    fd: int | None
    """None once it is dropped."""
    seconds: float
    device: str
    """The device that guests come in on."""


def address(name: str) -> str:
    """Address of a holder in the abstract namespace (unix(7)): no file can be left behind."""
    return f"\0{PREFIX}{name}"[:107]


def terms(seconds: int, device: str) -> bytes:
    """Message that says how many seconds to wait without a daemon, and which device goes down."""
    return WAIT + f" {seconds} {device}".encode()


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


def serve(name: str, held: Held) -> int:
    """Hold a listener until it is dropped, or no daemon has come in time; gives the exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.bind(address(name))
        except OSError:
            return 1  # there is one already
        server.listen(4)
        end = time.monotonic() + held.seconds
        while held.fd is not None:
            server.settimeout(max(0.0, end - time.monotonic()))
            try:
                connection, _peer = server.accept()
            except (TimeoutError, BlockingIOError):
                take_down(held.device)
                # Before the name goes: a daemon that finds no holder can open its own listener.
                os.close(held.fd)
                break
            with connection:
                if allowed(connection):
                    # One daemon at a time: it keeps its connection for as long as it lives.
                    _attend(connection, held)
                    end = time.monotonic() + held.seconds
    return 0


def take_down(device: str) -> None:
    """Take *device* down; one that is gone, or that is another user's to change, stays as it is."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        request = _IFREQ.pack(os.fsencode(device), 0)
        name, flags = _IFREQ.unpack(fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _IFREQ.pack(name, flags & ~_IFF_UP))


def _attend(connection: socket.socket, held: Held) -> None:
    """Do what one daemon asks, until it goes or has the listener dropped."""
    with contextlib.suppress(OSError, ValueError):
        while held.fd is not None:
            message, given = receive(connection)
            if message == TAKE:
                send_fd(connection, TAKE, held.fd)
            elif message == KEEP and given is not None:
                os.close(held.fd)
                held.fd = given
                connection.send(KEEP)
            elif message == DROP:
                os.close(held.fd)
                held.fd = None
            elif message.startswith(WAIT):
                _word, seconds, held.device = message.decode().split(" ", 2)
                held.seconds = float(seconds)
            else:
                return


if __name__ == "__main__":
    _program, _name, _fd, _seconds, _device = sys.argv
    sys.exit(serve(_name, Held(int(_fd), float(_seconds), _device)))
