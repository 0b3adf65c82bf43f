"""The daemon's side of its workers: starts them, tells them who asks, replaces those that end.

Each worker has the listener and answers guests; the registry stays here. Its changes go to all
workers (:mod:`dfmeta.proxy.feed`). A worker takes in what is in its pipe before it claims a
connection and before an answer leaves (:class:`~dfmeta.proxy.claims.Mirror`), and
:meth:`Workers.inform` waits until the news is there. So one that is late, or hangs and goes on,
never answers a guest by what it knew before, and need not be ended for it.

Each worker is asked about once a second whether it lives; one that does not answer is ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import eventlet
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline
from prometheus_client import Metric

from dfmeta import hub, metrics
from dfmeta.guest_counts import ACCEPTED
from dfmeta.model import Endpoint
from dfmeta.proxy.claims import tell
from dfmeta.proxy.engine import Terms
from dfmeta.proxy.feed import SETTLE_TIMEOUT, Feed
from dfmeta.proxy.recent import RECENT
from dfmeta.proxy.sockets import FDS_MAX, keep_to
from dfmeta.proxy.worker.answers import WorkerAnswers
from dfmeta.proxy.worker.pipe import Message, Pipe
from dfmeta.proxy.worker.use import SlotUse
from dfmeta.registry import Registry

LOG = logging.getLogger(__name__)

MODULE = "dfmeta.cmd.worker"
END_TIMEOUT = 1.0
"""Seconds that the process of a worker may stay after its pipe."""
START_TIMEOUT = 30.0
BEAT = 1.0
"""Seconds that a worker's answer may take, and until it is asked again whether it lives."""
SILENT = 2
"""Rounds without an answer after which a worker does not count as serving."""
HANGS = 5
"""Rounds without an answer after which it is ended. A worker on a host that is short of CPU time
may well take more than one."""
LATE = 0.5
"""Seconds by which a round may end late; the daemon itself was late then, and the round does not
count."""
DRAIN = 10.0
"""Seconds that a worker which has been replaced may go on with what it has begun."""
OVERTIME = 2.0
"""Seconds after that until it is ended."""
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
        process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            [sys.executable, "-m", MODULE, *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        theirs.close()
        rights.close()
        self._prepare(process, ours, handle)

    def _prepare(self, process: Any, sock: Any, handle: Handle) -> None:
        self.process = process
        self.pipe = Pipe(sock)
        self.begun = time.monotonic()
        self.serving = False
        """It may answer guests, and so has to know of every change."""
        self.silent = False
        """It has not said for some seconds that it lives."""
        self.lost = False
        """The daemon has ended it, and has said so."""
        self.served = False
        """It has come to serve."""
        self.leaving = False
        self.succeeded = False
        """Another one is started in its place: whoever keeps it need not."""
        self.used: set[SlotUse] = set()
        """Addresses that it has connections of: they do not give way to others."""
        self.samples: metrics.Samples = {}
        self._handle = handle

    @property
    def follows(self) -> bool:
        """See :class:`~dfmeta.proxy.feed.Follower`."""
        return self.serving

    @property
    def position(self) -> int:
        """See :class:`~dfmeta.proxy.feed.Follower`."""
        return self.pipe.queued

    def tell(self, news: Message) -> None:
        """See :class:`~dfmeta.proxy.feed.Follower`."""
        self.pipe.send(news)

    def has(self, position: int) -> bool:
        """See :class:`~dfmeta.proxy.feed.Follower`."""
        return self.pipe.gone(position)

    def run(self, device: str) -> None:
        """Take what it says until it ends.

        :param device: that its connections are bound to.
        """
        eventlet.spawn_n(self._bind, device)
        try:
            self.pipe.run(lambda message: self._handle(self, message))
        except Exception as error:
            self._refuse(error)
        self.serving = False
        with contextlib.suppress(OSError):
            # Whoever waits for it wakes up by that. Closed, its number would be waited for as long
            # as the daemon runs, and who gets it next could not wait for it.
            self._rights.shutdown(socket.SHUT_RDWR)
        # Without its pipe it ends by itself, unless it hangs.
        with eventlet.Timeout(END_TIMEOUT, False):
            while self.process.poll() is None:
                eventlet.sleep(POLL)
        self.kill()
        self.process.wait()

    def _bind(self, device: str) -> None:
        """Bind again what it sends: it may not do so itself (socket(7), SO_BINDTODEVICE)."""
        try:
            while True:
                trampoline(self._rights, read=True)
                told, descriptors, _flags, _address = socket.recv_fds(self._rights.fd, 1, FDS_MAX)
                for descriptor in descriptors:
                    with socket.socket(fileno=descriptor) as connection:
                        keep_to(connection, device, anew=True)
                if not told:
                    break
        except OSError:
            LOG.debug("Worker %d sends no more connections", self.process.pid, exc_info=True)
        except Exception as error:
            self._refuse(error)
        self._rights.close()

    def _refuse(self, error: Exception) -> None:
        """End it for what it says. A guest may have taken it over: that must cost it alone."""
        if not self.lost:
            self.lost = True
            metrics.WORKERS_LOST.labels("nonsense").inc()
            LOG.error(
                "Worker %d says what cannot be read; it is ended and another one takes its place. "
                "Report this with the traceback below",
                self.process.pid,
                exc_info=error,
            )
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()


class Workers:
    """So many workers, all of the time.

    :param sock: the listener; it stays open here, so that what waits in its queue outlives them.
    :param count: how many.
    :param settings: what a worker is told at its start; secrets among it go over the pipe alone.
    :param answers: answers what they ask.
    :param device: name of tap-metadata, which answers leave by.
    """

    def __init__(
        self,
        sock: Any,
        registry: Registry,
        *,
        count: int,
        settings: Callable[[], Message],
        answers: WorkerAnswers,
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
        self._answers = answers
        self._device = device
        self._workers: list[Worker] = []
        self._stopping = False
        self._feed: Feed[Worker] = Feed(registry, self._news, lambda: self._workers)
        self._retired: metrics.Samples = {}
        self._replaced: list[Callable[[], None]] = []
        """Who is to be told of the next replacement."""
        self._replacing = False

    @property
    def serving(self) -> bool:
        """Whether guests are answered: one worker that lives is enough."""
        return any(one.serving and not one.silent for one in self._workers)

    def start(self) -> None:
        """Start all of them; see :attr:`serving`."""
        hub.VITAL.spawn(
            "news for the workers", self._feed.run, lambda: self._stopping, may_return=True
        )
        for _ in range(self._count):
            self._keep()

    def inform(self) -> None:
        """Have all that the registry knows at this moment where each worker takes it in.

        A worker whose pipe has no room for it in time is ended.
        """
        for worker in self._feed.inform():
            self._end(worker, "full", f"has not read for {SETTLE_TIMEOUT:g} s what the daemon says")

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """Have others take over, with the settings of now; these end what they have begun.

        One replacement at a time: what is asked for meanwhile is done after it, at once for all.

        :param terms: the others read them from their settings.
        :param done: called when all have.
        """
        del terms
        self._replaced.append(done)
        if not self._replacing:
            self._replacing = True
            hub.VITAL.spawn("replacement of workers", self._replace_all, may_return=True)

    def _replace_all(self) -> None:
        while self._replaced:
            told, self._replaced = self._replaced, []
            before = [worker for worker in self._workers if not worker.leaving]
            for worker in before:
                worker.succeeded = True
                self._keep(worker)
            while any(one in self._workers and one.succeeded and not one.leaving for one in before):
                eventlet.sleep(POLL)
            if all(one.leaving or one not in self._workers for one in before):
                for done in told:
                    done()
            else:
                LOG.error(
                    "A worker does not come up with the configuration of now; the one of before "
                    "goes on with its own. See the lines above, and send SIGHUP again"
                )
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
            eventlet.spawn(self._scrape, worker)
            for worker in self._workers
            if worker.serving and not worker.silent
        ]
        for thread in asking:
            thread.wait()
        return metrics.merged([self._retired, *(worker.samples for worker in self._workers)])

    def gather(self) -> None:
        """Have what all workers have noted of requests in the daemon's own record."""
        asking = [
            eventlet.spawn(worker.pipe.ask, {"what": "recent"}, SCRAPE_TIMEOUT)
            for worker in self._workers
            if worker.serving and not worker.silent
        ]
        for thread in asking:
            thread.wait()

    # Processes

    def _keep(self, predecessor: Worker | None = None) -> None:
        hub.VITAL.spawn("keeper of a worker", self._keep_one, predecessor, may_return=True)

    def _keep_one(self, predecessor: Worker | None) -> None:
        """Start a worker, and another one whenever it ends.

        :param predecessor: that the worker takes the place of; goes on where it does not come up.
        """
        pause = PAUSE_MIN
        while not self._stopping:
            try:
                worker = Worker(self._sock.fileno(), self._handle)
            except OSError as error:
                LOG.warning("No worker can be started: %s; it is tried again", error.strerror)
                if self._stays(predecessor):
                    return
                eventlet.sleep(PAUSE_MAX)
                continue
            self._workers.append(worker)
            worker.pipe.send({"what": "start", **self._settings()})
            hub.VITAL.spawn(
                "start of a worker", self._introduce, worker, predecessor, may_return=True
            )
            worker.run(self._device)
            self._forget(worker)
            if worker.leaving or worker.succeeded or self._stopping:
                return
            if not worker.lost:
                metrics.WORKERS_LOST.labels("ended").inc()
                LOG.error(
                    "Worker %d has ended with status %s; another one is started",
                    worker.process.pid,
                    worker.process.returncode,
                )
            if not worker.served and self._stays(predecessor):
                return
            predecessor = None
            pause = PAUSE_MIN if time.monotonic() - worker.begun > LIVED else pause * 2
            eventlet.sleep(min(pause, PAUSE_MAX))

    def _stays(self, predecessor: Worker | None) -> bool:
        """Have a worker go on whose successor has not come up; False when it has ended too."""
        if predecessor is None or predecessor not in self._workers:
            return False
        predecessor.succeeded = False
        return True

    def _end(self, worker: Worker, reason: metrics.WorkerLost, fault: str) -> None:
        """Kill a worker; its keeper starts another one, unless it has a successor."""
        if worker.lost:
            return
        worker.lost = True
        metrics.WORKERS_LOST.labels(reason).inc()
        LOG.error(
            "Worker %d %s; it is ended. If it happens again, see whether the host has CPU time and "
            "memory left for it",
            worker.process.pid,
            fault,
        )
        worker.kill()

    def _watch(self, worker: Worker) -> None:
        """Ask a worker whether it lives, until its pipe is closed; end it if it does not."""
        while not worker.pipe.closed:
            asking = eventlet.spawn(worker.pipe.ask, {"what": "ready?"}, None)
            missed = 0
            while not asking.dead:
                begun = time.monotonic()
                with eventlet.Timeout(BEAT, False):
                    asking.wait()
                if asking.dead or time.monotonic() - begun > BEAT + LATE:
                    continue
                missed += 1
                worker.silent = missed >= SILENT
                if missed == HANGS:
                    self._end(worker, "hangs", f"hangs: no answer for {HANGS * BEAT:g} s")
            worker.silent = False
            eventlet.sleep(BEAT)

    def _introduce(self, worker: Worker, predecessor: Worker | None) -> None:
        """Tell a new worker of everybody and have it serve; what changes follows in its order."""
        self._feed.introduce(worker)
        if worker.pipe.ask({"what": "ready?"}, START_TIMEOUT) is None:
            if not worker.pipe.closed:
                self._end(worker, "start", f"does not come up within {START_TIMEOUT:g} s")
            return
        worker.serving = worker.served = True
        worker.pipe.send({"what": "serve"})
        hub.VITAL.spawn("watch over a worker", self._watch, worker, may_return=True)
        if predecessor is not None:
            predecessor.leaving = True
            predecessor.pipe.send({"what": "stop", "grace": DRAIN})
            eventlet.spawn_after(DRAIN + OVERTIME, self._see_off, predecessor)

    def _see_off(self, worker: Worker) -> None:
        """End a worker that was replaced and has not ended yet."""
        if worker in self._workers:
            self._end(worker, "stays", f"was replaced {DRAIN + OVERTIME:g} s ago and has not ended")

    def _forget(self, worker: Worker) -> None:
        self._workers.remove(worker)
        now = time.monotonic()
        for ofport, vid, slot, epoch in worker.used:
            self._registry.count_connections(Endpoint(ofport, vid), slot, epoch, -1, now)
        metrics.add(self._retired, metrics.lasting(worker.samples))

    def _scrape(self, worker: Worker) -> None:
        found = worker.pipe.ask({"what": "metrics"}, SCRAPE_TIMEOUT)
        if found is not None:
            worker.samples = metrics.samples_from(found["samples"])

    # What they say

    def _handle(self, worker: Worker, message: Message) -> None:
        match message["what"]:
            case "use":
                self._note_use(worker, tuple(message["place"]), used=message["used"])
            case "samples":
                worker.samples = metrics.samples_from(message["samples"])
            case "accepted":
                ACCEPTED.merge(message["ports"], self._incarnation)
            case "recent":
                RECENT.add(message["ports"], self._incarnation)
            case _:
                self._answers.handle(worker.pipe, message)

    def _incarnation(self, endpoint: Endpoint) -> int | None:
        identity = self._registry.identity(endpoint)
        return None if identity is None else identity.incarnation

    def _note_use(self, worker: Worker, use: SlotUse, *, used: bool) -> None:
        ofport, vid, slot, epoch = use
        if used is (use in worker.used):
            return
        (worker.used.add if used else worker.used.remove)(use)
        change, now = (1 if used else -1), time.monotonic()
        self._registry.count_connections(Endpoint(ofport, vid), slot, epoch, change, now)

    # What they know

    def _news(self, endpoints: Sequence[Endpoint], new: bool) -> Message:
        told = [tell(self._registry, one, waits=not new) for one in endpoints]
        return {"what": "guests", "guests": told}
