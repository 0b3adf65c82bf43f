"""What a worker asks the daemon for should come whole and in order, or have an end."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket

from dfmeta.errors import BackendError, BackendUnreachableError
from dfmeta.model import Answer, AnswerTerms, Endpoint, GuestRequest, Identity, View
from dfmeta.proxy.backends.network_data import Vlan
from dfmeta.proxy.engines.workers.calls import (
    RemoteComplaints,
    RemoteRates,
    RemoteStore,
    Use,
    WorkerAnswers,
    remote_subports,
)
from dfmeta.proxy.engines.workers.pipe import CallResult, Function, Pipe
from dfmeta.proxy.rate import RateLimiter, RateSettings, Window
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Complaints
from tests.core.unit.support import AMPLE, INSTANCE, PROJECT

HERE = Endpoint(13)
IDENTITY = Identity(INSTANCE, PROJECT, "port-tap1", "tap1", 7)
FEW = RateSettings(enabled=True, base=Window(1, 1000), burst=Window(1, 1000), tolerated=0)


class Store:
    name = "store"

    def __init__(self) -> None:
        self.asked: list[tuple[GuestRequest, Identity, float]] = []
        self.reply: Answer | BackendError = Answer(200, b"\0\xff" * 10, "text/x", (("etag", "a"),))
        self.tokens: str | None = "required"
        self.went_on = False
        self.answered = 0

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        self.asked.append((request, identity, terms.deadline))
        self.went_on = terms.should_answer(self.tokens)
        if isinstance(self.reply, BackendError):
            raise self.reply
        return View(self.tokens, self._answer)

    def _answer(self) -> Answer:
        self.answered += 1
        assert isinstance(self.reply, Answer)
        return self.reply


class World:
    def __init__(self) -> None:
        self.store = Store()
        self.rates = RateLimiter(FEW)
        self.vlans: list[Vlan] = []
        self.asked_for: list[Identity] = []
        self.answers = WorkerAnswers(
            self.store, self._subports, self.rates, Complaints(logging.getLogger("daemon"))
        )
        near, far = socket.socketpair()
        self.near, self.far = Pipe(near), Pipe(far)
        self.threads = [
            eventlet.spawn(self.far.run, self.answers.functions()),
            eventlet.spawn(self.near.run, {}),
        ]

    def _subports(self, identity: Identity) -> list[Vlan]:
        self.asked_for.append(identity)
        return self.vlans


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.near.close()
    made.far.close()


PLAIN = GuestRequest("GET", "/a")


def ask(
    world: World,
    request: GuestRequest = PLAIN,
    *,
    seconds: float = AMPLE,
    should_answer: Callable[[str | None], bool] = lambda _word: True,
) -> View:
    deadline = clock.now() + seconds
    store = RemoteStore(world.near, "store")
    return store.open(request, IDENTITY, AnswerTerms(deadline, should_answer))


def test_an_answer_is_the_stores(world: World) -> None:
    request = GuestRequest(
        "POST",
        "/openstack/latest/password",
        query="a=b",
        headers={"accept": "x"},
        body=b"\0\xff",
        guest_ip="10.0.0.5",
    )
    begun = clock.now()
    assert ask(world, request).answer() == world.store.reply
    assert world.store.went_on
    ((passed_on, identity, deadline),) = world.store.asked
    assert (passed_on, identity) == (request, IDENTITY)
    assert deadline == pytest.approx(begun + AMPLE)


@pytest.mark.parametrize("word", ["required", "", None])
def test_a_request_that_does_not_go_on_is_not_answered(world: World, word: str | None) -> None:
    world.store.tokens = word
    assert ask(world, should_answer=lambda each: each != word).http_tokens == word
    assert (world.store.went_on, world.store.answered) == (False, 0)
    assert len(world.store.asked) == 1


def test_an_error_of_the_stores_comes_with_its_remedy(world: World) -> None:
    world.store.reply = BackendUnreachableError(backend="store", cause="it is away", remedy="Mend")
    with pytest.raises(BackendError, match="store: it is away") as caught:
        ask(world)
    assert caught.value.remedy == "Mend"


def test_silent_daemon_is_an_error(world: World) -> None:
    world.threads[0].kill()
    with pytest.raises(BackendError, match="the daemon has not answered"):
        ask(world, seconds=0)
    with pytest.raises(BackendError, match="the daemon has not answered"):
        remote_subports(world.near, "nova")(IDENTITY, 0.0)
    assert not RemoteRates(FEW, world.near).ask(HERE, 4).refuse, "a slow daemon refuses nobody"


def test_the_subports_of_a_vm_are_those_that_the_daemon_knows(world: World) -> None:
    subports = remote_subports(world.near, "nova")
    assert subports(IDENTITY, clock.now() + AMPLE) == []
    world.vlans = [Vlan("fa:16:3e:00:00:01", vid, "fa:16:3f:00:00:01") for vid in (1, 4094)]
    assert subports(IDENTITY, 0.0) == world.vlans
    assert world.asked_for == [IDENTITY, IDENTITY]


def test_rates_are_counted_by_the_daemon(world: World) -> None:
    first, second = (RemoteRates(FEW, world.near) for _ in range(2))
    assert not first.ask(HERE, 4).refuse
    verdict = second.ask(HERE, 4)
    assert verdict.refuse
    assert verdict.retry_after >= 1
    first.forget(HERE)
    assert second.ask(HERE, 4).refuse, "it is the daemon's to forget"


def test_unlimited_request_needs_no_daemon(world: World) -> None:
    world.near.close()
    assert not RemoteRates(RateSettings(), world.near).ask(HERE, 4).refuse
    assert not RemoteRates(FEW, world.near).ask(HERE, 6).refuse


def test_daemon_logs_an_error_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    workers = [RemoteComplaints(world.near, logging.getLogger("worker")) for _ in range(2)]
    for _ in range(2):
        for worker in workers:
            worker.about(HERE, "kind", "50 %% of %s", "it", level=logging.ERROR)
    RemoteRates(FEW, world.near).ask(HERE, 4)
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [("daemon", "ERROR", "50 % of it")]


class Ends:
    """A pipe; one end keeps the values of calls, and returns the same with bytes."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.near, self.far = Pipe(near), Pipe(far)
        self.values: list[int] = []
        self.threads = [
            eventlet.spawn(self.far.run, {"keep": Function(self._keep, int)}),
            eventlet.spawn(self.near.run, {}),
        ]

    def _keep(self, value: int) -> CallResult:
        if value < 0:
            raise PermissionError(value)
        self.values.append(value)
        return CallResult(value, BYTE_LINES[:value])


BYTE_LINES = (bytes(range(256)) + b"\n{}\n") * 20_000


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.near.close()
    both.far.close()


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_bytes_come_along_as_they_are(ends: Ends, size: int) -> None:
    ends.near.send("keep", 7)
    assert ends.near.call("keep", size) == CallResult(size, BYTE_LINES[:size])
    assert ends.near.call("keep", 1) == CallResult(1, BYTE_LINES[:1])
    assert ends.values == [7, size, 1]


def test_each_call_gets_its_own_result(ends: Ends) -> None:
    calls = [eventlet.spawn(ends.near.call, "keep", n) for n in range(1, 5)]
    assert [call.wait().value for call in calls] == [1, 2, 3, 4]


def test_call_without_a_result_has_an_end(ends: Ends) -> None:
    ends.threads[0].kill()
    assert ends.near.call("keep", 1, timeout=0.01) is None


def test_call_ends_with_the_pipe(ends: Ends) -> None:
    ends.threads[0].kill()
    call = eventlet.spawn(ends.near.call, "keep", 1, timeout=30.0)
    eventlet.sleep(0)
    ends.far.close()
    assert call.wait() is None
    ends.threads[1].wait()
    assert ends.near.closed


@pytest.mark.parametrize(
    ("name", "values"), [("keep", ["1"]), ("keep", [1, 2]), ("keep", []), ("other", [1])]
)
def test_malformed_call_ends_the_pipe(ends: Ends, name: str, values: list[object]) -> None:
    assert ends.near.call(name, *values) is None
    with pytest.raises((KeyError, TypeError)):
        ends.threads[0].wait()
    assert (ends.values, ends.far.closed) == ([], True)


def test_an_error_of_the_operating_system_in_a_function_is_not_lost(ends: Ends) -> None:
    assert ends.near.call("keep", -1) is None
    with pytest.raises(PermissionError):
        ends.threads[0].wait()


def test_a_part_of_a_message_waits_for_the_rest(ends: Ends) -> None:
    eventlet.sleep(0)
    call = eventlet.spawn(ends.far.call, "near", timeout=30.0)
    eventlet.sleep(0)
    sock = ends.near._sock.fd
    sock.send(b'{"call":"keep","values":[1]}\n{"call":"k')
    ends.far.catch_up()
    assert ends.values == [1]
    sock.send(b'eep","values":[2]}\n{"answers":1,"value":3,"bytes":3}\nab')
    ends.far.catch_up()
    assert ends.values == [1, 2]
    assert not call.dead
    sock.send(b'c{"call":"keep","values":[3]}\n')
    ends.far.catch_up()
    assert ends.values == [1, 2, 3]
    assert call.wait() == CallResult(3, b"abc")


def test_bytes_in_the_sockets_buffer_count_as_gone(ends: Ends) -> None:
    ends.threads[0].kill()
    near = ends.near
    near.send("keep", 1)
    small = near.queued
    assert near.gone(small)
    near.send("keep", "x" * 3_000_000)
    assert near.gone(small)
    assert not near.gone(near.queued)
    eventlet.sleep(0)
    received = 0
    while received < near.queued:
        received += len(ends.far._sock.recv(65536))
    assert near.gone(near.queued)
    near.send("keep", "x" * 3_000_000)
    near.close()
    assert near.gone(near.queued), "there is no other end"


ONE, OTHER = (7, 0, 0, 1), (7, 0, 1, 2)


def test_the_end_of_the_last_connection_is_reported_late_with_its_time() -> None:
    reports: list[tuple[Any, ...]] = []
    now = 10.0
    use = Use(lambda *report: reports.append(report), clock=lambda: now)
    use.count(ONE, 1)
    now = 11.0
    use.count(OTHER, 1)
    now = 12.0
    use.count(ONE, -1)
    assert reports == [(ONE, True, 10.0), (OTHER, True, 11.0)]
    now = 13.0
    use.review()
    assert len(reports) == 2, "used since the last review"
    now = 14.0
    use.review()
    assert reports[2:] == [(ONE, False, 12.0)], "the other one still has a connection"
