"""Messages between the daemon and a worker of its: JSON objects, one a line.

Both ends are ours: what comes is trusted, and never holds anything of a guest's that decides.
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
PIECE = 65536
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

    def send(self, message: Message) -> None:
        """Send a message; never waits."""
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
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

    def answer(self, question: Message, message: Message) -> None:
        """Answer what the other end has asked."""
        self.send({**message, "answers": question["number"]})

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
        if not self._reading:
            self._sock.close()

    def _messages(self) -> Iterator[Message]:
        rest = b""
        while True:
            try:
                piece = self._sock.recv(PIECE)
            except OSError:
                return
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(json.loads, lines)

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
