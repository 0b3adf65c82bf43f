"""Listeners that a service manager opened before the process started (sd_listen_fds(3)).

They outlive every process: a connection that arrives while no process runs waits in their queue.
Trust: the environment comes from the service manager. A listener's address is still compared with
the configuration, since unit and configuration file are edited by hand, separately.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from dfmeta.errors import StartError
from dfmeta.model import HttpHost
from dfmeta.runtime.threads import green_socket, original

FIRST_FD = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""
ADMIN_OPTION = "[df_metadata] admin_listen"
GUEST_OPTIONS = {4: "[df_metadata] host_ip:port", 6: "[df_metadata] host_ip6:port"}
"""Version of IP → the options that set the address of a host's listener for guests."""


def passed(environ: Mapping[str, str], name: str) -> list[int]:
    """Return the descriptors that were passed to this process under *name*, in their order."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(environ.get("LISTEN_FDS", "0"))
    return [FIRST_FD + n for n, one in enumerate(names[:count]) if one == name]


def activated(
    name: str, option: str, *, place: str, environ: Mapping[str, str] = os.environ
) -> Any:
    """Return the listener that was passed under *name*; None when there is none.

    :param option: the option with the listener's address, such as ``[store] guest_listen``.
    :param place: value of the option, HOST:PORT; port 0 is any port. Empty: no listener is wanted.
    :raises StartError: when it is not a TCP listener, or does not listen at *place*.
    """
    found = passed(environ, name)
    if not found:
        return None
    for spare in found[1:]:
        os.close(spare)
    sock = green(found[0])
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
    there: dict[int, Any] = {}
    for fd in passed(environ, name):
        sock = green(fd)
        version = 6 if sock.family == socket.AF_INET6 else 4
        if version in there:
            sock.close()
            continue
        _check(sock, name, GUEST_OPTIONS[version], places[version])
        there[version] = sock
    return there


def green(fd: int) -> Any:
    """Return the socket of a descriptor that another process has opened, for eventlet."""
    os.set_inheritable(fd, False)
    # socket.socket reads the family from the descriptor; eventlet's class would assume another one.
    return green_socket.socket(original("socket").socket(fileno=fd))


def _check(sock: Any, name: str, option: str, place: str) -> None:
    if _listens(sock) and _stands_at(sock, place):
        return
    where = _where(sock)
    sock.close()
    raise StartError(
        cause=f"the service manager passes {name} at {where}, and {option} = {place!r}",
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
        known = green_socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return (sock.family, address) in {(family, to[0]) for family, _k, _p, _n, to in known}


def _where(sock: Any) -> str:
    name = sock.getsockname()
    if isinstance(name, tuple):
        return HttpHost(str(name[0]), name[1]).authority
    return str(name) or "no address"
