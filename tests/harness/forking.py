"""A process that forks a child for each order, and what orders one.

Python's imports are most of the CPU time of a start. A process that has imported everything serves
orders: each is a message with the descriptors of the child, over a connection of its own or one
that the process was started with. An order's first descriptor gets the child's pid and, once the
child has ended, its exit status. A child whose connection is closed is killed.

This module imports little: a client of ``tests/harness/forked_python.py`` is to start fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

_MESSAGE = 1 << 17
_DESCRIPTORS = 8
"""The most that an order has."""
_Socket = socket.socket
"""The system's own: eventlet may replace it later."""


class Become(Protocol):
    """Makes a forked process the child that was ordered, to its end."""

    def __call__(self, order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
        """:param descriptors: those of the order, which are the child's own now."""


def order(
    connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int]
) -> tuple[int, socket.socket]:
    """Have a child forked, with this process' priority.

    :return: its pid, and what gets its exit status as text, negative after a signal.
    :raises ValueError: the process that forks has ended.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    message = {**message, "priority": os.getpriority(os.PRIO_PROCESS, 0)}
    with theirs:
        socket.send_fds(connection, [json.dumps(message).encode()], [theirs.fileno(), *descriptors])
    return int(ours.recv(16)), ours


def listener(path: str) -> socket.socket:
    """A socket for clients, which may connect before orders are taken."""
    # A client that finds the path also finds that it is listened at.
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"{path}.new")
    made.listen(64)
    os.rename(f"{path}.new", path)
    return made


class Server:
    """Forks the children of all connections."""

    def __init__(self, become: Become) -> None:
        """To be made before eventlet replaces parts of the standard library."""
        # A child begins as any program, also where the shell of this process ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._become, self._fork, self._poll = become, os.fork, select.poll()
        self._listener: socket.socket | None = None
        self._connections: dict[int, socket.socket] = {}
        self._children: dict[int, _Child] = {}

    def listen(self, listener: socket.socket) -> None:
        """Accept connections, for ever."""
        self._listener = listener
        self._poll.register(listener, select.POLLIN)

    def add(self, connection: socket.socket) -> None:
        """Take a connection's orders."""
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def serve(self) -> None:
        """Fork for each order, and report each end, until no order can come any more."""
        end_hub()
        while self._listener is not None or self._connections:
            for descriptor, _event in self._poll.poll():
                if descriptor in self._children:
                    self._poll.unregister(descriptor)
                    self._children.pop(descriptor).tell_end()
                elif descriptor in self._connections:
                    self._take(self._connections[descriptor])
                elif self._listener is not None:
                    # accept() would return a socket of eventlet's; this has no type.
                    accepted: int = getattr(self._listener, "_accept")()[0]  # noqa: B009
                    self.add(_Socket(fileno=accepted))

    def _take(self, connection: socket.socket) -> None:
        message, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):
            message, descriptors, _flags, _address = socket.recv_fds(
                connection, _MESSAGE, _DESCRIPTORS
            )
        if not message:
            self._leave(connection)
            return
        content = json.loads(message)
        ended = _Socket(fileno=descriptors[0])
        pid = self._fork()
        if pid == 0:
            self._close()
            ended.close()
            os.setpriority(os.PRIO_PROCESS, 0, content["priority"])
            self._become(content, descriptors[1:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        child = _Child(pid, ended, connection.fileno())
        self._children[child.descriptor] = child
        self._poll.register(child.descriptor, select.POLLIN)
        with contextlib.suppress(OSError):
            ended.send(str(pid).encode())

    def _leave(self, connection: socket.socket) -> None:
        """The client has ended, and with it its children."""
        for child in self._children.values():
            if child.connection == connection.fileno():
                child.kill()
        self._poll.unregister(connection)
        del self._connections[connection.fileno()]
        connection.close()

    def _close(self) -> None:
        """Close all that a child inherits."""
        for connection in self._connections.values():
            connection.close()
        for child in self._children.values():
            child.close()
        if self._listener is not None:
            self._listener.close()


class _Child:
    """A running child, and the socket that gets its exit status."""

    def __init__(self, pid: int, ended: socket.socket, connection: int) -> None:
        """:param connection: that of its client."""
        self.connection = connection
        self._pid, self._ended = pid, ended
        self.descriptor = os.pidfd_open(pid)
        """Readable once the child has ended (pidfd_open(2))."""

    def tell_end(self) -> None:
        """Send the exit status of the child, which has ended."""
        result = os.waitid(os.P_PIDFD, self.descriptor, os.WEXITED)
        status = 0 if result is None else result.si_status
        if result is not None and result.si_code != os.CLD_EXITED:
            status = -status
        with contextlib.suppress(OSError):
            self._ended.send(str(status).encode())
        self.close()

    def kill(self) -> None:
        """Kill it, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        self._ended.close()


def end_hub() -> None:
    """End the hub of eventlet that an import has begun: each child begins its own.

    Forks share the epoll instance of their parent (epoll(7)): each would wake for the events of
    all, and read nothing.
    """
    if hubs := sys.modules.get("eventlet.hubs"):
        hubs.get_hub().poll.close()
        hubs.use_hub()
