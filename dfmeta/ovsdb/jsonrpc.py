"""JSON-RPC with the daemons of Open vSwitch, over connections of the package ovs.

Its parser takes a character at a time where its C extension is missing, as in the package on PyPI:
a second for a megabyte, in which hardly any other thread of the daemon runs. :class:`MessageParser`
finds the end of a message by its brackets, and gives the text to :mod:`json`.

Its connections decode each reading by itself, so that a character in two readings ends the session.
:class:`WholeCharacters` keeps the beginning of such a character for the next reading.

Source: RFC 7047, 4 (JSON-RPC 1.0: a message is an object, and no mark ends it). Trust: the texts
come from ovsdb-server and ovs-vswitchd; their nesting is bounded.
"""

import codecs
import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dfmeta.runtime import clock
from dfmeta.runtime.clock import ANSWER_TIMEOUT


@contextlib.contextmanager
def _eventlet_only_where_loaded() -> Iterator[None]:
    """Let imports of eventlet raise ImportError, unless this process has it.

    ovs.poller imports it where it is installed, to learn whether it has patched Python. A command
    would wait longer for the import than for OVSDB.
    """
    modules: dict[str, object] = vars(sys)["modules"]
    if "eventlet" in modules:
        yield
        return
    modules["eventlet"] = None
    try:
        yield
    finally:
        del modules["eventlet"]


with _eventlet_only_where_loaded():
    import ovs.json
    from ovs.jsonrpc import Connection
    from ovs.jsonrpc import Message as Message
    from ovs.poller import POLLIN as POLLIN
    from ovs.poller import Poller as Poller
    from ovs.stream import Stream

DEPTH_MAX: Final = 100
"""Brackets that may be open at a time: OVSDB's messages have fewer than ten, and json fails with
about a thousand."""
_TOKEN: Final = re.compile(r'[{\[]|[}\]]|"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
"""A bracket or a string; group 1 is empty where the string goes on in the next text."""
_OPENING: Final = frozenset("{[")


class RefusedError(Exception):
    """The daemon answered with an error; the text is the daemon's own."""


def call(
    target: str, method: str, params: Sequence[Any], *, seconds: float = ANSWER_TIMEOUT
) -> Any:
    """Call *method* of a daemon of Open vSwitch once, and return its result.

    :param target: ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param seconds: for the whole call.
    :raises OSError: if there is no answer, or not in time.
    :raises RefusedError: if the answer is an error.
    """
    deadline = clock.now() + seconds
    error, stream = Stream.open_block(Stream.open(target), round(1000 * seconds))
    if error:
        raise OSError(error, os.strerror(error))
    connection, request = Connection(stream), Message.create_request(method, list(params))
    try:
        error = connection.send(request)
        while not error:
            prepare(connection)
            error, reply = connection.recv()
            if error == errno.EAGAIN:
                error = _block(connection, deadline)
            elif not error and _answers(reply, request):
                break
    finally:
        connection.close()
    if error:
        closed = "it closed the connection"
        raise ConnectionError(error, os.strerror(error) if error > 0 else closed)
    if reply.type == reply.T_ERROR:
        raise RefusedError(_text(reply.error))
    return reply.result


def why(error: Exception) -> str:
    """Return the cause of *error*, raised by this module, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def details(error: str) -> str:
    """Return the text of a transaction's error, which may be JSON."""
    with contextlib.suppress(ValueError):
        return _text(json.loads(error))
    return error


class WholeCharacters:
    """Reads bytes of a stream, without the beginning of a character whose end comes later.

    :param receive: ``recv`` of an ``ovs.stream.Stream``.
    """

    def __init__(self, receive: Callable[[int], tuple[int, bytes]]) -> None:
        self._receive, self._rest = receive, b""

    def __call__(self, size: int) -> tuple[int, bytes]:
        """Return an error number and the bytes that were read; neither: the stream has ended."""
        while True:
            error, data = self._receive(size)
            if error or not data:
                return error, data
            data = self._rest + data
            _text, length = codecs.utf_8_decode(data, "replace", False)
            whole, self._rest = data[:length], data[length:]
            if whole:
                return 0, whole


def prepare(connection: Any) -> None:
    """Make a connection of ovs ready for the next message."""
    stream = connection.stream
    if not isinstance(stream.recv, WholeCharacters):
        stream.recv = WholeCharacters(stream.recv)
    # An extension of the package is as fast.
    if connection.parser is None and ovs.json.PARSER == ovs.json.PARSER_PY:
        connection.parser = MessageParser()


class MessageParser:
    """Takes one message; the interface is that of ``ovs.json.Parser``."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._depth = 0
        self._open = ""
        """The beginning of a string that goes on: a quote, and a backslash before the next text."""
        self._error = ""
        self._done = False

    def feed(self, text: str) -> int:
        """Take the characters up to the end of the message, and return how many those are."""
        if self._done:
            return 0
        end = self._end_in(text)
        self._texts.append(text[:end])
        return end

    def is_done(self) -> bool:
        """Return whether the message is complete, or is not one."""
        return self._done

    def finish(self) -> Any:
        """Return the message; a string says why there is none."""
        if not self._done:
            return "unexpected end of input"
        if self._error:
            return self._error
        try:
            return json.loads("".join(self._texts))
        except ValueError as error:
            return str(error)

    def _end_in(self, text: str) -> int:
        before, self._open = self._open, ""
        if not self._depth and text.lstrip()[:1] not in ("", "{"):
            return self._fail("a message must be an object")
        whole = before + text
        for match in _TOKEN.finditer(whole):
            token = match[0]
            if token[0] == '"':
                if not match[1]:
                    self._open = '"' + whole[match.end() :]
                    break
            elif token in _OPENING:
                self._depth += 1
                if self._depth > DEPTH_MAX:
                    return self._fail(f"more than {DEPTH_MAX} brackets are open")
            else:
                self._depth -= 1
                if not self._depth:
                    self._done = True
                    return match.end() - len(before)
        return len(text)

    def _fail(self, error: str) -> int:
        self._error, self._done = error, True
        return 0


def _answers(reply: Any, request: Any) -> bool:
    return reply.id == request.id and reply.type in (reply.T_REPLY, reply.T_ERROR)


def _block(connection: Any, deadline: float) -> int:
    """Wait for the next message, and return 0."""
    left = deadline - clock.now()
    if left <= 0:
        raise TimeoutError
    connection.run()
    poller = Poller()
    connection.wait(poller)
    connection.recv_wait(poller)
    poller.timer_wait(max(1, round(1000 * left)))
    poller.block()
    return 0


def _text(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("details") or error.get("error") or error)
    return str(error).strip()
