"""The guests' sockets: a listener that hears one device alone, and connections that leave by it."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import logging
import os
import socket
import struct
import termios
from typing import Any

import eventlet.green.socket as green_socket
from eventlet.patcher import original

from dfmeta.exceptions import StartError
from dfmeta.proxy.limits import BACKLOG, RECEIVE_BUFFER, SEND_BUFFER, SYN_ACK_RETRIES

LOG = logging.getLogger(__name__)

_select = original("select")
_LIBC = ctypes.CDLL(None, use_errno=True)
_SOCKADDR_SIZE = 16

IP_FREEBIND = 15
"""ip(7); Python has no name for it."""
SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
"""asm-generic/socket.h; Python has no names for them."""
_BPF = struct.Struct("=HBBI")
_FPROG = struct.Struct("@HP")
"""struct sock_filter and struct sock_fprog of linux/filter.h."""
_BPF_LD_ABS, _BPF_JEQ, _BPF_RET = 0x20, 0x15, 0x06
_SKF_AD_IFINDEX = 0xFFFFF000 + 8
"""Linux, networking/filter: the number of the device that a packet came in on."""
_WHOLE = 0xFFFFFFFF
NO_DEVICE = 0
"""A number that no device has (rtnetlink(7))."""
FDS_MAX = 253
"""Descriptors that one message may carry (Linux, SCM_MAX_FD)."""


def listen(device: str, address: str, port: int) -> Any:
    """Open the guests' listener on *device* alone.

    That is what makes the peer's address an identity: nothing that comes in on another card
    reaches it, whatever source it claims. See :func:`confine` for how.

    :param port: 0 for a free one.
    :raises StartError: when the address or the port cannot be had.
    """
    sock = green_socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Before the device has its address and is up: nothing is to come in that is refused.
        sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        sock.bind((address, port))
        confine(sock, socket.if_nametoindex(device))
        keep_room(sock)
    except OSError as error:
        sock.close()
        raise StartError(
            cause=f"{address}:{port} on {device} cannot be listened on: {error.strerror}",
            remedy="Stop what uses it, or give another [df_metadata] port",
        ) from error
    return sock


def listen_to_all(host: str, port: int) -> Any:
    """Open a listener for guests that any of the host's networks may lead here.

    :param host: a name or an address, without brackets; ``::`` is all addresses of both families.
    :raises OSError: when the name is unknown, or the address or the port cannot be had.
    """
    found = green_socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _kind, _protocol, _name, address = found[0]
    sock = green_socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Whatever net.ipv6.bindv6only says (ipv6(7)).
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        keep_room(sock)
    except OSError:
        sock.close()
        raise
    return sock


def keep_room(sock: Any, *, receive: int = RECEIVE_BUFFER) -> None:
    """Have *sock* listen, with as much room as the host allows now, and give up soon what is half
    open; see :data:`SYN_ACK_RETRIES`. One that listens already is given the room anew.

    Connections inherit what else is set here (tcp(7), socket(7)).

    :param receive: bytes that the kernel keeps of what a client sends and is not read yet.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_ACK_RETRIES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.listen(BACKLOG)


def confine(sock: Any, index: int) -> None:
    """Have the kernel drop whatever comes for the listener *sock* on another device.

    A filter of socket(7), SO_ATTACH_FILTER, and not SO_BINDTODEVICE: what a bound listener has
    in the making is bound for good to the device that was there at the SYN, and when that is
    made anew the guest's next segment is answered with a reset. A filter is replaced, and what
    it drops is sent again. Connections inherit it, until they are bound as they are accepted.

    :param index: the device's number; a device that is made anew has another.
    :raises OSError: when the kernel refuses.
    """
    program = b"".join(
        _BPF.pack(*instruction)
        for instruction in (
            (_BPF_LD_ABS, 0, 0, _SKF_AD_IFINDEX),
            (_BPF_JEQ, 0, 1, index),
            (_BPF_RET, 0, 0, _WHOLE),
            (_BPF_RET, 0, 0, 0),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    whole = _FPROG.pack(len(program) // _BPF.size, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, whole)


def confined(sock: Any) -> bool:
    """Whether *sock* has a filter already; nobody but :func:`confine` puts one there."""
    length = ctypes.c_uint32(0)
    # With no room for it, the kernel tells how many instructions there are (SO_GET_FILTER).
    if _LIBC.getsockopt(
        sock.fileno(), socket.SOL_SOCKET, SO_ATTACH_FILTER, None, ctypes.byref(length)
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return length.value > 0


def silence(sock: Any) -> int:
    """Have a listener that is nobody's yet hear nothing, until :func:`confine` names a device.

    What its queue has may have come in anywhere, and claim to be any guest: it is reset.

    :return: how many connections that were.
    :raises OSError: when the kernel refuses.
    """
    confine(sock, NO_DEVICE)
    # What was half open is not completed any more: its last segment meets the filter.
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            stranger, _peer = sock.fd.accept()
            abort(stranger)
            stranger.close()
            count += 1
    return count


def abort(sock: Any) -> None:
    """Reset a connection and discard what is still in its send queue.

    ``shutdown`` would have the kernel send, and repeat, the rest of an answer to whoever has the
    port now. connect(2) with AF_UNSPEC dissolves the association at once.
    """
    nobody = ctypes.create_string_buffer(bytes(_SOCKADDR_SIZE), _SOCKADDR_SIZE)
    if _LIBC.connect(sock.fileno(), nobody, _SOCKADDR_SIZE):
        LOG.debug("A connection could not be dissolved: errno %d", ctypes.get_errno())
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def keep_to(sock: Any, device: str, *, anew: bool = False) -> None:
    """Bind a connection to *device*: not even with the rules gone does an answer leave elsewhere.

    :param anew: the device is another one than the inherited filter lets pass, which goes then; it
        stays where the device is away for a moment.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        if anew:
            sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def quiet(sock: Any) -> bool:
    """Whether nothing has come that is still to be read, not even its end."""
    # Not select(2), which knows no descriptor above 1,023.
    poll = _select.poll()
    poll.register(sock.fileno(), _select.POLLIN)
    return not poll.poll(0)


def unread(sock: Any) -> bool:
    """Whether bytes have come that nobody has read (tcp(7), SIOCINQ)."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return bool(count[0])


def close_now(sock: Any) -> None:
    """Close a connection in silence."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
