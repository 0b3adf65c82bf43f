"""Stand-ins for systemd: socket units, whose listeners each new process gets, and its messages."""

import select
import socket
from collections.abc import Iterable
from pathlib import Path

from tests.harness.closing import Closing
from tests.harness.netns import Namespace

_FIRST = 3
_IP_FREEBIND = 15
_ASIDE = 100
WEDGE = """
import signal

def wedge(*_signal):
    while True:
        pass

signal.signal(signal.SIGUSR1, wedge)
"""
"""A sitecustomize.py, which Python imports at its start: SIGUSR1 lets a hub run nothing more."""


class Activator(Closing):
    """Listeners that outlive processes; a context manager that closes them.

    :param places: FileDescriptorName= and ListenStream=, an address and a port, of each listener.
        Several of one unit have one name. FreeBind= is set: no device needs the address.
    """

    def __init__(self, namespace: Namespace, places: Iterable[tuple[str, tuple[str, int]]]) -> None:
        self.listeners: list[socket.socket] = []
        self.names: list[str] = []
        for name, place in places:
            family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
            sock = namespace.open_socket(family)
            self.listeners.append(sock)
            self.names.append(name)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            sock.bind(place)
            sock.listen(4096)

    def close(self) -> None:
        """Close the listeners."""
        for sock in self.listeners:
            sock.close()

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the file descriptors that the new process has to inherit."""
        return tuple(sock.fileno() for sock in self.listeners)

    @property
    def prefix(self) -> list[str]:
        """Return the words to put before a program's command line; they exec the program."""
        # First move all descriptors away, because one may have the number that another needs.
        away = " ".join(f"{_ASIDE + n}<&{fd}" for n, fd in enumerate(self.fds))
        moves = [(_FIRST + n, _ASIDE + n) for n in range(len(self.fds))]
        present = " ".join(f"{to}<&{aside} {aside}<&-" for to, aside in moves)
        variables = f"LISTEN_FDS={len(self.fds)} LISTEN_FDNAMES={':'.join(self.names)}"
        script = f'exec {away}; exec {present}; export LISTEN_PID=$$ {variables}; exec "$@"'
        return ["bash", "-c", script, "activator"]


class Manager(Closing):
    """What is behind NOTIFY_SOCKET; it keeps what it is given, as FileDescriptorStoreMax= does."""

    def __init__(self, path: Path) -> None:
        """Bind the socket."""
        self.path = path
        self.messages: list[str] = []
        self.stored: list[int] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.setblocking(False)

    def heard(self, message: str) -> bool:
        """Whether it was told that by now."""
        try:
            while True:
                data, fds, _flags, _address = socket.recv_fds(self._sock, 4096, 4)
                self.messages.append(data.decode())
                self.stored += fds
        except BlockingIOError:
            return message in self.messages

    def silent(self, seconds: float) -> bool:
        """Whether it is told nothing for so many seconds."""
        self.heard("")
        return not select.select([self._sock], [], [], seconds)[0]

    def close(self) -> None:
        """Close the socket, and all that it was given."""
        for fd in self.stored:
            socket.close(fd)
        self._sock.close()
