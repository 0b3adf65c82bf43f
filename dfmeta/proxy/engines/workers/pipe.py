"""Calls of functions between the daemon and a worker: JSON objects, one per line.

Each end has a table of the functions that the other end may call. Bytes of a result follow its line
without encoding, so that a large document costs only its copies. Trust: both ends are dfmeta's and
messages are trusted; no decision depends on a value in them that comes from a guest. A worker is
another account's process all the same: a call of an unknown function, or with values of other
types, raises, and the daemon then ends the worker.
"""

import base64
import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dfmeta.http.responses import PIECE
from dfmeta.model import Answer, GuestRequest
from dfmeta.runtime import clock, threads

Message = dict[str, Any]
BYTES = "bytes"
"""The member of a message with the number of bytes that follow; the receiver gets the bytes in
it."""


class CallResult(NamedTuple):
    """The result of a call."""

    value: Any
    """A JSON value."""
    body: bytes = b""


class Function:
    """A function that the other end may call.

    :param run: returns a JSON value, an object with ``__slots__``, or a :class:`CallResult`.
    :param types: types of its JSON values.
    :param waits: whether it may wait, and so needs a greenthread of its own.
    """

    def __init__(self, run: Callable[..., object], *types: type, waits: bool = False) -> None:
        self.run, self.waits = run, waits
        self._types = types

    def check(self, values: list[Any]) -> None:
        """Check the values of a call.

        :raises TypeError: when they are of other types.
        """
        if len(values) != len(self._types) or not all(map(isinstance, values, self._types)):
            raise TypeError(f"values are not of the types {self._types}")


class Pipe:
    """One end of a socket pair.

    :param sock: a green stream socket (unix(7)).
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._outgoing = bytearray()
        self._writing = False
        self._calls: dict[int, threads.Event] = {}
        """Number of a call → the event of its result."""
        self._number = 0
        self._reading = False
        self._functions: Mapping[str, Function] = {}
        self._handling = False
        self._incoming = bytearray()
        """Received bytes that are not handled yet."""
        self._open: Message | None = None
        """The message that still lacks some of its bytes."""
        self.queued = 0
        """Number of bytes that were sent in total; see :meth:`gone`."""
        self.closed = False

    def send(self, name: str, *values: object) -> None:
        """Call a function of the other end, without waiting; there is no result."""
        self._send({"call": name, "values": values})

    def call(
        self, name: str, *values: object, timeout: float | None = clock.ANSWER_TIMEOUT
    ) -> CallResult | None:
        """Call a function of the other end and wait for its result; None: there is none in time.

        :param timeout: seconds; None: wait while the pipe is open.
        """
        if self.closed:
            return None
        self._number += 1
        number, event = self._number, threads.Event()
        self._calls[number] = event
        self._send({"call": name, "values": values, "number": number})
        result: CallResult | None = None
        try:
            with threads.Timeout(timeout, False):
                result = event.wait()
        finally:
            self._calls.pop(number, None)
        return result

    def _send(self, message: Message, body: bytes = b"") -> None:
        if body:
            message[BYTES] = len(body)
        line = json.dumps(message, separators=(",", ":"), default=_json_value).encode()
        self._outgoing += line + b"\n"
        self._outgoing += body
        self.queued += len(line) + 1 + len(body)
        if self._writing or self.closed:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._write()
        if self._outgoing and not self.closed:
            self._writing = True
            threads.spawn_detached(self._write_on)

    def gone(self, position: int) -> bool:
        """Whether the first *position* bytes of :attr:`queued` can be read by the other end.

        They have been written to the socket's buffer then, or the pipe is closed.
        """
        return self.closed or self.queued - len(self._outgoing) >= position

    def run(self, functions: Mapping[str, Function]) -> None:
        """Run the functions that the other end calls, until it closes.

        :raises Exception: when a message is malformed or a function fails.
        """
        self._functions = functions
        self._reading = True
        try:
            while piece := _received(self._sock, PIECE):
                self._take(piece)
        finally:
            self._reading = False
            self.close()

    def catch_up(self) -> None:
        """Handle all messages that the other end has sent so far, without waiting for more.

        Do nothing if called from within a function of the table. These must not wait, so that no
        other greenthread can call this while one runs. An exception of a function closes the pipe.
        """
        if not self._functions or self._handling or self.closed:
            return
        # The underlying socket: the green one would wait.
        while piece := _received(self._sock.fd, PIECE):
            self._take(piece)

    def close(self) -> None:
        """Close this end; pending calls of :meth:`call` return None."""
        self.closed = True
        calls, self._calls = self._calls, {}
        for event in calls.values():
            event.send(None)
        with contextlib.suppress(OSError):
            # This wakes up pending reads and writes; closing the descriptor would not.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._close_unless_waited_for()

    def _take(self, piece: bytes) -> None:
        self._incoming += piece
        if self._handling:
            # Another greenthread handles messages and will handle these too, in their order.
            return
        self._handling = True
        try:
            while (message := self._next()) is not None:
                self._dispatch(message)
        except BaseException:
            self.close()
            raise
        finally:
            self._handling = False

    def _dispatch(self, message: Message) -> None:
        if "answers" in message:
            if (event := self._calls.pop(message["answers"], None)) is not None:
                event.send(CallResult(message["value"], message.get(BYTES, b"")))
            return
        function = self._functions[message["call"]]
        function.check(message["values"])
        if function.waits:
            threads.spawn_detached(self._run, function, message)
        else:
            self._run(function, message)

    def _run(self, function: Function, message: Message) -> None:
        value = function.run(*message["values"])
        if "number" in message:
            result = value if isinstance(value, CallResult) else CallResult(value)
            self._send({"answers": message["number"], "value": result.value}, result.body)

    def _next(self) -> Message | None:
        """Remove and return the next complete message; None: there is none."""
        if self._open is None:
            end = self._incoming.find(b"\n")
            if end < 0:
                return None
            message: Message = json.loads(self._incoming[:end])
            del self._incoming[: end + 1]
            if BYTES not in message:
                return message
            self._open = message
        size = self._open[BYTES]
        if len(self._incoming) < size:
            return None
        message, self._open = self._open, None
        message[BYTES] = bytes(self._incoming[:size])
        del self._incoming[:size]
        return message

    def _write(self) -> None:
        try:
            # The underlying socket: the green one would switch to the hub when it would block.
            sent = self._sock.fd.send(self._outgoing)
            del self._outgoing[:sent]
        except (BrokenPipeError, ConnectionError):
            self._outgoing.clear()

    def _write_on(self) -> None:
        try:
            while self._outgoing and not self.closed:
                sent = self._sock.send(bytes(self._outgoing[:PIECE]))
                del self._outgoing[:sent]
        except OSError:
            self._outgoing.clear()
        finally:
            self._writing = False
            if self.closed:
                self._close_unless_waited_for()

    def _close_unless_waited_for(self) -> None:
        if not (self._reading or self._writing):
            self._sock.close()


def _received(sock: Any, size: int) -> bytes:
    """Return what was received; empty at the end, after an error, and where it would block."""
    piece = b""
    with contextlib.suppress(OSError):
        piece = sock.recv(size)
    return piece


def _json_value(value: Any) -> Any:
    """Return a value that JSON does not have, for :meth:`json.JSONEncoder.default`."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return {name: getattr(value, name) for name in value.__slots__}


def request_of(fields: Message) -> GuestRequest:
    """Return the request that was sent."""
    return GuestRequest(**{**fields, "body": base64.b64decode(fields["body"])})


def result_of(answer: Answer, **more: object) -> CallResult:
    """Return an answer as a result, for :func:`answer_of`; *more* stands beside it."""
    fields = {name: getattr(answer, name) for name in Answer.__slots__ if name != "body"}
    return CallResult({**more, "answer": fields}, answer.body)


def answer_of(result: CallResult) -> Answer:
    """Return the answer of :func:`result_of`."""
    message = result.value["answer"]
    return Answer(
        message["status"],
        result.body,
        content_type=message["content_type"],
        headers=tuple((name, value) for name, value in message["headers"]),
        known=message["known"],
    )
