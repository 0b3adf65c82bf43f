"""One JSON-RPC 1.0 call to a daemon of Open vSwitch.

OVSDB (RFC 7047, 4) and the control sockets of ovs-appctl(8) use this protocol. The call waits
for the answer. It is meant for commands and for :mod:`dfmeta.ovsdb.transactions`; dfmeta-agent
follows OVSDB with an IDL.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

from dfmeta.runtime import clock

TIMEOUT = 5.0
"""Seconds for the whole call: a daemon that hangs accepts a connection and never answers."""
_CHUNK = 65536
_ID = 1


class RefusedError(Exception):
    """The daemon answered with an error; the text is the daemon's own."""


def call(target: str, method: str, params: Sequence[Any], *, timeout: float = TIMEOUT) -> Any:
    """Call *method* at *target* and return its result.

    :param target: ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param timeout: in seconds.
    :raises OSError: if there is no answer, or not in time.
    :raises RefusedError: if the answer is an error.
    :raises ValueError: for a target of another kind, or an answer that is not JSON-RPC.
    """
    deadline = clock.now() + timeout
    request = json.dumps({"id": _ID, "method": method, "params": list(params)}).encode()
    with _connect(target, timeout) as sock:
        sock.sendall(request)
        reply = _read_reply(sock, deadline)
    if reply.get("error") is not None:
        raise RefusedError(_error_text(reply["error"]))
    return reply.get("result")


def why(error: Exception) -> str:
    """Return the cause of *error*, raised by :func:`call`, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _connect(target: str, timeout: float) -> socket.socket:
    kind, _, where = target.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(where)
        except OSError:
            sock.close()
            raise
        return sock
    if kind == "tcp":
        host, _, port = where.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout)
    raise ValueError(f"this command supports only unix: and tcp: targets, not {target}")


def _read_reply(sock: socket.socket, deadline: float) -> dict[str, Any]:
    data, decoder = bytearray(), json.JSONDecoder()
    while True:
        left = deadline - clock.now()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        chunk = sock.recv(_CHUNK)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        data += chunk
        # A complete message ends with a brace. Do not decode a long one again for every chunk.
        if not data.rstrip().endswith(b"}"):
            continue
        text = data.decode("utf-8", errors="replace").strip()
        while text:
            try:
                message, end = decoder.raw_decode(text)
            except ValueError:
                break  # the brace was not the last
            # OVSDB may send "echo" requests of its own; such a request is not the answer.
            if isinstance(message, dict) and message.get("id") == _ID and "result" in message:
                return message
            text = text[end:].lstrip()
        data = bytearray(text.encode())


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("details") or error.get("error") or error)
    return str(error).strip()
