"""Requests to the kernel by netlink(7), one after the other.

pyroute2 has the messages. Its sockets run an event loop for each request, which is ten times the
work of the request, and the hub does nothing else meanwhile. The kernel answers a request within
the call that sends it, so that nothing here waits.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from pyroute2.netlink.exceptions import NetlinkError

DUMP: Final = 0x300
"""NLM_F_DUMP: the request of a list."""
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr (netlink(7)): length, type, flags, sequence number, port id."""
_CODE: Final = struct.Struct("=i")
"""Error at the beginning of an answer without a message, negative; 0 for an acknowledgement."""
_REQUEST, _ACK, _INTERRUPTED = 0x1, 0x4, 0x10
_ERROR, _DONE = 2, 3
"""Types of messages of netlink itself."""
_ROOM: Final = 1 << 16
"""Bytes for an answer; the kernel sends at most half of it at once."""


class NetlinkSocket:
    """A socket of one of netlink's protocols; a context manager that closes it."""

    def __init__(self, protocol: int, options: Mapping[tuple[int, int], int] | None = None) -> None:
        """Open it.

        :param options: level and name of each option → its value (setsockopt(2)).
        :raises OSError: there is no descriptor for it, or the kernel lacks the protocol or option.
        """
        self._numbers = itertools.count(1)
        self._sock = _open(protocol)
        try:
            self._sock.bind((0, 0))
            for option, value in (options or {}).items():
                self._sock.setsockopt(*option, value)
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._sock.close()

    def ask(
        self, kind: int, flags: int, message: Any, answer: type[Any] | None = None
    ) -> list[Any]:
        """Send a request; return the messages of its answer.

        :param kind: type of the message.
        :param message: one of pyroute2's, which is encoded here.
        :param answer: class of the answer's messages; None: that of the request.
        :raises NetlinkError: the kernel refuses.
        :raises OSError: the socket fails.

        :raises InterruptedError: the list has changed while the kernel sent it.
        """
        number = next(self._numbers)
        header = message["header"]
        header["type"], header["sequence_number"] = kind, number
        header["flags"] = _REQUEST | flags if flags & DUMP == DUMP else _REQUEST | _ACK | flags
        message.reset()
        message.encode()
        self._sock.send(message.data)
        found = list[Any]()
        whole = True
        while True:
            for answered, code, of, part in _parts(self._sock.recv(_ROOM)):
                # A former request may have failed before its answer was read.
                if of != number:
                    continue
                whole = whole and not code & _INTERRUPTED
                if answered not in (_ERROR, _DONE):
                    one = (answer or type(message))(part)
                    one.decode()
                    found.append(one)
                    continue
                error = -_CODE.unpack_from(part, _HEADER.size)[0]
                if error:
                    raise NetlinkError(error, os.strerror(error))
                if not whole:
                    raise InterruptedError
                return found


def _open(protocol: int) -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)


def _parts(answer: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags and sequence number of each message of an answer, and the message."""
    begin = 0
    while begin < len(answer):
        length, kind, flags, number, _port = _HEADER.unpack_from(answer, begin)
        yield kind, flags, number, answer[begin : begin + length]
        begin += (length + 3) & ~3
