"""One process of haproxy: its descriptors, its start, its log and its end.

Everything that it needs comes by descriptors: the guests' listeners, which stay open in the daemon,
the configuration and the certificates in files that exist only in memory (memfd_create(2)), the
runtime interface. So nothing secret is in a file or in the list of processes, and haproxy needs no
path of the host. The file with the client's private key is emptied when haproxy has read it.

Trust: haproxy, which runs as another user, cannot change such a file. It belongs to the daemon's
user, has mode 0444 and is sealed (fcntl(2), "File Sealing"), and haproxy's descriptor can only
read.
"""

import contextlib
import fcntl
import logging
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dfmeta.errors import HaproxyError
from dfmeta.http.responses import PIECE
from dfmeta.proxy.engines.engine import DRAIN, START_TIMEOUT
from dfmeta.proxy.engines.haproxy import entries, runtime
from dfmeta.proxy.engines.haproxy.config import (
    FRONTEND,
    LINES,
    PER_CONNECTION,
    map_name,
    render,
    server_names,
    waiting,
)
from dfmeta.proxy.engines.haproxy.counts import Counts, load
from dfmeta.proxy.engines.haproxy.plan import Descriptors, HaproxyPlan
from dfmeta.runtime import clock, threads
from dfmeta.runtime.throttle import FIRST_PAUSE, LogThrottle, counted

LOG = logging.getLogger(__name__)

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW
"""Seals of a file that can only be emptied."""
IDLE: Final = 0.5
"""Seconds without a request after which a process that leaves is killed: a connection may be about
to begin one."""
SPARE: Final = 512
"""Descriptors beyond those of connections: servers, listeners, checks."""
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


class MemoryFile:
    """A file in memory with a content that can only be deleted.

    :param name: shown by proc(5).
    :param seals: further seals.
    :raises OSError: when the kernel refuses.
    """

    def __init__(self, name: str, content: bytes, *, seals: int = 0) -> None:
        self._writable = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(self._writable, "wb", closefd=False) as file:
                file.write(content)
            os.fchmod(self._writable, 0o444)
            fcntl.fcntl(self._writable, fcntl.F_ADD_SEALS, _SEALS | seals)
        except BaseException:
            self.close()
            raise

    def reader(self) -> int:
        """Return a new descriptor that can only read; the caller closes it."""
        return os.open(f"/proc/self/fd/{self._writable}", os.O_RDONLY | os.O_CLOEXEC)

    def empty(self) -> None:
        """Delete the content, for each process that has a descriptor of the file. Idempotent."""
        if self._writable >= 0:
            os.ftruncate(self._writable, 0)
            self.close()

    def close(self) -> None:
        """Give up the means to empty the file. Idempotent."""
        if self._writable >= 0:
            os.close(self._writable)
            self._writable = -1


def sealed(name: str, content: bytes) -> int:
    """Return a descriptor that reads a new file in memory, which stays as it is.

    :raises OSError: when the kernel refuses.
    """
    file = MemoryFile(name, content, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    try:
        return file.reader()
    finally:
        file.close()


class Process:
    """A running haproxy with its map.

    :param listeners: the guests' listening sockets.
    :param handover: see :class:`~dfmeta.proxy.engines.haproxy.handover.Entrance`.
    :param counts: gets its counters, and its lines about requests: failed ones, or with ``debug``
        all.
    :raises OSError: when it cannot be started.
    """

    def __init__(
        self,
        plan: HaproxyPlan,
        *,
        listeners: Sequence[Any],
        handover: int,
        counts: Counts,
    ) -> None:
        self.plan, self.counts = plan, counts
        self.leaving = False
        """Whether it answers its running requests and is killed then."""
        self.lost = False
        """Whether the daemon has killed it and logged that."""
        self._own_lines = LogThrottle(LINES)
        given: list[int] = []
        with contextlib.ExitStack() as failed_start:
            link, far_end = socket.socketpair()
            given.append(far_end.detach())
            self.runtime = runtime.Runtime(link)
            failed_start.callback(self.runtime.close)
            try:
                cert = plan.secrets.cert
                self._key = MemoryFile("dfmeta-cert", cert) if cert else None
                if self._key is not None:
                    failed_start.callback(self._key.close)
                log, errors = (_pipe(given, failed_start) for _ in range(2))
                self._start([listener.fileno() for listener in listeners], handover, given)
            finally:
                for descriptor in given:
                    os.close(descriptor)
            failed_start.pop_all()
        threads.spawn_detached(_read_lines, log, counts.note)
        threads.spawn_detached(_read_lines, errors, self._say)

    def _start(self, listeners: Sequence[int], handover: int, given: list[int]) -> None:
        """Run it.

        :param given: descriptors that it gets: of the runtime interface, of both pipes; those of
            its files are added.
        """
        plan, authorities = self.plan, self.plan.secrets.ca
        descriptors = Descriptors(
            listeners=tuple(listeners),
            handover=handover,
            cli=given[0],
            log=given[1],
            map=_file("map", b"", given),
            away=_file("away", AWAY, given),
            ca=_file("ca", authorities, given) if authorities else None,
            cert=_added(self._key.reader(), given) if self._key is not None else None,
        )
        if plan.program.lua:
            text = waiting(plan, descriptors).encode("ascii")
            descriptors = replace(descriptors, waiting=_file("waiting", text, given))
        self.map = entries.GuestMap(self.runtime, map_name(descriptors))
        text = render(plan, descriptors).encode("ascii")
        configuration = _file("configuration", text, given)
        self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            # Without a master process (-db).
            plan.program.command(
                *("-db", "-f", f"/proc/self/fd/{configuration}"),
                descriptors=descriptors_of(plan.maxconn),
            ),
            pass_fds=[*listeners, handover, *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=given[2],
            cwd="/",
        )

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
        until = clock.now() + START_TIMEOUT
        while clock.now() < until:
            with contextlib.suppress(HaproxyError):
                self.runtime.ask("show info", timeout=START_TIMEOUT)
                if self.plan.several:
                    # Until it has checked a host, haproxy takes it for one that answers.
                    self.runtime.take_for_down(server_names(self.plan))
                if self._key is not None:
                    # haproxy has it in its memory now, and opens the file no more.
                    self._key.empty()
                return
            if not self.running:
                raise HaproxyError(cause=f"it ended at its start with status {self.status}")
            threads.sleep(clock.POLL)
        raise HaproxyError(cause=f"it did not answer within {START_TIMEOUT:g} s")

    def answers(self, seconds: float) -> bool:
        """Return whether it answers a check within so many seconds."""
        try:
            self.runtime.ask("show version", timeout=seconds)
        except HaproxyError:
            return False
        return True

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self.running:
            return  # its process id may be another process' already
        ended = os.pidfd_open(self.pid)
        try:
            while self.running:
                threads.wait_for_io(ended, read=True)
        finally:
            os.close(ended)

    def leave(self) -> None:
        """Make it accept no more connections, answer its requests and end. Idempotent.

        Its map follows until then: haproxy would not take changes after its own signal for this.
        """
        if self.leaving:
            return
        self.leaving = True
        self.read_counts()
        try:
            self.runtime.shut_down(FRONTEND)
        except HaproxyError as error:
            LOG.warning("%s; it is killed", error)
            self.kill()
        else:
            threads.spawn_detached(self._let_go)

    def _let_go(self) -> None:
        """Kill it after its last request or its time, with its counters read."""
        busy = clock.now()
        until = busy + DRAIN
        while self.running and clock.now() < until:
            try:
                connections, requests = load(self.runtime)
                busy = clock.now() if requests else busy
                if not connections or clock.now() - busy > IDLE:
                    self.counts.read(self.runtime)
                    break
            except HaproxyError as error:
                # On a busy machine an answer may be late: the counts would be lost.
                LOG.debug("%s", error)
            threads.sleep(FIRST_PAUSE)
        else:
            self.read_counts()
        self.kill()

    def read_counts(self) -> None:
        """Read its counters, if it answers."""
        try:
            self.counts.read(self.runtime)
        except HaproxyError as error:
            LOG.debug("haproxy's counters cannot be read: %s", error)

    def kill(self) -> None:
        """Kill it. Idempotent."""
        if self.running:
            self._process.kill()

    def close(self) -> None:
        """Kill it if it runs, and close its runtime interface."""
        self.map.end()
        self.kill()
        self._process.wait()
        self.runtime.close()
        self.counts.ended()
        if self._key is not None:
            self._key.close()

    def _say(self, line: str) -> None:
        """Log a line of haproxy's own, unless there have been many within a minute."""
        match = _OWN_LINE.fullmatch(line)
        kind, text = match.groups() if match is not None else ("WARNING", line)
        level = logging.DEBUG if _USUAL.match(text) else _LEVELS.get(kind, logging.WARNING)
        held = self._own_lines.take() if level > logging.DEBUG else 0
        if held is not None:
            LOG.log(level, "haproxy: %s%s", text, counted(held))


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
    reading, writing = os.pipe()
    failed.callback(os.close, reading)
    given.append(writing)
    return reading


def _read_lines(descriptor: int, take: Callable[[str], object]) -> None:
    """Call *take* with each line until the other end is closed; close the descriptor."""
    os.set_blocking(descriptor, False)
    rest = b""
    try:
        while True:
            threads.wait_for_io(descriptor, read=True)
            try:
                data = os.read(descriptor, PIECE)
            except BlockingIOError:
                continue
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-PIECE:]
            for line in lines:
                take(line.decode("ascii", "replace"))
            threads.sleep(0)
    finally:
        os.close(descriptor)
