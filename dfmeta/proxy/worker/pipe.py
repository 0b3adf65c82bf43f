"""Messages between the daemon and a worker of its: JSON objects, one a line.

Bytes that come along with one follow its line as they are, so that a large document costs no more
than its copies. Both ends are ours: what comes is trusted, and never holds anything of a guest's
that decides.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import eventlet
from eventlet.event import Event

Message = dict[str, Any]
PIECE = 262144
LOOK = 65536
"""Bytes that a look reads at once: room for as many costs little where there is nothing."""
BYTES = "bytes"
"""The member of a message that says how many bytes follow; whoever gets it finds them there."""
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
        """What has come and is not handled yet, and how far there is no end of a line in it."""
        self._open: Message | None = None
        """The message whose bytes are still to come."""
        self.queued = 0
        """How many bytes were given to :meth:`send` in all; see :meth:`gone`."""
        self.closed = False

    def send(self, message: Message, along: bytes | None = None) -> None:
        """Send a message; never waits.

        :param along: bytes that are its member :data:`BYTES` at the other end.
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
            eventlet.spawn_n(self._write_on)

    def ask(self, message: Message, timeout: float | None = ANSWER_TIMEOUT) -> Message | None:
        """Send a message and wait for the answer to it; None when there is none in time.

        :param timeout: seconds; None waits for as long as the pipe is open.
        """
        if self.closed:
            return None
        self._number += 1
        number, event = self._number, Event()
        self._asked[number] = event
        self.send({**message, "number": number})
        found: Message | None = None
        try:
            with eventlet.Timeout(timeout, False):
                found = event.wait()
        finally:
            self._asked.pop(number, None)
        return found

    def answer(self, question: Message, message: Message, along: bytes | None = None) -> None:
        """Answer what the other end has asked; see :meth:`send`."""
        self.send({**message, "answers": question["number"]}, along)

    def gone(self, position: int) -> bool:
        """Whether the first *position* bytes of :attr:`queued` are where the other end finds them.

        They are in the socket's buffer then, or the pipe is closed.
        """
        return self.closed or self.queued - len(self._outgoing) >= position

    def run(self, handle: Callable[[Message], None]) -> None:
        """Give each message that comes to *handle*, until the other end closes."""
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
        """Handle what the other end has sent by now, without waiting for more.

        Does nothing where it is called by the handler of a message; no handler may wait, so that
        nothing else finds one at work. An exception of the handler closes the pipe.
        """
        if self._handle is None or self._handling or self.closed:
            return
        with contextlib.suppress(OSError):
            # The socket itself: a green one would wait.
            while piece := self._sock.fd.recv(LOOK):
                self._take(piece)

    def close(self) -> None:
        """Close this end; whoever waits for an answer gets none."""
        self.closed = True
        asked, self._asked = self._asked, {}
        for event in asked.values():
            event.send(None)
        with contextlib.suppress(OSError):
            # Whoever reads or writes wakes up by that, and not when the descriptor is closed.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._close_unless_waited_for()

    def _take(self, piece: bytes) -> None:
        self._incoming += piece
        if self._handling:
            # Another greenthread is at it, and comes to this as well: messages keep their order.
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
        """Return the next message that has come whole, and take it out of what has come."""
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
            # The socket itself: a green one gives way to others when it would block.
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
