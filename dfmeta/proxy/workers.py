"""The daemon's side of its workers: starts them, tells them who asks, replaces those that end.

Each worker has the listener and answers guests; the registry stays here. Whatever changes in it is
told to all workers in its order, and :meth:`Workers.settle` waits until each says that it knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import eventlet
from eventlet.event import Event
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline
from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.hub import Turns
from dfmeta.model import Endpoint
from dfmeta.proxy.claims import tell
from dfmeta.proxy.desk import Desk
from dfmeta.proxy.pipe import Message, Pipe
from dfmeta.proxy.recent import RECENT
from dfmeta.proxy.sockets import FDS_MAX, keep_to
from dfmeta.proxy.use import Place
from dfmeta.registry import Registry

LOG = logging.getLogger(__name__)

MODULE = "dfmeta.cmd.worker"
AT_ONCE = 32
"""Ports that one message tells of."""
SETTLE_TIMEOUT = 1.0
"""Seconds that a worker has to say that it knows; after that it is ended, and answers nobody."""
START_TIMEOUT = 30.0
DRAIN = 10.0
"""Seconds that a worker which has been replaced may go on with what it has begun."""
HEAD_START = 0.3
"""Seconds of the grace at the end that are kept for the workers' own end."""
LIVED = 5.0
"""Seconds after which a worker that ends was not ended by its start."""
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
"""Seconds until another one is started, where the last one has not lived."""
POLL = 0.01
SCRAPE_TIMEOUT = 0.5

Handle = Callable[["Worker", Message], None]


class Worker:
    """One process, as the daemon sees it."""

    def __init__(self, listener: int, handle: Handle) -> None:
        ours, theirs = green_socket.socketpair()
        self._rights, rights = green_socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = (listener, theirs.fileno(), rights.fileno())
        self.process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            [sys.executable, "-m", MODULE, *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        theirs.close()
        rights.close()
        self.pipe = Pipe(ours)
        self.begun = time.monotonic()
        self.known = -1
        """Up to which mark it has said to know the registry."""
        self.serving = False
        """It may answer guests, and so has to know of every change."""
        self.leaving = False
        self.succeeded = False
        """Another one is started in its place: whoever keeps it need not."""
        self.used: set[Place] = set()
        """Addresses that it has connections of: they do not give way to others."""
        self.samples: metrics.Samples = {}
        self._handle = handle

    def run(self, device: str) -> None:
        """Take what it says until it ends.

        :param device: that its connections are bound to.
        """
        eventlet.spawn_n(self._bind, device)
        self.pipe.run(lambda message: self._handle(self, message))
        self.serving = False
        with contextlib.suppress(OSError):
            # Whoever waits for it wakes up by that. Closed, its number would be waited for as long
            # as the daemon runs, and who gets it next could not wait for it.
            self._rights.shutdown(socket.SHUT_RDWR)
        # Without its pipe it ends by itself, unless it hangs.
        with eventlet.Timeout(SETTLE_TIMEOUT, False):
            while self.process.poll() is None:
                eventlet.sleep(POLL)
        self.kill()
        self.process.wait()

    def _bind(self, device: str) -> None:
        """Bind again what it sends: it may not do so itself (socket(7), SO_BINDTODEVICE)."""
        with contextlib.suppress(OSError):
            while True:
                trampoline(self._rights, read=True)
                told, descriptors, _flags, _address = socket.recv_fds(self._rights.fd, 1, FDS_MAX)
                for descriptor in descriptors:
                    with socket.socket(fileno=descriptor) as connection:
                        keep_to(connection, device, anew=True)
                if not told:
                    break
        self._rights.close()

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()


class Workers:
    """So many workers, all of the time.

    :param sock: the listener; it stays open here, so that what waits in its queue outlives them.
    :param count: how many.
    :param settings: what a worker is told at its start; secrets among it go over the pipe alone.
    :param desk: answers what they ask.
    :param device: name of tap-metadata, which answers leave by.
    """

    def __init__(
        self,
        sock: Any,
        registry: Registry,
        *,
        count: int,
        settings: Callable[[], Message],
        desk: Desk,
        device: str,
    ) -> None:
        self.port = int(sock.getsockname()[1])
        """TCP port that they listen on."""
        self.inode = os.fstat(sock.fileno()).st_ino
        """The listener's inode."""
        self._sock = sock
        self._registry = registry
        self._count = count
        self._settings = settings
        self._desk = desk
        self._device = device
        self._workers: list[Worker] = []
        self._stopping = False
        self._marks = 0
        self._dirty: dict[int, int] = {}
        """Port → the first of its marks that nobody has been told of, in their order."""
        self._wake = Event()
        self._waiting: list[tuple[int, Event]] = []
        self._retired: metrics.Samples = {}
        self._replaced: list[Callable[[], None]] = []
        """Who is to be told of the next replacement."""
        self._replacing = False
        registry.watch(self._mark)

    @property
    def serving(self) -> bool:
        """Whether guests are answered."""
        return any(one.serving for one in self._workers)

    def start(self) -> None:
        """Start all of them; see :attr:`serving`."""
        eventlet.spawn_n(self._tell_on)
        for _ in range(self._count):
            eventlet.spawn_n(self._keep_one)

    def settle(self) -> None:
        """Wait until every worker knows what the registry knows at this moment.

        One that does not say so in time is ended.
        """
        target = self._marks
        if self._all_know(target):
            return
        event = Event()
        self._waiting.append((target, event))
        with eventlet.Timeout(SETTLE_TIMEOUT, False):
            event.wait()
        if event.ready():
            return
        self._waiting.remove((target, event))
        for worker in self._workers:
            if worker.serving and worker.known < target:
                LOG.error("Worker %d hangs; it is ended", worker.process.pid)
                worker.kill()

    def replace(self, done: Callable[[], None]) -> None:
        """Have others take over, with the settings of now; these end what they have begun.

        One replacement at a time: what is asked for meanwhile is done after it, at once for all.

        :param done: called when all have.
        """
        self._replaced.append(done)
        if not self._replacing:
            self._replacing = True
            eventlet.spawn_n(self._replace_all)

    def _replace_all(self) -> None:
        while self._replaced:
            told, self._replaced = self._replaced, []
            before = [worker for worker in self._workers if not worker.leaving]
            for worker in before:
                worker.succeeded = True
                eventlet.spawn_n(self._keep_one, worker)
            while not all(worker.leaving for worker in before):
                eventlet.sleep(POLL)
            for done in told:
                done()
        self._replacing = False

    def rebind(self) -> None:
        """Tell them that the device has been made anew."""
        for worker in self._workers:
            worker.pipe.send({"what": "rebind"})

    def stop(self, grace: float) -> None:
        """Have them accept no more and answer what they have, within *grace* seconds."""
        self._stopping = True
        for worker in self._workers:
            worker.pipe.send({"what": "stop", "grace": max(0.0, grace - HEAD_START)})
        with eventlet.Timeout(grace, False):
            while self._workers:
                eventlet.sleep(POLL)
        for worker in self._workers:
            worker.kill()
        self._sock.close()

    def collect(self) -> list[Metric]:
        """The daemon's metrics with what all workers have counted, those that ended as well."""
        asking = [
            eventlet.spawn(self._scrape, worker) for worker in self._workers if worker.serving
        ]
        for thread in asking:
            thread.wait()
        return metrics.merged([self._retired, *(worker.samples for worker in self._workers)])

    def gather(self) -> None:
        """Have what all workers have noted of requests in the daemon's own record."""
        asking = [
            eventlet.spawn(worker.pipe.ask, {"what": "recent"}, SCRAPE_TIMEOUT)
            for worker in self._workers
            if worker.serving
        ]
        for thread in asking:
            thread.wait()

    # Processes

    def _keep_one(self, predecessor: Worker | None = None) -> None:
        pause = PAUSE_MIN
        while not self._stopping:
            try:
                worker = Worker(self._sock.fileno(), self._handle)
            except OSError as error:
                LOG.warning("No worker can be started: %s; it is tried again", error.strerror)
                eventlet.sleep(PAUSE_MAX)
                continue
            self._workers.append(worker)
            worker.pipe.send({"what": "start", **self._settings()})
            eventlet.spawn_n(self._introduce, worker, predecessor)
            worker.run(self._device)
            self._forget(worker)
            if worker.leaving or worker.succeeded or self._stopping:
                return
            LOG.error(
                "Worker %d has ended with status %s; another one is started",
                worker.process.pid,
                worker.process.returncode,
            )
            pause = PAUSE_MIN if time.monotonic() - worker.begun > LIVED else pause * 2
            eventlet.sleep(min(pause, PAUSE_MAX))

    def _introduce(self, worker: Worker, predecessor: Worker | None) -> None:
        """Tell a new worker of everybody and have it serve; what changes follows in its order."""
        turns, endpoints = Turns(), self._registry.endpoints()
        for first in range(0, len(endpoints), AT_ONCE):
            told = [
                tell(self._registry, one, waits=False) for one in endpoints[first : first + AT_ONCE]
            ]
            worker.pipe.send({"what": "guests", "known": -1, "guests": told})
            turns.give_way()
        # From the moment that it may serve it has to know; so it does not before it can say so.
        if worker.pipe.ask({"what": "ready?"}, START_TIMEOUT) is None:
            worker.kill()
            return
        worker.serving = True
        worker.pipe.send({"what": "serve", "known": self._told()})
        if predecessor is not None:
            predecessor.leaving = True
            predecessor.pipe.send({"what": "stop", "grace": DRAIN})

    def _forget(self, worker: Worker) -> None:
        self._workers.remove(worker)
        now = time.monotonic()
        for ofport, vid, slot, epoch in worker.used:
            self._registry.count_connections(Endpoint(ofport, vid), slot, epoch, -1, now)
        metrics.add(self._retired, metrics.lasting(worker.samples))
        self._release()

    def _scrape(self, worker: Worker) -> None:
        found = worker.pipe.ask({"what": "metrics"}, SCRAPE_TIMEOUT)
        if found is not None:
            worker.samples = metrics.samples_from(found["samples"])

    # What they say

    def _handle(self, worker: Worker, message: Message) -> None:
        match message["what"]:
            case "known":
                worker.known = max(worker.known, message["known"])
                self._release()
            case "use":
                self._note_use(worker, tuple(message["place"]), used=message["used"])
            case "samples":
                worker.samples = metrics.samples_from(message["samples"])
            case "recent":
                RECENT.add(message["ports"], self._incarnation)
            case _:
                self._desk.handle(worker.pipe, message)

    def _incarnation(self, endpoint: Endpoint) -> int | None:
        identity = self._registry.identity(endpoint)
        return None if identity is None else identity.incarnation

    def _note_use(self, worker: Worker, place: Place, *, used: bool) -> None:
        if used is (place in worker.used):
            return
        (worker.used.add if used else worker.used.remove)(place)
        ofport, vid, slot, epoch = place
        change, now = (1 if used else -1), time.monotonic()
        self._registry.count_connections(Endpoint(ofport, vid), slot, epoch, change, now)

    # What they know

    def _mark(self, ofport: int) -> None:
        self._marks += 1
        self._dirty.setdefault(ofport, self._marks)
        if not self._wake.ready():
            self._wake.send()

    def _told(self) -> int:
        """Up to which mark everything has been told."""
        return next(iter(self._dirty.values()), self._marks + 1) - 1

    def _tell_on(self) -> None:
        turns = Turns()
        while not self._stopping:
            self._wake.wait()
            self._wake = Event()
            while self._dirty:
                told = []
                for ofport in list(self._dirty)[:AT_ONCE]:
                    del self._dirty[ofport]
                    told.append(tell(self._registry, Endpoint(ofport)))
                message = {"what": "guests", "known": self._told(), "guests": told}
                for worker in self._workers:
                    worker.pipe.send(message)
                self._release()
                turns.give_way()

    def _all_know(self, mark: int) -> bool:
        return all(one.known >= mark for one in self._workers if one.serving)

    def _release(self) -> None:
        for mark, event in list(self._waiting):
            if self._all_know(mark):
                self._waiting.remove((mark, event))
                event.send()
