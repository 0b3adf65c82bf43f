"""Messages between the daemon and a worker: JSON objects, one per line.

Bytes that belong to a message follow its line without encoding, so that a large document costs only
its copies. Trust: both ends are dfmeta's and messages are trusted; no decision depends on a value
in them that comes from a guest.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

from dfmeta.model import Answer, GuestRequest
from dfmeta.runtime import threads
from dfmeta.runtime.threads import Event

Message = dict[str, Any]
PIECE = 262144
LOOK = 65536
"""Bytes of one read in :meth:`Pipe.catch_up`: a buffer of this size costs little if there is
nothing to read."""
BYTES = "bytes"
"""The member of a message with the number of bytes that follow; the receiver gets the bytes in
it."""
ANSWER_TIMEOUT = 10.0


class Pipe:
    """One end of a socket pair.

    :param sock: a green stream socket (unix(7)).
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._outgoing = bytearray()
        self._writing = False
        self._asked: dict[int, Event] = {}
        self._number = 0
        self._reading = False
        self._handle: Callable[[Message], None] | None = None
        self._handling = False
        self._incoming, self._looked = bytearray(), 0
        """Received bytes that are not handled yet, and how many of them contain no end of a
        line."""
        self._open: Message | None = None
        """The message that still lacks some of its bytes."""
        self.queued = 0
        """Number of bytes given to :meth:`send` in total; see :meth:`gone`."""
        self.closed = False

    def send(self, message: Message, along: bytes | None = None) -> None:
        """Send a message without waiting.

        :param along: bytes that the other end gets as the member :data:`BYTES`.
        """
        if along is not None:
            message = {**message, BYTES: len(along)}
        before = len(self._outgoing)
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._outgoing += along or b""
        self.queued += len(self._outgoing) - before
        if self._writing or self.closed:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._write()
        if self._outgoing and not self.closed:
            self._writing = True
            threads.spawn_detached(self._write_on)

    def ask(self, message: Message, timeout: float | None = ANSWER_TIMEOUT) -> Message | None:
        """Send a message and wait for its answer; None if there is no answer in time.

        :param timeout: seconds; None: wait while the pipe is open.
        """
        if self.closed:
            return None
        self._number += 1
        number, event = self._number, Event()
        self._asked[number] = event
        self.send({**message, "number": number})
        found: Message | None = None
        try:
            with threads.Timeout(timeout, False):
                found = event.wait()
        finally:
            self._asked.pop(number, None)
        return found

    def answer(self, question: Message, message: Message, along: bytes | None = None) -> None:
        """Answer a message of the other end's :meth:`ask`; see :meth:`send`."""
        self.send({**message, "answers": question["number"]}, along)

    def gone(self, position: int) -> bool:
        """Whether the first *position* bytes of :attr:`queued` can be read by the other end.

        They have been written to the socket's buffer then, or the pipe is closed.
        """
        return self.closed or self.queued - len(self._outgoing) >= position

    def run(self, handle: Callable[[Message], None]) -> None:
        """Call *handle* with each received message, until the other end closes."""
        self._handle = handle
        self._reading = True
        try:
            while piece := self._sock.recv(PIECE):
                self._take(piece)
        except OSError:
            return
        finally:
            self._reading = False
            self.close()

    def catch_up(self) -> None:
        """Handle all messages that the other end has sent so far, without waiting for more.

        Do nothing if called from within the handler of a message. Handlers must not wait, so that
        no other greenthread can call this while a handler runs. An exception of the handler closes
        the pipe.
        """
        if self._handle is None or self._handling or self.closed:
            return
        with contextlib.suppress(OSError):
            # The underlying socket: the green one would wait.
            while piece := self._sock.fd.recv(LOOK):
                self._take(piece)

    def close(self) -> None:
        """Close this end; pending calls of :meth:`ask` return None."""
        self.closed = True
        asked, self._asked = self._asked, {}
        for event in asked.values():
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
        if "answers" not in message:
            if self._handle is not None:
                self._handle(message)
        elif (event := self._asked.pop(message["answers"], None)) is not None:
            event.send(message)

    def _next(self) -> Message | None:
        """Remove and return the next complete message; None: there is none."""
        if self._open is None:
            end = self._incoming.find(b"\n", self._looked)
            if end < 0:
                self._looked = len(self._incoming)
                return None
            message: Message = json.loads(self._incoming[:end])
            del self._incoming[: end + 1]
            self._looked = 0
            if BYTES not in message:
                return message
            self._open = message
        size = self._open[BYTES]
        if len(self._incoming) < size:
            return None
        found, self._open = self._open, None
        found[BYTES] = bytes(self._incoming[:size])
        del self._incoming[:size]
        return found

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


def request_fields(request: GuestRequest) -> Message:
    """Return a request as JSON values, for :func:`request_of`."""
    fields = {name: getattr(request, name) for name in GuestRequest.__slots__}
    body = base64.b64encode(request.body).decode()
    return {**fields, "headers": dict(request.headers), "body": body}


def request_of(fields: Message) -> GuestRequest:
    """Return the request of :func:`request_fields`."""
    return GuestRequest(**{**fields, "body": base64.b64decode(fields["body"])})


def answer_fields(answer: Answer) -> Message:
    """Return an answer without its body, which goes along with the message."""
    return {name: getattr(answer, name) for name in Answer.__slots__ if name != "body"}


def answer_of(message: Message) -> Answer:
    """Return the answer of a message with :func:`answer_fields` and its body."""
    return Answer(
        message["status"],
        message[BYTES],
        content_type=message["content_type"],
        headers=tuple((name, value) for name, value in message["headers"]),
        known=message["known"],
    )
