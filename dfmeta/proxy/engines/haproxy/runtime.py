"""haproxy's runtime interface, over a socket without a name.

haproxy inherits one end of a pair of sockets (``stats socket sockpair@N``). A connection is a new
pair, one end of which is sent over that socket (SCM_RIGHTS). So there is no file and no name: only
the daemon can connect.

Source: HAProxy 2.6, management guide, 9.3 "Unix Socket commands". Trust: the answers come from
haproxy, which parses guests' bytes: they are read strictly, and bounded.
"""

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dfmeta.errors import HaproxyError
from dfmeta.http.responses import BODY_MAX, PIECE
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_socket, original

_socket = original("socket")
AT_ONCE_TIMEOUT: Final = 0.05
"""Seconds for a command that the whole daemon waits for."""
COMMANDS: Final = 64
"""Commands of one connection."""
REQUEST: Final = 8192
"""Bytes of commands, or of a payload, that are sent at a time: haproxy closes the connection if its
buffer has no room for them (tune.bufsize)."""
_ENTRY: Final = re.compile(r"0x[0-9a-f]+ (\S+) (.+)")
_VERSION: Final = re.compile(r"New version created: ([0-9]+)\s*")

Changes = Mapping[str, str | None]
"""Source address → value of its entry; None: it has none."""

Rows = Mapping[str, Mapping[str, int]]
"""Key of a stick-table → type of data → value."""


class Runtime:
    """Sends commands to one haproxy.

    :param link: the daemon's end of the pair that haproxy listens on.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        link.setblocking(False)

    def ask(self, command: str, *, timeout: float = clock.ANSWER_TIMEOUT) -> str:
        """Send a command line, and return the whole answer.

        :raises HaproxyError: when there is no complete answer in time.
        """
        late = TimeoutError("no answer in time")
        with _failing(), threads.Timeout(timeout, late), self._connect(green_socket) as sock:
            sock.sendall(f"{command}\n".encode("ascii"))
            return _whole(sock)

    def ask_at_once(self, command: str, *, timeout: float = AT_ONCE_TIMEOUT) -> str:
        """Do as :meth:`ask` does, but let no other greenthread run meanwhile.

        :raises HaproxyError: when there is no complete answer in time.
        """
        with _failing(), self._connect(_socket) as sock:
            sock.settimeout(timeout)
            sock.sendall(f"{command}\n".encode("ascii"))
            return _whole(sock)

    def _connect(self, module: Any) -> Any:
        """Return a new connection, a socket of *module*."""
        near, far = module.socketpair()
        with far, contextlib.ExitStack() as failed:
            failed.callback(near.close)
            socket.send_fds(self._link, [b"x"], [far.fileno()])
            failed.pop_all()
        return near

    def change(self, name: str, before: Mapping[str, str], changes: Changes) -> None:
        """Change entries of the map *name*, each at once.

        :param before: its present entries. haproxy would add a second entry for an address that
            has one.
        :raises HaproxyError: when it does not confirm each of them.
        """
        commands = [
            _command(name, key, value, present=key in before) for key, value in changes.items()
        ]
        for batch in _batches(filter(None, commands), most=COMMANDS):
            answer = self.ask(";".join(batch))
            if answer != "\n" * len(batch):
                raise HaproxyError(cause=f"it did not change its map: {answer.strip()[:80]!r}")

    def set_at_once(
        self, name: str, keys: Iterable[str], value: str, *, timeout: float = AT_ONCE_TIMEOUT
    ) -> None:
        """Give entries of the map *name* another value; see :meth:`ask_at_once`.

        An address without an entry gets none.

        :raises HaproxyError: when there is no answer in time.
        """
        self.ask_at_once(";".join(f"set map {name} {key} {value}" for key in keys), timeout=timeout)

    def replace(self, name: str, entries: Mapping[str, str]) -> None:
        """Replace all entries of the map *name* at one moment.

        :raises HaproxyError: when it does not confirm exactly these entries.
        """
        match = _VERSION.fullmatch(self.ask(f"prepare map {name}"))
        if match is None:
            raise HaproxyError(cause="it did not prepare a new version of its map")
        version = match[1]
        for batch in _batches(f"{key} {value}" for key, value in entries.items()):
            payload = "\n".join(batch)
            answer = self.ask(f"add map @{version} {name} <<\n{payload}\n")
            if answer.strip():
                raise HaproxyError(cause=f"it did not add to its map: {answer.strip()[:80]!r}")
        shown = self.ask(f"show map @{version} {name}").split("\n")
        if sum(map(bool, shown)) != len(entries):
            raise HaproxyError(cause="its map has not all entries that it was given")
        if self.ask(f"commit map @{version} {name}").strip():
            raise HaproxyError(cause="it did not use the new version of its map")

    def entries(self, name: str) -> dict[str, str]:
        """Return the entries of the map *name*.

        :raises HaproxyError: when the answer is not a list of entries.
        """
        entries = {}
        for line in self.ask(f"show map {name}").splitlines():
            if line:
                key, value = _fields(line)
                entries[key] = value
        return entries

    def table(self, name: str, condition: str = "") -> Rows:
        """Return the stick-table *name*.

        :param condition: rows to return, such as ``data.conn_cur gt 0``.
        :raises HaproxyError: when the answer is not a table.
        """
        return _rows(self.ask(f"show table {name} {condition}"))

    def rows_at_once(self, name: str, keys: Iterable[str]) -> Rows:
        """Return those rows of the stick-table *name*; see :meth:`ask_at_once`.

        :raises HaproxyError: when the answer is not a table.
        """
        commands = [f"show table {name} key {key}" for key in keys]
        return _rows(self.ask_at_once(";".join(commands))) if commands else {}

    def statistics(self) -> list[dict[str, str]]:
        """Return the rows of ``show stat``: one for each frontend, backend and server.

        :raises HaproxyError: when the answer has no heading.
        """
        heading, *lines = self.ask("show stat").splitlines()
        if not heading.startswith("# "):
            raise HaproxyError(cause="its statistics are not readable")
        names = heading.removeprefix("# ").split(",")
        return [dict(zip(names, line.split(","), strict=False)) for line in lines if line]

    def shut_down(self, frontend: str) -> None:
        """Have a frontend accept no more connections; the present ones go on.

        :raises HaproxyError: when haproxy does not confirm it.
        """
        if self.ask(f"shutdown frontend {frontend}").strip():
            raise HaproxyError(cause="it did not shut its frontend down")

    def take_for_down(self, servers: Iterable[str]) -> None:
        """Have haproxy use servers only after its next check of each of them.

        :raises HaproxyError: when it does not confirm it.
        """
        commands = [f"set server {server} health down" for server in servers]
        if commands and self.ask(";".join(commands)).strip():
            raise HaproxyError(cause="it did not change the state of a server")

    def close(self) -> None:
        """Close the daemon's end. Idempotent."""
        self._link.close()


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise HaproxyError(cause=f"its runtime interface failed: {error}") from error


def _command(name: str, key: str, value: str | None, *, present: bool) -> str:
    if value is None:
        return f"del map {name} {key}" if present else ""
    return f"{'set' if present else 'add'} map {name} {key} {value}"


def _batches(lines: Iterable[str], *, most: int = REQUEST) -> Iterator[list[str]]:
    """Yield *lines* in lists of :data:`REQUEST` bytes, with separators, and *most* lines."""
    batch: list[str] = []
    size = 0
    for line in lines:
        if batch and (size + len(line) > REQUEST or len(batch) == most):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line) + 1
    if batch:
        yield batch


def _rows(answer: str) -> Rows:
    rows: dict[str, dict[str, int]] = {}
    for line in answer.splitlines():
        if not line or line.startswith("#"):
            continue
        _pointer, *words = line.split(" ")
        pairs = dict(word.partition("=")[::2] for word in words)
        try:
            key = pairs.pop("key")
            rows[key] = {kind: int(value) for kind, value in pairs.items()}
        except (KeyError, ValueError) as error:
            raise HaproxyError(cause="its table is not readable") from error
    return rows


def _fields(line: str) -> tuple[str, str]:
    """Return key and value of an entry; haproxy's answer has its address before them."""
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise HaproxyError(cause="its map is not readable")
    return match[1], match[2]


def _whole(sock: Any) -> str:
    """Return what haproxy sends until it closes; its answer ends with a newline.

    :raises ValueError: when that is too much, not ASCII, or the end comes early.
    """
    data = bytearray()
    while piece := sock.recv(PIECE):
        data += piece
        if len(data) > BODY_MAX:
            raise ValueError("the answer is too long")
    if not data.endswith(b"\n"):
        raise ValueError("the connection ended early")
    return data.decode("ascii")
