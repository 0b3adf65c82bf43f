"""The guests' sockets: listeners and connections that use only the device of tap-metadata."""

import array
import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import socket
import termios
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from dfmeta import errors, model
from dfmeta.http.limits import BACKLOG, RECEIVE_BUFFER, SEND_BUFFER, SYN_ACK_RETRIES
from dfmeta.runtime.socket_filter import DROP, PASS, attach, attached, detach, load, when
from dfmeta.runtime.threads import green_socket, original

LOG = logging.getLogger(__name__)

_select = original("select")
_LIBC = ctypes.CDLL(None, use_errno=True)
_SOCKADDR_SIZE = 16

IP_FREEBIND = 15
"""ip(7); Python has no constant for it."""
IPV6_FREEBIND = 78
"""linux/in6.h; Python has no constant for it."""
_IFINDEX = 0xFFFFF000 + 8
"""Linux, networking/filter: index of the device that a packet arrived on."""
NO_DEVICE = 0
"""An index that no device has (rtnetlink(7))."""
FDS_MAX = 253
"""Descriptors that one message may carry (Linux, SCM_MAX_FD)."""


def adopt(fd: int) -> Any:
    """Return the socket of a descriptor that another process has opened."""
    os.set_inheritable(fd, False)
    # socket.socket reads the family from the descriptor; eventlet's class would assume another one.
    return green_socket.socket(original("socket").socket(fileno=fd))


def has_ipv6() -> bool:
    """Return whether the kernel has sockets of IPv6, whether or not a device has IPv6 addresses.

    It has none after a boot with ``ipv6.disable=1`` (Linux, networking/ipv6).
    """
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return False
        raise
    return True


def index_of(device: str) -> int:
    """Return the index of a device.

    :raises OSError: ENODEV, when the device does not exist.
    """
    try:
        return socket.if_nametoindex(device)
    except OSError as error:  # Python gives it no errno
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error


def listen(device: str, address: IPv4Address | IPv6Address, port: int) -> Any:
    """Open the guests' listener for one version of IP on *device* only.

    This makes the peer's address an identity: no packet from another network interface reaches the
    listener, whatever its source address. :func:`confine` describes the mechanism.

    :param port: TCP port; 0: any free port.
    :raises OSError: ENODEV, when the device does not exist.
    :raises StartError: when the address or the port is not available.
    """
    index = index_of(device)
    six = address.version == 6
    sock = green_socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The listener must exist before the device has its address and is up, so that no SYN is
        # refused.
        if six:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        sock.bind((str(address), port))
        confine(sock, index)
        keep_room(sock)
    except OSError as error:
        sock.close()
        place = model.HttpHost(str(address), port).authority
        raise errors.StartError(
            cause=f"cannot listen on {place} on {device}: {error.strerror}",
            remedy="Stop the program that uses it, or set another [df_metadata] port or "
            + ("host_ip6" if six else "host_ip")
            + ", with Meta IPs [METADATA] host_proxy_listen_port",
        ) from error
    return sock


def listen_to_all(host: str, port: int) -> Any:
    """Open a listener for guests on any network of the host.

    :param host: a name or an address, without brackets; ``::`` is all addresses of both families.
    :raises OSError: when the name is unknown, or the address or the port is not available.
    """
    infos = green_socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _kind, _protocol, _name, address = infos[0]
    sock = green_socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Independent of net.ipv6.bindv6only (ipv6(7)).
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        keep_room(sock)
    except OSError:
        sock.close()
        raise
    return sock


def keep_room(sock: Any, *, receive: int = RECEIVE_BUFFER) -> None:
    """Make *sock* listen, with the largest backlog that the host allows at present.

    Half-open connections are given up early; see :data:`SYN_ACK_RETRIES`. A socket that listens
    already gets the present backlog. Connections inherit the other settings (tcp(7), socket(7)).

    :param receive: bytes of input of a client that the kernel buffers until they are read.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_ACK_RETRIES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.listen(BACKLOG)


def confine(sock: Any, index: int) -> None:
    """Make the kernel drop packets for the listener *sock* that arrive on another device.

    This is a filter of socket(7), SO_ATTACH_FILTER, and not SO_BINDTODEVICE: half-open connections
    of a bound listener stay bound to the device of their SYN, and when that device is created
    again, the guest's next segment is answered with a reset. A filter can be replaced, and guests
    repeat the packets that it drops. Connections inherit it until they are bound, when they are
    accepted.

    :param index: index of the device; a device that is created again has another index.
    :raises OSError: when the kernel refuses.
    """
    attach(sock, [load(4, _IFINDEX), *when([index], [PASS]), DROP])


def confined(sock: Any) -> bool:
    """Return whether *sock* has a filter already; only :func:`confine` installs one."""
    return attached(sock)


def silence(sock: Any) -> int:
    """Make a listener drop all packets, until :func:`confine` sets a device.

    The connections in its queue are reset: those of an unconfined listener may have arrived on any
    device with the address of any guest.

    :return: the number of these connections.
    :raises OSError: when the kernel refuses.
    """
    confine(sock, NO_DEVICE)
    # Half-open connections are not completed any more: the filter drops their last segment.
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            stranger, _peer = sock.fd.accept()
            abort(stranger)
            stranger.close()
            count += 1
    return count


def abort(sock: Any) -> None:
    """Reset a connection and discard its send queue.

    After ``shutdown`` the kernel would send, and repeat, the rest of an answer to the guest that
    has the port now. connect(2) with AF_UNSPEC dissolves the association at once.
    """
    nobody = ctypes.create_string_buffer(bytes(_SOCKADDR_SIZE), _SOCKADDR_SIZE)
    if _LIBC.connect(sock.fileno(), nobody, _SOCKADDR_SIZE):
        LOG.debug("A connection could not be reset: errno %d", ctypes.get_errno())
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def keep_to(sock: Any, device: str, *, anew: bool = False) -> None:
    """Bind a connection to *device*: even without the routing rules, answers leave only there.

    :param anew: the device was created again, and the inherited filter does not let it pass: the
        filter is removed. It stays while the device does not exist.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        if anew:
            detach(sock)


def limit_hops(sock: Any, hops: int) -> None:
    """Give all packets of a connection from now on a hop limit (ip(7), ipv6(7)).

    It is not for one answer alone, and has no end: the kernel takes the limit when it sends a
    packet, so that the repetition of a packet that was lost, or that a router has dropped, would go
    further than the packet itself.

    :param hops: 1 to 255.
    :raises OSError: when the connection has ended, or is none of IP.
    """
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    elif sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
    else:
        raise OSError(errno.EAFNOSUPPORT, "this connection has no hop limit")


def quiet(sock: Any) -> bool:
    """Whether there is nothing to read, not even the end of the connection."""
    # Not select(2), which supports no descriptor above 1,023.
    poll = _select.poll()
    poll.register(sock.fileno(), _select.POLLIN)
    return not poll.poll(0)


def unread(sock: Any) -> bool:
    """Whether there are unread bytes (tcp(7), SIOCINQ)."""
    return bool(_queued(sock, termios.FIONREAD))


def unsent(sock: Any) -> int:
    """Return the number of sent bytes that the peer's host has not acknowledged (SIOCOUTQ)."""
    return _queued(sock, termios.TIOCOUTQ)


def _queued(sock: Any, request: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), request, count)
    return count[0]


def close_now(sock: Any) -> None:
    """Close a connection without an answer."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
