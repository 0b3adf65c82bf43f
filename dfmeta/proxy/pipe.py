"""Messages between the daemon and a worker of its: JSON objects, one a line.

Bytes that come along with one follow its line as they are, so that a large document costs no more
than its copies. Both ends are ours: what comes is trusted, and never holds anything of a guest's
that decides.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
from eventlet.event import Event

Message = dict[str, Any]
PIECE = 262144
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
        self.closed = False

    def send(self, message: Message, along: bytes | None = None) -> None:
        """Send a message; never waits.

        :param along: bytes that are its member :data:`BYTES` at the other end.
        """
        if along is not None:
            message = {**message, BYTES: len(along)}
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._outgoing += along or b""
        if self._writing or self.closed:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._write()
        if self._outgoing and not self.closed:
            self._writing = True
            eventlet.spawn_n(self._write_on)

    def ask(self, message: Message, timeout: float = ANSWER_TIMEOUT) -> Message | None:
        """Send a message and wait for the answer to it; None when there is none in time."""
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

    def run(self, handle: Callable[[Message], None]) -> None:
        """Give each message that comes to *handle*, until the other end closes."""
        self._reading = True
        try:
            for message in self._messages():
                if "answers" not in message:
                    handle(message)
                elif (event := self._asked.pop(message["answers"], None)) is not None:
                    event.send(message)
        finally:
            self._reading = False
            self.close()

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

    def _messages(self) -> Iterator[Message]:
        buffer, looked = bytearray(), 0
        open_message: Message | None = None
        while True:
            try:
                piece = self._sock.recv(PIECE)
            except OSError:
                return
            if not piece:
                return
            buffer += piece
            while True:
                if open_message is not None:
                    size = open_message[BYTES]
                    if len(buffer) < size:
                        break
                    open_message[BYTES] = bytes(buffer[:size])
                    del buffer[:size]
                    yield open_message
                    looked, open_message = 0, None
                end = buffer.find(b"\n", looked)
                if end < 0:
                    looked = len(buffer)
                    break
                message = json.loads(buffer[:end])
                del buffer[: end + 1]
                looked = 0
                if BYTES in message:
                    open_message = message
                else:
                    yield message

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
