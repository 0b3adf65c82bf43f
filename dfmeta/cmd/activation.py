"""Listeners that a service manager opened before the process was there (sd_listen_fds(3)).

They outlive every process: whoever connects while none runs waits in their queue. Trust: the
environment is the manager's word. Where a listener stands is still held against the
configuration, since a unit and a file are edited by hand, each on its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import eventlet.green.socket as green_socket
from eventlet.patcher import original

from dfmeta.exceptions import StartError

FIRST_FD = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""
ADMIN_OPTION = "[df_metadata] admin_listen"
GUEST_OPTIONS = "[df_metadata] host_ip:port"
"""Which options say where a host's listeners stand."""


def passed(environ: Mapping[str, str], name: str) -> list[int]:
    """Return the descriptors that were passed to this very process under *name*, in their order."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(environ.get("LISTEN_FDS", "0"))
    return [FIRST_FD + n for n, one in enumerate(names[:count]) if one == name]


def activated(
    name: str, option: str, *, place: str, environ: Mapping[str, str] = os.environ
) -> Any:
    """Return the listener that was passed under *name*; None where there is none.

    :param option: which option says where to listen, such as ``[store] guest_listen``.
    :param place: its value, HOST:PORT; port 0 is any. Empty: there is to be no such listener.
    :raises StartError: when it is no TCP listener, or not at *place*.
    """
    found = passed(environ, name)
    if not found:
        return None
    for spare in found[1:]:
        os.close(spare)
    os.set_inheritable(found[0], False)
    # The family is the descriptor's: eventlet's own would have another one in its place.
    sock = green_socket.socket(original("socket").socket(fileno=found[0]))
    if not _listens(sock) or not _stands_at(sock, place):
        where = _where(sock)
        sock.close()
        raise StartError(
            cause=f"the service manager passes {name} at {where}, and {option} = {place!r}",
            remedy=f"Give ListenStream= of {name}.socket and {option} the same address and port, "
            "or disable that unit",
        )
    return sock


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
    if sock.family == socket.AF_INET6:
        return f"[{name[0]}]:{name[1]}"
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else (str(name) or "no address")
