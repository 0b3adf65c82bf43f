"""Keep the guests' listeners open while no daemon runs.

When the last process closes a listening socket, the kernel refuses guests and resets the
connections in its queue; a guest whose data source is refused at boot starts without keys. So if
systemd does not keep the sockets (in its file descriptor store), a small process does: the holder.
It has only the descriptors, reads nothing from guests, and passes them to the next daemon. When no
daemon has connected for some time, the holder ends. It takes the device down first: the host would
refuse guests that connect to a port without a listener, and a device that is down drops their
packets, so that they repeat them until the next daemon has brought the device up.

Run as ``python -P -S -m dfmeta.cmd.holder NAME FD[,FD...] SECONDS DEVICE``; it imports only the
standard library. Times are of the monotonic clock, which stands still while the host is suspended.
"""

import array
import contextlib
import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence

TAKE = b"take all"
"""Requests the descriptors."""
KEEP = b"keep all"
"""With descriptors, in place of all that are held."""
DROP = b"drop"
WAIT = b"wait"
"""With its arguments: ``wait SECONDS DEVICE``."""
MAX_MESSAGE = 64
MAX_FDS = 8
"""Descriptors that come with a message."""
PREFIX = "dfmeta-listener "
"""Beginning of a holder's name in the abstract namespace."""
_CREDENTIALS = struct.Struct("3i")
_IFREQ = struct.Struct("16sH22x")
"""struct ifreq with ifr_flags (netdevice(7))."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1


class HeldListeners:
    """The listeners, and how long they are kept without a daemon.

    :param fds: descriptors of the listeners, IPv4's first; empty once they are dropped.
    :param seconds: seconds to keep them without a daemon.
    :param device: the device that guests' packets arrive on.
    """

    # No dataclass: its import takes as long as all others.
    def __init__(self, fds: list[int], seconds: float, device: str) -> None:
        self.fds, self.seconds, self.device = fds, seconds, device

    def replace(self, fds: list[int]) -> None:
        """Close the descriptors and hold *fds*."""
        for fd in self.fds:
            os.close(fd)
        self.fds = fds


def address(name: str) -> str:
    """Return a holder's address in the abstract namespace (unix(7)), which leaves no file."""
    return f"\0{PREFIX}{name}"[:107]


def terms(seconds: int, device: str) -> bytes:
    """Return the message that sets the seconds to wait without a daemon, and the device."""
    return WAIT + f" {seconds} {device}".encode()


def allowed(connection: socket.socket) -> bool:
    """Whether the peer is root or our own user: the namespace itself has no permissions."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return uid in (0, os.geteuid())


def send_fds(connection: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send *message* with descriptors (SCM_RIGHTS)."""
    rights = array.array("i", fds)
    connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptors that came with it."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    message, ancillary, _flags, _address = connection.recvmsg(MAX_MESSAGE, space)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def serve(name: str, held: HeldListeners) -> int:
    """Hold listeners until they are dropped or no daemon connects in time.

    :return: the exit status.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.bind(address(name))
        except OSError:
            return 1  # another holder exists already
        server.listen(4)
        end = time.monotonic() + held.seconds
        while held.fds:
            server.settimeout(max(0.0, end - time.monotonic()))
            try:
                connection, _peer = server.accept()
            except (TimeoutError, BlockingIOError):
                take_down(held.device)
                # Before the name is released: a daemon without a holder opens its own listener.
                held.replace([])
                break
            with connection:
                if allowed(connection):
                    # One daemon at a time: it keeps its connection while it runs.
                    _attend(connection, held)
                    end = time.monotonic() + held.seconds
    return 0


def take_down(device: str) -> None:
    """Take *device* down; ignore a device that does not exist or that we may not change."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        request = _IFREQ.pack(os.fsencode(device), 0)
        name, flags = _IFREQ.unpack(fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _IFREQ.pack(name, flags & ~_IFF_UP))


def _attend(connection: socket.socket, held: HeldListeners) -> None:
    """Serve one daemon until it disconnects or drops the listeners."""
    with contextlib.suppress(OSError, ValueError):
        while held.fds:
            message, given = receive(connection)
            if message == KEEP and given:
                held.replace(given)
                connection.send(message)
                continue
            for fd in given:
                os.close(fd)
            if message == TAKE:
                send_fds(connection, TAKE, held.fds)
            elif message == DROP:
                held.replace([])
            elif message.startswith(WAIT):
                _word, seconds, held.device = message.decode().split(" ", 2)
                held.seconds = float(seconds)
            else:
                return


if __name__ == "__main__":
    _program, _name, _fds, _seconds, _device = sys.argv
    _held = HeldListeners(list(map(int, _fds.split(","))), float(_seconds), _device)
    sys.exit(serve(_name, _held))
