"""A relay between a program and a unix socket; a test controls when data reaches the program."""

import contextlib
import socket
import threading
from pathlib import Path

from tests.harness.closing import Closing

_PIECE = 65536


class Relay(Closing):
    """A unix socket that forwards to another one; a context manager that closes it."""

    def __init__(self, target: Path, path: Path) -> None:
        """Listen on ``path``, and forward connections to ``target``."""
        self.path = path
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close the socket and its connections. Idempotent."""
        with self._lock:
            self._closed = True
            for sock in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._open.set()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def hold(self) -> None:
        """Hold the target's data from now on; no data is lost."""
        self._open.clear()

    def let_go(self) -> None:
        """Forward the held data, and continue to forward."""
        self._open.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets |= {client, server}
                for source, sink, answers in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(
                        target=self._pass, args=(source, sink, answers), daemon=True
                    )
                    thread.start()

    def _connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(str(self._target))
        except OSError:
            server.close()
            raise
        return server

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if answers:
                    self._open.wait()
                sink.sendall(piece)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()
