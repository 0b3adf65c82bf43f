"""One process of haproxy: its descriptors, its start, its log and its end.

Everything that it needs comes by descriptors: the guests' listeners, which stay open in the daemon,
the configuration and the certificates in memory (:mod:`dfmeta.proxy.engines.haproxy.memory`), the
runtime interface. So nothing secret is in a file or in the list of processes, and haproxy needs no
path of the host. The file with the client's private key is emptied when haproxy has read it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dfmeta.errors import HaproxyError
from dfmeta.proxy.engines.haproxy.config import (
    PER_CONNECTION,
    map_name,
    render,
    server_names,
    waiting,
)
from dfmeta.proxy.engines.haproxy.memory import MemoryFile, sealed
from dfmeta.proxy.engines.haproxy.plan import Descriptors, Plan
from dfmeta.proxy.engines.haproxy.program import Program
from dfmeta.proxy.engines.haproxy.runtime import Runtime
from dfmeta.runtime import threads
from dfmeta.runtime.threads import wait_for_io
from dfmeta.runtime.throttle import Seldom, counted

LOG = logging.getLogger(__name__)

READY_TIMEOUT: Final = 10.0
"""Seconds until a new process answers."""
POLL: Final = 0.01
SPARE: Final = 512
"""Descriptors beyond those of connections: servers, listeners, checks."""
LINES: Final = 20
"""Lines of a process' own in the log within a minute."""
_LINE_MAX: Final = 65536
_OWN_LINE: Final = re.compile(r"\[([A-Z]+)\]\s+\([0-9]+\)\s*:\s*(.*)")
_LEVELS: Final[Mapping[str, int]] = {
    "NOTICE": logging.DEBUG,
    "WARNING": logging.WARNING,
    "ALERT": logging.ERROR,
    "EMERG": logging.ERROR,
}
_USUAL: Final = re.compile(r"Proxy \S+ stopped |Server \S+ is UP, ")
"""Lines of haproxy for each part of its configuration when it ends, and for hosts that it begins to
use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Contents of the files for TLS; empty: none."""

    ca: bytes = b""
    """Trusted authorities, PEM."""
    cert: bytes = b""
    """The client's certificate and its private key, PEM."""


class Process:
    """A running haproxy.

    :param listeners: the guests' listening sockets.
    :param handover: see :class:`~dfmeta.proxy.engines.haproxy.handover.Entrance`.
    :param told: called with each line about a request: a failed one, or with ``debug`` any.
    :raises OSError: when it cannot be started.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        secrets: Secrets,
        *,
        listeners: Sequence[Any],
        handover: int,
        told: Callable[[str], object],
    ) -> None:
        self.program, self.plan, self.secrets = program, plan, secrets
        self._own_lines = Seldom(LINES)
        given: list[int] = []
        with contextlib.ExitStack() as failed_start:
            mine, theirs = socket.socketpair()
            given.append(theirs.detach())
            self.runtime = Runtime(mine)
            failed_start.callback(self.runtime.close)
            try:
                self._key = MemoryFile("dfmeta-cert", secrets.cert) if secrets.cert else None
                if self._key is not None:
                    failed_start.callback(self._key.close)
                log, errors = (_pipe(given, failed_start) for _ in range(2))
                self._start([one.fileno() for one in listeners], handover, given)
            finally:
                for descriptor in given:
                    os.close(descriptor)
            failed_start.pop_all()
        threads.spawn_detached(_read_lines, log, told)
        threads.spawn_detached(_read_lines, errors, self._say)

    def _start(self, listeners: Sequence[int], handover: int, given: list[int]) -> None:
        """Run it.

        :param given: descriptors that it gets: of the runtime interface, of both pipes; those of
            its files are added.
        """
        plan, secrets = self.plan, self.secrets
        descriptors = Descriptors(
            listeners=tuple(listeners),
            handover=handover,
            cli=given[0],
            log=given[1],
            map=_file("map", b"", given),
            away=_file("away", AWAY, given),
            ca=_file("ca", secrets.ca, given) if secrets.ca else None,
            cert=_added(self._key.reader(), given) if self._key is not None else None,
        )
        if self.program.lua:
            text = waiting(plan, descriptors).encode("ascii")
            descriptors = replace(descriptors, waiting=_file("waiting", text, given))
        self.map = map_name(descriptors)
        text = render(plan, descriptors).encode("ascii")
        configuration = _file("configuration", text, given)
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            # Without a master process (-db).
            self.program.command(
                *("-db", "-f", f"/proc/self/fd/{configuration}"),
                descriptors=descriptors_of(plan.maxconn),
            ),
            pass_fds=[*listeners, handover, *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=given[2],
            cwd="/",
        )

    def runs(self, program: Program, plan: Plan, secrets: Secrets) -> bool:
        """Return whether it runs that program with that configuration."""
        return (self.program, self.plan, self.secrets) == (program, plan, secrets)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Return the exit status; negative: the number of the signal that ended it."""
        return self._process.poll()

    def wait_ready(self) -> None:
        """Wait until it answers.

        :raises HaproxyError: when it ends, or does not answer in time.
        """
        rounds = round(READY_TIMEOUT / POLL)
        for _ in range(rounds):
            with contextlib.suppress(HaproxyError):
                self.runtime.ask("show info", timeout=READY_TIMEOUT)
                if self.plan.several:
                    # Until it has checked a host, haproxy takes it for one that answers.
                    self.runtime.take_for_down(server_names(self.plan))
                if self._key is not None:
                    # haproxy has it in its memory now, and opens the file no more.
                    self._key.empty()
                return
            if not self.running:
                raise HaproxyError(cause=f"it ended at its start with status {self.status}")
            threads.sleep(POLL)
        raise HaproxyError(cause=f"it did not answer within {READY_TIMEOUT:g} s")

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self.running:
            return  # its process id may be another process' already
        ended = os.pidfd_open(self.pid)
        try:
            while self.running:
                wait_for_io(ended, read=True)
        finally:
            os.close(ended)

    def leave(self) -> None:
        """Make it answer running requests, close idle connections and end.

        Its map can still be changed.
        """
        try:
            self.runtime.hold()
        except HaproxyError as error:
            LOG.warning("%s; it is killed", error)
            self.kill()
        else:
            self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill it. Idempotent."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Close its runtime interface, after its end."""
        self._process.wait()
        self.runtime.close()
        if self._key is not None:
            self._key.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    def _say(self, line: str) -> None:
        """Log a line of haproxy's own, unless there have been many within a minute."""
        found = _OWN_LINE.fullmatch(line)
        kind, said = found.groups() if found is not None else ("WARNING", line)
        level = logging.DEBUG if _USUAL.match(said) else _LEVELS.get(kind, logging.WARNING)
        held = self._own_lines.take() if level > logging.DEBUG else 0
        if held is not None:
            LOG.log(level, "haproxy: %s%s", said, counted(held))


def descriptors_of(maxconn: int) -> int:
    """Return how many descriptors a process with that many connections may have open."""
    return PER_CONNECTION * maxconn + SPARE


AWAY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 24\r\n"
    b"Content-Type: text/plain; charset=UTF-8\r\n\r\n503 Service Unavailable\n"
)
"""The answer where Nova gave none in time; the same as the daemon's own engine gives."""


def _file(name: str, content: bytes, given: list[int]) -> int:
    """Return a descriptor of a file in memory."""
    return _added(sealed(f"dfmeta-{name}", content), given)


def _added(descriptor: int, given: list[int]) -> int:
    """Add a descriptor to *given*, and return it."""
    given.append(descriptor)
    return descriptor


def _pipe(given: list[int], failed: contextlib.ExitStack) -> int:
    """Return the daemon's end of a new pipe, and add the other one to *given*."""
    mine, theirs = os.pipe()
    failed.callback(os.close, mine)
    given.append(theirs)
    return mine


def _read_lines(descriptor: int, take: Callable[[str], object]) -> None:
    """Call *take* with each line until the other end is closed; close the descriptor."""
    os.set_blocking(descriptor, False)
    rest = b""
    try:
        while True:
            wait_for_io(descriptor, read=True)
            try:
                data = os.read(descriptor, _LINE_MAX)
            except BlockingIOError:
                continue
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LINE_MAX:]
            for line in lines:
                take(line.decode("ascii", "replace"))
            threads.sleep(0)
    finally:
        os.close(descriptor)
