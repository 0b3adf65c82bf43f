"""A DNS server (RFC 1035) in a namespace, and the /etc/resolv.conf of the programs there."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Self

from tests.harness.closing import Closing
from tests.harness.netns import Namespace

_HEADER = struct.Struct("!6H")
_ANSWERED, _UNKNOWN = 0x8180, 0x8183
_A = 1


class Nameserver(Closing):
    """A DNS server for one name, over UDP; a context manager that ends it.

    :param address: IPv4 address of the server.
    :param answer: the name's IPv4 address; None: no answer is sent.
    """

    def __init__(self, namespace: Namespace, address: str, name: str, answer: str | None) -> None:
        self.name = name
        self.answer = answer
        self.asked = 0
        self._socket = namespace.open_socket(kind=socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End the server."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, peer = self._socket.recvfrom(512)
            except OSError:
                return
            if len(query) <= _HEADER.size:
                return  # the end: a socket that is shut down reads as empty
            self.asked += 1
            if self.answer is not None:
                self._socket.sendto(self._reply(query), peer)

    def _reply(self, query: bytes) -> bytes:
        number = _HEADER.unpack_from(query)[0]
        end = query.index(b"\0", _HEADER.size) + 1
        labels, question = query[_HEADER.size : end], query[_HEADER.size : end + 4]
        wanted = b"".join(bytes([len(one)]) + one.encode() for one in self.name.split("."))
        known = labels == wanted + b"\0"
        kind = int.from_bytes(question[-4:-2], "big")
        found = b""
        if known and kind == _A:
            assert self.answer is not None
            # A pointer to the question's name; type and class; seconds to live; bytes.
            found = b"\xc0\x0c" + struct.pack("!HHIH", _A, 1, 3600, 4)
            found += socket.inet_aton(self.answer)
        flags = _ANSWERED if known else _UNKNOWN
        return _HEADER.pack(number, flags, 1, bool(found), 0, 0) + question + found


class Resolv(Closing):
    """The resolv.conf(5) of programs that are started in a namespace from now on; later changes
    apply to running programs too. A context manager that removes it."""

    def __init__(self, namespace: Namespace, file: Path, address: str) -> None:
        self._namespace, self._file = namespace, file
        self.use(address)

    def __enter__(self) -> Self:
        self._namespace.resolv_conf = self._file
        return self

    def close(self) -> None:
        """Give the namespace its own resolv.conf back."""
        self._namespace.resolv_conf = None

    def use(self, address: str) -> None:
        """Set the name server. The file is changed in place: running programs have it mounted."""
        self._file.write_text(f"nameserver {address}\n")
