"""A stand-in for systemd's socket units: it opens listeners and passes them to each new process."""

import socket
from collections.abc import Iterable

from tests.harness.closing import Closing
from tests.harness.netns import Namespace

_FIRST = 3
_IP_FREEBIND = 15
_ASIDE = 100


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
