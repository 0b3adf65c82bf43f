"""Listeners that outlive the process: a connection that arrives meanwhile waits in their queue.

A service manager opens them before the process starts (sd_listen_fds(3)), or a keeper has those
that the process has opened: systemd's file descriptor store, or a holder process of dfmeta's.

Trust: the environment comes from the service manager. A listener's address is still compared with
the configuration, since unit and configuration file are edited by hand, separately.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dfmeta
from dfmeta import errors, model
from dfmeta.cmd import holder
from dfmeta.host.process import named_sockets
from dfmeta.http.sockets import adopt
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_socket, original
from dfmeta.wiring.process import bridge_id

LOG = logging.getLogger(__name__)

_socket = original("socket")

FIRST_FD = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""
ADMIN_OPTION: Final = "[df_metadata] admin_listen"
GUEST_OPTIONS: Final = {4: "[df_metadata] host_ip:port", 6: "[df_metadata] host_ip6:port"}
"""Version of IP → the options that set the address of a host's listener for guests."""
FD_NAMES: Final = {socket.AF_INET: "dfmeta-guests", socket.AF_INET6: "dfmeta-guests6"}
"""Names in systemd's store. Listeners of socket units have other names and must not be replaced."""
_PACKAGES: Final = Path(dfmeta.__file__).parents[1]
"""The directory that has dfmeta."""


def passed(environ: Mapping[str, str], name: str) -> list[int]:
    """Return the descriptors that were passed to this process under *name*, in their order."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(environ.get("LISTEN_FDS", "0"))
    return [FIRST_FD + n for n, fd_name in enumerate(names[:count]) if fd_name == name]


def activated(
    name: str, option: str, *, place: str, environ: Mapping[str, str] = os.environ
) -> Any:
    """Return the listener that was passed under *name*; None when there is none.

    :param option: the option with the listener's address, such as ``[store] guest_listen``.
    :param place: value of the option, HOST:PORT; port 0 is any port. Empty: no listener is wanted.
    :raises StartError: when it is not a TCP listener, or does not listen at *place*.
    """
    fds = passed(environ, name)
    if not fds:
        return None
    close_all(fds[1:])
    sock = adopt(fds[0])
    _check(sock, name, option, place)
    return sock


def activated_guests(
    name: str, places: Mapping[int, str], *, environ: Mapping[str, str] = os.environ
) -> dict[int, Any]:
    """Return the listeners that were passed under *name*: version of IP → listening socket.

    :param places: version of IP → configured place, HOST:PORT, as in :func:`activated`.
    :raises StartError: when one is not a TCP listener, or does not listen at the place of its
        version of IP.
    """
    listeners: dict[int, Any] = {}
    for fd in passed(environ, name):
        sock = adopt(fd)
        version = 6 if sock.family == socket.AF_INET6 else 4
        if version in listeners:
            sock.close()
            continue
        _check(sock, name, GUEST_OPTIONS[version], places[version])
        listeners[version] = sock
    return listeners


def _check(sock: Any, name: str, option: str, place: str) -> None:
    if _listens(sock) and _stands_at(sock, place):
        return
    address = sock.getsockname()
    if isinstance(address, tuple):
        address = model.HttpHost(str(address[0]), address[1]).authority
    sock.close()
    raise errors.StartError(
        cause=f"the service manager passes {name} at {address or 'no address'}, "
        f"and {option} = {place!r}",
        remedy=f"Give ListenStream= of {name}.socket and {option} the same address and port, "
        "or disable that unit",
    )


def _listens(sock: Any) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _stands_at(sock: Any, place: str) -> bool:
    host, _, port = place.rpartition(":")
    address, number = sock.getsockname()[:2]
    if not place or int(port) not in (0, number):
        return False
    try:
        infos = green_socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return (sock.family, address) in {(family, to[0]) for family, _k, _p, _n, to in infos}


def notify(environ: Mapping[str, str], message: str, fds: tuple[int, ...] = ()) -> bool:
    """Send *message* to systemd (sd_notify(3)); return whether systemd has it, or there is none."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + path[1:] if path.startswith("@") else path)
            socket.send_fds(sock, [message.encode()], list(fds))
        except OSError as error:
            LOG.warning("systemd does not accept %s: %s", message.splitlines()[0], error)
            return False
    return True


def make_keeper(group: Any, environ: Mapping[str, str]) -> Keeper:
    """Return a keeper with systemd's store if systemd runs the process, else with a holder process.

    :param group: the options ``[df_metadata]``.
    """
    held = HolderKeeper(
        bridge_id(group.ovsdb_connection, group.integration_bridge),
        HolderTerms(seconds=group.listener_keep, device=group.metadata_interface),
    )
    return SystemdKeeper(environ, held) if environ.get("NOTIFY_SOCKET") else held


class SystemdKeeper:
    """systemd's file descriptor store: needs FileDescriptorStoreMax= in the unit.

    It has the methods of :class:`HolderKeeper`.

    :param held: keeper with the holder of an earlier daemon that ran without systemd.
    """

    def __init__(self, environ: Mapping[str, str], held: HolderKeeper) -> None:
        self._environ = environ
        self._held = held

    def take(self) -> Sequence[int]:
        """Return the stored descriptors among those that systemd passed (sd_listen_fds(3))."""
        passed_fds = [passed(self._environ, name) for name in FD_NAMES.values()]
        for fds in passed_fds:
            close_all(fds[:-1])
        stored = [fds[-1] for fds in passed_fds if fds]
        if stored:
            return stored
        held = self._held.take()
        if held:
            self.keep(held)
            self._held.drop()
        return held

    def keep(self, fds: Sequence[int]) -> None:
        """Put *fds* into systemd's store, in place of earlier descriptors."""
        self.drop()
        for fd in fds:
            with _socket.socket(fileno=os.dup(fd)) as sock:
                name = FD_NAMES[sock.family]
            notify(self._environ, f"FDSTORE=1\nFDNAME={name}", (fd,))

    def ensure_kept(self, fds: Sequence[int]) -> None:
        """Do nothing: systemd does not lose a stored descriptor."""

    def drop(self) -> None:
        """Make systemd close the stored descriptors."""
        for name in FD_NAMES.values():
            notify(self._environ, f"FDSTOREREMOVE=1\nFDNAME={name}")


@dataclass(frozen=True, slots=True)
class HolderTerms:
    """How a holder keeps the listeners.

    :param seconds: how long the listeners are kept without a daemon.
    :param device: network device that the holder sets down when it ends.
    """

    seconds: int
    device: str


class HolderKeeper:
    """A holder process of dfmeta's that keeps descriptors open; see :mod:`dfmeta.cmd.holder`."""

    def __init__(self, name: str, terms: HolderTerms) -> None:
        self.name = name
        self._terms = terms
        self._connection: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        """The holder process, if this process has started it."""

    def take(self) -> Sequence[int]:
        """Return the listeners' descriptors from the holder; none when there is no holder."""
        fds = self._request(holder.TAKE)[1] if self._join() else []
        if not fds:
            self.release()
        return fds

    def keep(self, fds: Sequence[int]) -> None:
        """Pass *fds* to the holder, or start a holder with them.

        :param fds: descriptors of the listeners, IPv4's first.
        :raises HostError: when neither works.
        """
        if self._connection is not None or self._join():
            if self._request(holder.KEEP, fds)[0] == holder.KEEP:
                return
            self.release()
            self._end()
            self._await_end()
        self._start(fds)

    def ensure_kept(self, fds: Sequence[int]) -> None:
        """Start another holder if the current one has ended.

        :raises HostError: when no holder can be started.
        """
        if self._connection is not None:
            try:
                self._connection.setblocking(False)
                gone = self._connection.fd.recv(1) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if not gone:
                return
            LOG.warning("The holder of the listeners has ended; starting another one")
            self.release()
        self.keep(fds)

    def drop(self) -> None:
        """End the holder."""
        self._end()
        if self._process is not None:
            self._process.wait(clock.ANSWER_TIMEOUT)

    def release(self) -> None:
        """Close the connection to the holder, which keeps the listeners."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _end(self) -> None:
        if self._connection is not None or self._connect():
            self._request(holder.DROP)
            self.release()

    def _await_end(self) -> None:
        """Wait until the name is free, or for some time: a holder may be ending."""
        path = f"@{holder.PREFIX}{self.name}"
        threads.wait_until(
            lambda: path not in {sock.name for sock in named_sockets()}, clock.ANSWER_TIMEOUT
        )

    def _start(self, fds: Sequence[int]) -> None:
        numbers = ",".join(map(str, fds))
        terms = [str(self._terms.seconds), self._terms.device]
        # Without the packages of the environment, whose search takes longer than the rest.
        command = [sys.executable, "-P", "-S", "-m", holder.__name__, self.name, numbers, *terms]
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            command,
            env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        if not threads.wait_until(self._join, clock.ANSWER_TIMEOUT):
            raise errors.HostError(
                what="keeping the listener", device=self.name, cause="no holder has started"
            )

    def _join(self) -> bool:
        """Connect to the holder and send it the current terms."""
        terms = holder.terms(self._terms.seconds, self._terms.device)
        return self._connect() and self._send(terms)

    def _connect(self) -> bool:
        connection = green_socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(holder.address(self.name))
            # Any user of the host may bind a name in the abstract namespace first, and would then
            # receive the listener, and with it guests' connections.
            allowed = holder.allowed(connection)
        except OSError:
            allowed = False
        if not allowed:
            connection.close()
            return False
        self._connection = connection
        return True

    def _send(self, message: bytes, fds: Sequence[int] = ()) -> bool:
        """Send a message; return whether the holder is there."""
        try:
            if fds:
                holder.send_fds(self._connection, message, fds)
            else:
                self._connection.send(message)
        except OSError as error:
            LOG.debug("The holder has ended: %s", error)
            self.release()
            return False
        return True

    def _request(self, message: bytes, fds: Sequence[int] = ()) -> tuple[bytes, list[int]]:
        """Send a message and return the reply; empty when there is none in time."""
        if not self._send(message, fds):
            return b"", []
        try:
            with threads.Timeout(clock.ANSWER_TIMEOUT, OSError("no answer in time")):
                while True:
                    try:
                        return holder.receive(self._connection.fd)
                    except BlockingIOError:
                        threads.wait_for_io(self._connection.fd, read=True)
        except OSError as error:
            LOG.debug("The holder does not answer: %s", error)
            self.release()
            return b"", []


Keeper = HolderKeeper | SystemdKeeper
"""Keeps listeners while no daemon runs."""


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
