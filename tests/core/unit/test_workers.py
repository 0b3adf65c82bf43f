"""A worker that hangs should be found and replaced, and one that is merely slow should not be."""

import contextlib
import errno
import itertools
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import eventlet
import pytest
from eventlet.green import socket as green_socket

from dfmeta import metrics
from dfmeta.http.limits import Limits
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.proxy.engines import engine
from dfmeta.proxy.engines.engine import EngineSettings
from dfmeta.proxy.engines.workers import workers as workers_module
from dfmeta.proxy.engines.workers.calls import WorkerAnswers
from dfmeta.proxy.engines.workers.pipe import Function, Message, Pipe
from dfmeta.proxy.engines.workers.workers import Worker, Workers
from dfmeta.runtime import clock, hub
from tests.core.unit.support import address, let_hub_run, port, until
from tests.harness.tier import CLOCK


class Process:
    """A worker's process: runs in the test's own, as a greenthread at the pipe's other end."""

    _numbers = itertools.count(4000)

    def __init__(self, sock: Any) -> None:
        self.pid = next(self._numbers)
        self.returncode: int | None = None
        self.pipe = Pipe(sock)
        self.got: list[Message] = []
        self.answers = World.answers
        self.reads = True
        self.ends = True
        self._sock = sock
        self._thread = eventlet.spawn(self._run)

    def _run(self) -> None:
        while self.reads:
            piece = self._sock.recv(65536)
            if not piece:
                break
            for line in piece.splitlines():
                self._handle(json.loads(line))

    def _handle(self, message: Message) -> None:
        self.got.append(message)
        if "answers" in message:
            return
        if message["call"] == "ready" and self.answers:
            self.answer(message["number"])
        elif message["call"] == "stop" and self.ends:
            self.end(0)

    def answer(self, number: int) -> None:
        self.pipe._send({"answers": number, "value": None})

    def stop(self) -> None:
        self.answers = False
        self._thread.kill()

    def end(self, status: int) -> None:
        if self.returncode is None:
            self.returncode = status
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.end(-9)

    def wait(self) -> int:
        assert self.returncode is not None, "it was waited for before it ended"
        return self.returncode


class OneWorker(Worker):
    def __init__(self, listeners: Sequence[int]) -> None:
        if World.fails:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        del listeners
        near, far = green_socket.socketpair()
        self._rights, self._other_end = green_socket.socketpair()
        self._prepare(Process(far), near)
        World.made += [far, self._other_end]


class World:
    answers = True
    fails = False
    made: ClassVar[list[Any]] = []

    def __init__(self, count: int) -> None:
        World.answers, World.fails = True, False
        self.registry = Registry()
        self.registry.set_port(port())
        self.listener = eventlet.listen(("127.0.0.1", 0))
        self.done = 0
        self.drain_switch_messages: Callable[[], object] = lambda: None
        self.workers = Workers(
            [self.listener],
            self.registry,
            count=count,
            settings=dict,
            answers=NoAnswers(),
            device="lo",
            drain_switch_messages=lambda: self.drain_switch_messages(),
        )
        self.workers.start()
        until(lambda: len(self.serving()) == count, "the workers to serve")
        until(self._know, "each to have read that it serves")

    def serving(self) -> list[Worker]:
        return [worker for worker in self.workers._workers if worker.serving]

    def one(self) -> Worker:
        (worker,) = self.serving()
        return worker

    def _know(self) -> bool:
        return all(
            {"call": "serve", "values": []} in process(worker).got for worker in self.serving()
        )

    def replace(self) -> None:
        self.workers.reload(EngineSettings(8.0, Limits()), self._count)

    def _count(self) -> None:
        self.done += 1


class NoAnswers(WorkerAnswers):
    """Has no function."""

    def __init__(self) -> None:
        """Without a backend: it is never asked."""

    def functions(self) -> dict[str, Function]:
        return {}


def process(worker: Worker) -> Process:
    fake = worker.process
    assert isinstance(fake, Process)
    return fake


def lost(reason: str) -> float:
    return float(metrics.WORKERS_LOST.labels(reason)._value.get())


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "Worker", OneWorker)


@pytest.fixture
def world() -> Iterator[World]:
    yield from running(1)


def running(count: int) -> Iterator[World]:
    made = World(count)
    yield made
    hub.VITAL.release()
    made.workers.stop(0.0)
    let_hub_run()
    while World.made:
        World.made.pop().close()


def test_a_worker_that_hangs_is_not_serving_and_then_replaced(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before, count = world.one(), lost("hangs")
    process(before).stop()
    until(lambda: not world.workers.serving, "readiness to say so")
    until(lambda: before not in world.workers._workers, "its end")
    until(lambda: world.workers.serving, "another one")
    assert world.one() is not before
    assert before.process.returncode == -9
    assert lost("hangs") == count + 1
    assert f"Worker {before.process.pid} hangs: no answer for " in caplog.text
    assert len([line for line in caplog.messages if line.startswith("Worker")]) == 1


def test_a_worker_that_answers_late_lives(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HANGS", 1_000_000)
    before = world.one()
    for _ in range(3):
        process(before).answers = False
        until(lambda: before.silent, "it to be missed")
        (number,) = before.pipe._calls
        process(before).answers = True
        process(before).answer(number)
        until(lambda: not before.silent, "its late answer to count")
    assert world.one() is before


def test_round_that_the_daemon_was_late_in_does_not_count(world: World) -> None:
    before = world.one()
    process(before).answers = False
    for _ in range(10 * engine.HANGS):
        CLOCK.advance(2 * clock.CHECK_INTERVAL)
        let_hub_run()
    assert not before.silent
    assert world.one() is before


def test_a_worker_that_has_no_room_for_the_news_is_ended_before_the_guest_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "HANGS", 1_000_000)
    worker, count = world.one(), lost("full")
    process(worker).stop()
    worker.pipe.send("rebind", "x" * 5_000_000)
    world.registry.learn(Endpoint(13), address(), 0)
    world.workers.inform()
    assert worker.process.returncode == -9
    assert lost("full") == count + 1
    until(lambda: world.serving() and world.one() is not worker, "another one")


def test_echo_follows_all_that_the_switch_has_reported(world: World) -> None:
    worker = process(world.one())
    world.drain_switch_messages = lambda: world.registry.learn(Endpoint(13), address(), 0)
    before = len(worker.got)
    worker.pipe._send({"call": "echo", "values": [], "number": 5})
    until(lambda: worker.got[-1].get("answers") == 5, "the echo")
    kinds = [message.get("call", "answer") for message in worker.got[before:]]
    assert kinds[-2:] == ["guests", "answer"]


def test_a_worker_that_does_not_come_up_is_ended(world: World) -> None:
    count = lost("start")
    World.answers = False
    process(world.one()).end(1)
    CLOCK.advance(engine.START_TIMEOUT)
    until(lambda: lost("start") > count, "it to be given up")
    World.answers = True
    until(lambda: world.workers.serving, "one that does")


def test_malformed_message_ends_its_worker_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [("use", [[1, 2], True, 1.0]), ("use", [[1, 0, 0, 1], 1, 1.0]), ("other", [])]
    for message in (*({"call": name, "values": values} for name, values in calls), {}):
        before, count = world.one(), lost("nonsense")
        process(before).pipe._send(message)
        until(lambda: before not in world.workers._workers, "its end")  # noqa: B023  # at once
        until(lambda: world.serving(), "another one")
        assert lost("nonsense") == count + 1
    assert hub.VITAL.alive
    assert caplog.text.count("cannot be read") == 4


def test_a_replaced_worker_that_does_not_end_is_ended(world: World) -> None:
    before, count = world.one(), lost("stays")
    process(before).ends = False
    world.replace()
    until(lambda: world.done, "the replacement")
    CLOCK.advance(engine.DRAIN + clock.ANSWER_TIMEOUT)
    until(lambda: before not in world.workers._workers, "its end")
    assert before.process.returncode == -9
    assert lost("stays") == count + 1


@pytest.mark.parametrize("how", ["dies", "is not started", "is silent"])
def test_lone_worker_goes_on(world: World, caplog: pytest.LogCaptureFixture, how: str) -> None:
    before = world.one()
    World.fails = how == "is not started"
    World.answers = False
    world.replace()
    if how == "dies":
        until(lambda: len(world.workers._workers) == 2, "a successor")
        process(world.workers._workers[1]).end(1)
    let_hub_run()
    CLOCK.advance(engine.START_TIMEOUT)
    until(lambda: not world.workers._replacing, "the replacement to be given up")
    assert world.one() is before
    assert "continues with the old configuration" in caplog.text
    assert not world.done
    # It is kept as before, and the next replacement is another one.
    World.fails, World.answers = False, True
    world.replace()
    until(lambda: world.done, "the next replacement")
    until(lambda: before not in world.workers._workers, "its end")
    assert len(world.workers._workers) == 1


@pytest.mark.parametrize(
    ("method", "thread"),
    [
        ("_forget", "keeper of a worker"),
        ("_introduce", "start of a worker"),
        ("_watch", "watch over a worker"),
    ],
)
def test_end_of_a_keeper_of_workers_ends_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, thread: str
) -> None:
    def broken(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.workers, method, broken)
    process(world.one()).end(1)
    until(lambda: not hub.VITAL.alive, "the thread's end")
    assert thread in str(hub.VITAL.failure)
