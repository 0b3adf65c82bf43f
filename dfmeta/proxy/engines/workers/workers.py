"""The daemon's side of its workers: start them, send them identities, replace those that end.

Each worker has the listeners and answers guests; the registry stays in the daemon. Its changes go
to all workers (:mod:`dfmeta.proxy.replicator`). A worker reads its pipe before it claims a
connection and before an answer leaves (:class:`~dfmeta.proxy.claims.Mirror`), and
:meth:`Workers.inform` waits until the changes are in the pipes. So a worker that is late, or hangs
and continues, never answers a guest from outdated identities, and need not be killed for it. If the
daemon is late, a worker's answers wait for it
(:class:`~dfmeta.proxy.engines.workers.calls.Echo`).

The daemon checks about once a second whether each worker answers; a worker that does not is killed.
"""

import contextlib
import functools
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import Metric

from dfmeta import metrics, model
from dfmeta.http.sockets import FDS_MAX, keep_to
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.proxy.claims import endpoint_state
from dfmeta.proxy.engines.engine import (
    DRAIN,
    HANGS,
    HEAD_START,
    START_TIMEOUT,
    Engine,
    EngineSettings,
    Restarts,
    watch,
)
from dfmeta.proxy.engines.workers import calls, pipe
from dfmeta.proxy.recent import RECENT
from dfmeta.proxy.replicator import SETTLE_TIMEOUT, Replicator
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.threads import green_socket, wait_for_io

LOG = logging.getLogger(__name__)

MODULE = "dfmeta.cmd.worker"
SILENT = 2
"""Checks without an answer after which a worker does not count as serving."""
BUSY = "If this happens again, check that the host has enough CPU time and memory"


class Worker:
    """The daemon's state of one worker process."""

    def __init__(self, listeners: Sequence[int]) -> None:
        near, far = green_socket.socketpair()
        self._rights, rights = green_socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first, *others = listeners
        given = (first, far.fileno(), rights.fileno(), *others)
        process = subprocess.Popen(  # noqa: S603  # our own interpreter, our own module
            [sys.executable, "-m", MODULE, *map(str, given)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
        far.close()
        rights.close()
        self._prepare(process, near)

    def _prepare(self, process: Any, sock: Any) -> None:
        self.process = process
        self.pipe = pipe.Pipe(sock)
        self.serving = False
        """Whether it may answer guests, so that it must get every change."""
        self.silent = False
        """Whether it has not answered the checks for some seconds."""
        self.lost = False
        """Whether the daemon has killed it and logged that."""
        self.leaving = False
        self.succeeded = False
        """Whether another worker is started in its place, so that its keeper starts none."""
        self.used: set[calls.SlotUse] = set()
        """Addresses that it has connections of: their slots are not evicted."""
        self.samples: metrics.Samples = {}

    @property
    def position(self) -> int:
        """See :class:`~dfmeta.proxy.replicator.Replica`."""
        return self.pipe.queued

    def apply(self, batch: list[pipe.Message]) -> None:
        """See :class:`~dfmeta.proxy.replicator.Replica`."""
        self.pipe.send("guests", batch)

    def acked(self, position: int) -> bool:
        """See :class:`~dfmeta.proxy.replicator.Replica`."""
        return self.pipe.gone(position)

    def run(self, device: str, functions: Mapping[str, pipe.Function]) -> None:
        """Run the functions that it calls until it ends.

        :param device: device that its connections are bound to.
        """
        threads.spawn_detached(self._bind, device)
        try:
            self.pipe.run(functions)
        except Exception as error:
            self._refuse(error)
        self.serving = False
        with contextlib.suppress(OSError):
            # This wakes up the waiting greenthread. If the socket were closed, the hub would wait
            # for its descriptor indefinitely, and no other socket with that number could be used.
            self._rights.shutdown(socket.SHUT_RDWR)
        # A worker without its pipe ends by itself, unless it hangs.
        threads.wait_until(lambda: self.process.poll() is not None, clock.ANSWER_TIMEOUT)
        self.kill()
        self.process.wait()

    def _bind(self, device: str) -> None:
        """Bind the connections that it sends: it may not do so itself (SO_BINDTODEVICE, socket(7)).

        This is needed after the device was created again.
        """
        try:
            while True:
                wait_for_io(self._rights, read=True)
                data, descriptors, _flags, _address = socket.recv_fds(self._rights.fd, 1, FDS_MAX)
                for descriptor in descriptors:
                    with socket.socket(fileno=descriptor) as connection:
                        keep_to(connection, device, anew=True)
                if not data:
                    break
        except OSError:
            LOG.debug("Worker %d sends no more connections", self.process.pid, exc_info=True)
        except Exception as error:
            self._refuse(error)
        self._rights.close()

    def end(
        self,
        reason: metrics.WorkerLost,
        fault: str,
        *,
        advice: str = BUSY,
        error: Exception | None = None,
    ) -> None:
        """Kill it for a fault, once; its keeper starts another one, unless it has a successor."""
        if not self.lost:
            self.lost = True
            metrics.WORKERS_LOST.labels(reason).inc()
            LOG.error(
                "Worker %d %s; it is killed. %s", self.process.pid, fault, advice, exc_info=error
            )
        self.kill()

    def _refuse(self, error: Exception) -> None:
        """Kill a worker that sent an invalid message: a guest may have compromised it."""
        advice = "Report this with the traceback below"
        self.end("nonsense", "sent a message that cannot be read", advice=advice, error=error)

    def answers(self, seconds: float) -> bool:
        """Return whether it answers a check within so many seconds."""
        return self.pipe.call("ready", timeout=seconds) is not None

    def note_missed(self, count: int) -> None:
        """Note the number of the latest checks that it has not answered."""
        self.silent = count >= SILENT

    def kill(self) -> None:
        """Kill the process."""
        if self.process.poll() is None:
            self.process.kill()


class Workers(Engine):
    """Keeps a fixed number of workers running.

    :param listeners: the listening sockets; they stay open here, so that their queues outlive the
        workers.
    :param count: number of workers.
    :param settings: return the message with the settings for a new worker; it contains secrets,
        which go over the pipe only.
    :param answers: answers the workers' requests.
    :param device: name of tap-metadata, through which answers leave.
    :param drain_switch_messages: lets the switch's latest messages be handled, before a worker gets
        its echo.
    """

    def __init__(
        self,
        listeners: Sequence[Any],
        registry: Registry,
        *,
        count: int,
        settings: Callable[[], pipe.Message],
        answers: calls.WorkerAnswers,
        device: str,
        drain_switch_messages: Callable[[], object] = lambda: None,
    ) -> None:
        self._listeners = tuple(listeners)
        self._registry = registry
        self._count = count
        self._settings = settings
        self._answers = answers
        self._device = device
        self._drain_switch_messages = drain_switch_messages
        self._workers: list[Worker] = []
        self._stopping = False
        self._replicator: Replicator[Worker] = Replicator(
            registry, self._batch_of, lambda: self._workers
        )
        self._retired: metrics.Samples = {}
        self._replaced: list[Callable[[], None]] = []
        """Functions to call after the next replacement."""
        self._replacing = False

    @property
    def serving(self) -> bool:
        """Whether guests are answered: one worker that serves is enough."""
        return bool(self._answering())

    def start(self) -> None:
        """Start all workers; see :attr:`serving`."""
        hub.VITAL.spawn(
            "changes for the workers", self._replicator.run, lambda: self._stopping, may_return=True
        )
        for _ in range(self._count):
            self._keep()

    def inform(self) -> None:
        """Wait until the present state of the registry is in the pipe of each worker.

        A worker is killed if its pipe does not have room for it in time.
        """
        for worker in self._replicator.flush():
            worker.end("full", f"has not read its messages for {SETTLE_TIMEOUT:g} s")

    def reload(self, settings: EngineSettings, done: Callable[[], None]) -> None:
        """Replace all workers by new ones with the present settings.

        The old workers finish their requests. There is one replacement at a time: all calls during
        a replacement lead to one more replacement after it.

        :param settings: not used: new workers read their settings.
        :param done: called when all workers have been replaced.
        """
        self._replaced.append(done)
        if not self._replacing:
            self._replacing = True
            hub.VITAL.spawn("replacement of workers", self._replace_all, may_return=True)

    def _replace_all(self) -> None:
        while self._replaced:
            callbacks, self._replaced = self._replaced, []
            before = [worker for worker in self._workers if not worker.leaving]
            for worker in before:
                worker.succeeded = True
                self._keep(worker)
            while any(
                worker in self._workers and worker.succeeded and not worker.leaving
                for worker in before
            ):
                threads.sleep(clock.POLL)
            if all(worker.leaving or worker not in self._workers for worker in before):
                for done in callbacks:
                    done()
            else:
                LOG.error(
                    "A worker does not start with the new configuration; the previous worker "
                    "continues with the old configuration. See the log lines above, and send "
                    "SIGHUP again"
                )
        self._replacing = False

    def rebind(self) -> None:
        """Notify the workers that the device was created again."""
        for worker in self._workers:
            worker.pipe.send("rebind")

    def stop(self, grace: float) -> None:
        """Make the workers stop accepting and answer their requests, within *grace* seconds."""
        self._stopping = True
        for worker in self._workers:
            worker.pipe.send("stop", max(0.0, grace - HEAD_START))
        threads.wait_until(lambda: not self._workers, grace)
        for worker in self._workers:
            worker.kill()
        for sock in self._listeners:
            sock.close()

    def collect(self) -> list[Metric]:
        """Return the daemon's metrics with those of all workers, including ended ones."""
        self._ask_all(self._scrape)
        return metrics.merged([self._retired, *(worker.samples for worker in self._workers)])

    def gather(self) -> None:
        """Collect the recent requests of all workers in the daemon."""
        self._ask_all(lambda worker: worker.pipe.call("recent"))

    def _ask_all(self, ask: Callable[[Worker], object]) -> None:
        """Call *ask* with all workers that answer, at the same time."""
        for thread in [threads.spawn(ask, worker) for worker in self._answering()]:
            thread.wait()

    def _answering(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.serving and not worker.silent]

    # Processes

    def _keep(self, predecessor: Worker | None = None) -> None:
        hub.VITAL.spawn("keeper of a worker", self._keep_one, predecessor, may_return=True)

    def _keep_one(self, predecessor: Worker | None) -> None:
        """Start a worker, and another one whenever it ends.

        :param predecessor: worker to be replaced; it continues if the new worker does not start.
        """
        restarts = Restarts()
        while not self._stopping:
            begun = clock.now()
            try:
                worker = Worker([sock.fileno() for sock in self._listeners])
            except OSError as error:
                LOG.warning("A worker cannot be started: %s; dfmeta tries again", error.strerror)
                if self._stays(predecessor):
                    return
                restarts.pause(begun)
                continue
            self._workers.append(worker)
            worker.pipe.send("start", self._settings())
            hub.VITAL.spawn(
                "start of a worker", self._introduce, worker, predecessor, may_return=True
            )
            worker.run(self._device, self._functions(worker))
            self._forget(worker)
            if worker.leaving or worker.succeeded or self._stopping:
                return
            if not worker.lost:
                metrics.WORKERS_LOST.labels("ended").inc()
                LOG.error(
                    "Worker %d ended with status %s; another one is started",
                    worker.process.pid,
                    worker.process.returncode,
                )
            if self._stays(predecessor):
                return
            predecessor = None
            restarts.pause(begun)

    def _stays(self, predecessor: Worker | None) -> bool:
        """Keep a worker whose successor did not start; False: it has ended, or there is none."""
        if predecessor is None or predecessor.leaving or predecessor not in self._workers:
            return False
        predecessor.succeeded = False
        return True

    def _watch(self, worker: Worker) -> None:
        """Check a worker until its pipe is closed; kill it if it does not answer."""
        beat = clock.CHECK_INTERVAL
        if watch(worker.answers, lambda: worker.pipe.closed, beat=beat, missed=worker.note_missed):
            worker.end("hangs", f"hangs: no answer for {HANGS * beat:g} s")

    def _introduce(self, worker: Worker, predecessor: Worker | None) -> None:
        """Send all endpoints to a new worker and make it serve; changes follow in their order."""
        self._replicator.add_replica(worker)
        if worker.pipe.call("ready", timeout=START_TIMEOUT) is None:
            if not worker.pipe.closed:
                worker.end("start", f"did not start within {START_TIMEOUT:g} s")
            return
        worker.serving = True
        worker.pipe.send("serve")
        hub.VITAL.spawn("watch over a worker", self._watch, worker, may_return=True)
        if predecessor is not None:
            predecessor.leaving = True
            predecessor.pipe.send("stop", DRAIN)
            threads.spawn_after(DRAIN + clock.ANSWER_TIMEOUT, self._see_off, predecessor)

    def _see_off(self, worker: Worker) -> None:
        """Kill a replaced worker that has not ended yet."""
        if worker in self._workers:
            late = DRAIN + clock.ANSWER_TIMEOUT
            worker.end("stays", f"was replaced {late:g} s ago and has not ended")

    def _forget(self, worker: Worker) -> None:
        self._workers.remove(worker)
        now = clock.now()
        for ofport, vid, slot, epoch in worker.used:
            self._registry.count_connections(model.Endpoint(ofport, vid), slot, epoch, -1, now)
        metrics.add(self._retired, metrics.lasting(worker.samples))

    def _scrape(self, worker: Worker) -> None:
        result = worker.pipe.call("metrics")
        if result is not None:
            self._keep_samples(worker, result.value)

    # Functions that a worker calls

    def _functions(self, worker: Worker) -> dict[str, pipe.Function]:
        bound = functools.partial
        return {
            "use": pipe.Function(bound(self._note_use, worker), list, bool, float),
            "samples": pipe.Function(bound(self._keep_samples, worker), list),
            "accepted": pipe.Function(lambda ports: ACCEPTED.merge(ports, self._incarnation), list),
            "recent": pipe.Function(lambda ports: RECENT.add(ports, self._incarnation), list),
            "echo": pipe.Function(self._echo, waits=True),
            **self._answers.functions(),
        }

    def _keep_samples(self, worker: Worker, samples: list[Any]) -> None:
        worker.samples = metrics.samples_from(samples)

    def _echo(self) -> None:
        """Return when the worker has been sent all that the switch has reported by now."""
        self._drain_switch_messages()
        self._replicator.send()

    def _incarnation(self, endpoint: model.Endpoint) -> int | None:
        identity = self._registry.identity(endpoint)
        return None if identity is None else identity.incarnation

    def _note_use(self, worker: Worker, place: list[int], used: bool, at: float) -> None:
        ofport, vid, slot, epoch = place
        use = ofport, vid, slot, epoch
        if used is (use in worker.used):
            return
        (worker.used.add if used else worker.used.remove)(use)
        change = 1 if used else -1
        self._registry.count_connections(model.Endpoint(ofport, vid), slot, epoch, change, at)

    def _batch_of(self, endpoints: Sequence[model.Endpoint], new: bool) -> list[pipe.Message]:
        return [endpoint_state(self._registry, endpoint, waits=not new) for endpoint in endpoints]
