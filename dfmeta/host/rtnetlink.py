"""Requests to the kernel by netlink(7) and rtnetlink(7), one after the other.

pyroute2 has the messages. Its sockets run an event loop for each request: a check of the host's
side takes 10 ms with them instead of 1, and in a thread of the pool it stalls the hub for as long.
The kernel answers a request within the call that sends it, so that nothing here waits.
"""

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final, Self

from pyroute2 import netlink
from pyroute2.netlink import rtnl
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_TO_TBL, fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import NUD_PERMANENT, ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from dfmeta.host.rules import Rule, header_table

_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr (netlink(7)): length, type, flags, sequence number, port id."""
_CODE: Final = struct.Struct("=i")
"""Error at the beginning of an answer without a message, negative; 0 for an acknowledgement."""
_ROOM: Final = 1 << 16
"""Bytes for an answer; the kernel sends at most half of it at once."""
_CREATE: Final = {
    "add": netlink.NLM_F_CREATE | netlink.NLM_F_EXCL,
    "replace": netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE,
}
_TRIES: Final = 5
"""Reads of a list that changes meanwhile."""


class Rtnetlink:
    """A routing socket; a context manager that closes it.

    Commands and names are those of ip(8). Each method raises
    :class:`pyroute2.netlink.exceptions.NetlinkError` with the kernel's error number when the kernel
    refuses, and OSError when the socket fails.
    """

    def __init__(self) -> None:
        """Open a socket whose lists the kernel filters (netlink(7), NETLINK_GET_STRICT_CHK).

        :raises OSError: there is no descriptor for it, or the kernel is older than 4.20.
        """
        self._numbers = itertools.count(1)
        self._sock = _open()
        try:
            self._sock.bind((0, 0))
            self._sock.setsockopt(netlink.SOL_NETLINK, netlink.NETLINK_GET_STRICT_CHK, 1)
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._sock.close()

    def links(self) -> list[Any]:
        """Return all devices."""
        return self._list(rtnl.RTM_NEWLINK, ifinfmsg())

    def link(self, command: str, *, index: int) -> None:
        """Set a device ``up`` or ``down``."""
        message = ifinfmsg()
        message["index"], message["change"] = index, IFF_UP
        message["flags"] = IFF_UP if command == "up" else 0
        self._ask(rtnl.RTM_NEWLINK, 0, message)

    def addresses(self, family: int, *, index: int = 0) -> list[Any]:
        """Return all addresses of a family.

        :param index: index of a device, for its addresses alone; 0: all devices.
        """
        message = ifaddrmsg()
        message["family"], message["index"] = family, index
        return self._list(rtnl.RTM_NEWADDR, message)

    def addr(
        self,
        command: str,
        *,
        index: int,
        address: str,
        prefixlen: int,
        family: int = socket.AF_INET,
        flags: int = 0,
    ) -> None:
        """``add`` or ``delete`` an address of the device with *index*.

        :param flags: IFA_F_... of linux/if_addr.h.
        """
        message = ifaddrmsg()
        message["family"], message["prefixlen"], message["index"] = family, prefixlen, index
        message["attrs"] = [("IFA_ADDRESS", address)]
        if family == socket.AF_INET:
            message["attrs"].append(("IFA_LOCAL", address))
        if flags:
            message["attrs"].append(("IFA_FLAGS", flags))
        self._change(rtnl.RTM_NEWADDR, command, message)

    def neigh(
        self, command: str, *, ifindex: int, dst: str, family: int, lladdr: str = ""
    ) -> list[Any]:
        """``get``, ``replace`` or ``delete`` the permanent entry of a neighbour.

        :return: the entry, for ``get``.
        """
        message = ndmsg()
        message["family"], message["ifindex"] = family, ifindex
        message["attrs"] = [("NDA_DST", dst)]
        if command == "get":
            return self._ask(rtnl.RTM_GETNEIGH, 0, message)
        message["state"] = NUD_PERMANENT
        if lladdr:
            message["attrs"].append(("NDA_LLADDR", lladdr))
        return self._change(rtnl.RTM_NEWNEIGH, command, message)

    def route(
        self,
        command: str,
        *,
        oif: int,
        table: int,
        family: int,
        dst: str = "default",
        gateway: str = "",
        flags: int = 0,
        mtu: int = 0,
    ) -> list[Any]:
        """``list``, ``add``, ``replace`` or ``del`` routes of *table* through a device.

        :param dst: a network, or ``default``; not for ``list``.
        :param flags: RTNH_F_... of linux/rtnetlink.h.
        :param mtu: largest packet on the route in bytes; 0: that of the device.
        :return: the routes, for ``list``.
        """
        message = rtmsg()
        message["family"], message["flags"] = family, flags
        message["table"] = header_table(table)
        attributes: list[tuple[str, Any]] = [("RTA_OIF", oif), ("RTA_TABLE", table)]
        if dst != "default":
            network, _, length = dst.partition("/")
            message["dst_len"] = int(length)
            attributes.insert(0, ("RTA_DST", network))
        if gateway:
            attributes.append(("RTA_GATEWAY", gateway))
        if mtu:
            attributes.append(("RTA_METRICS", {"attrs": [("RTAX_MTU", mtu)]}))
        message["attrs"] = attributes
        if command == "list":
            return self._list(rtnl.RTM_NEWROUTE, message)
        if command in _CREATE:
            message["proto"], message["type"] = rtnl.rt_proto["static"], rtnl.rt_type["unicast"]
        return self._change(rtnl.RTM_NEWROUTE, command, message)

    def route_to(self, dst: str, *, src: str, family: int) -> Any:
        """Return the route that the kernel takes from *src* to *dst*, as ``ip route get`` does."""
        message = rtmsg()
        bits = 32 if family == socket.AF_INET else 128
        message["family"], message["dst_len"], message["src_len"] = family, bits, bits
        message["attrs"] = [("RTA_DST", dst), ("RTA_SRC", src)]
        (route,) = self._ask(rtnl.RTM_GETROUTE, 0, message)
        return route

    def rule(
        self,
        command: str,
        *,
        priority: int,
        table: int,
        family: int,
        src: str = "",
        src_len: int = 0,
        dst: str = "",
        oifname: str = "",
    ) -> None:
        """``add`` or ``del`` a rule that leads to *table*.

        :param dst: a network; empty: any.
        """
        message = fibmsg()
        message["family"], message["src_len"], message["action"] = family, src_len, FR_ACT_TO_TBL
        message["table"] = header_table(table)
        attributes: list[tuple[str, Any]] = [("FRA_PRIORITY", priority)]
        if src:
            attributes.append(("FRA_SRC", src))
        if dst:
            network, _, length = dst.partition("/")
            message["dst_len"] = int(length)
            attributes.append(("FRA_DST", network))
        if oifname:
            attributes.append(("FRA_OIFNAME", oifname))
        message["attrs"] = [*attributes, ("FRA_TABLE", table)]
        self._change(rtnl.RTM_NEWRULE, command, message)

    def rules(self, family: int) -> list[Rule]:
        """Return all rules of a family, in the kernel's order."""
        message = fibmsg()
        message["family"] = family
        return self._list(rtnl.RTM_NEWRULE, message, Rule)

    def _change(self, kind: int, command: str, message: Any) -> list[Any]:
        if command in _CREATE:
            return self._ask(kind, _CREATE[command], message)
        return self._ask(kind + 1, 0, message)

    def _list(self, kind: int, message: Any, answer: type[Any] | None = None) -> list[Any]:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(InterruptedError):
                return self._ask(kind + 2, netlink.NLM_F_DUMP, message, answer)
        return self._ask(kind + 2, netlink.NLM_F_DUMP, message, answer)

    def _ask(
        self, kind: int, flags: int, message: Any, answer: type[Any] | None = None
    ) -> list[Any]:
        """Send a request; return the messages of its answer.

        :param kind: type of the message.
        :param message: one of pyroute2's, which is encoded here.
        :param answer: class of the answer's messages; None: that of the request.
        :raises InterruptedError: the list has changed while the kernel sent it.
        """
        number = next(self._numbers)
        header = message["header"]
        header["type"], header["sequence_number"] = kind, number
        acknowledged = 0 if flags == netlink.NLM_F_DUMP else netlink.NLM_F_ACK
        header["flags"] = netlink.NLM_F_REQUEST | flags | acknowledged
        message.reset()
        message.encode()
        self._sock.send(message.data)
        messages = list[Any]()
        whole = True
        while True:
            for answered, code, of, part in _parts(self._sock.recv(_ROOM)):
                # A former request may have failed before its answer was read.
                if of != number:
                    continue
                whole = whole and not code & netlink.NLM_F_DUMP_INTR
                if answered not in (netlink.NLMSG_ERROR, netlink.NLMSG_DONE):
                    reply = (answer or type(message))(part)
                    reply.decode()
                    messages.append(reply)
                    continue
                error = -_CODE.unpack_from(part, _HEADER.size)[0]
                if error:
                    raise NetlinkError(error, os.strerror(error))
                if not whole:
                    raise InterruptedError
                return messages


def _open() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)


def _parts(answer: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags and sequence number of each message of an answer, and the message."""
    begin = 0
    while begin < len(answer):
        length, kind, flags, number, _port = _HEADER.unpack_from(answer, begin)
        yield kind, flags, number, answer[begin : begin + length]
        begin += (length + 3) & ~3
