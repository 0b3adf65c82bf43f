"""What haproxy answered should be counted once, under dfmeta's names, for the guest that it was."""

import logging
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.errors import HaproxyError
from dfmeta.identity.registry import Claim, Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.model import Endpoint
from dfmeta.proxy.engines.haproxy.config import FORGET, NOVA, NOVA_CLOSES, OF_ADDRESS, OF_PORT
from dfmeta.proxy.engines.haproxy.counts import Counts, load
from dfmeta.proxy.engines.haproxy.entries import claim_token, port_token
from dfmeta.proxy.recent import RECENT
from dfmeta.runtime import clock
from tests.core.unit.haproxy.support import FakeRuntime
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, address, claim_of, port
from tests.harness.tier import CLOCK

HERE = Endpoint(13)
TIMES = " GET 100 12 10 -1"
"""The end of a line: method, bytes and milliseconds."""


class World:
    def __init__(self) -> None:
        self.registry = Registry()
        self.counts = Counts(self.registry)
        self.runtime: Any = FakeRuntime()
        self.come()

    def come(self, instance: str | None = None) -> None:
        self.registry.set_port(port(13, **({"instance": instance} if instance else {})))
        claim = claim_of(self.registry)
        self.incarnation = claim.identity.incarnation
        self.claim = claim_token(HERE, self.incarnation, claim.slot, claim.epoch)
        self.port = port_token(HERE, self.incarnation)
        self.slot_number = claim.slot

    def line(
        self,
        status: int,
        state: str = "--",
        path: str = "/latest/user-data",
        *,
        backend: str = NOVA_CLOSES,
    ) -> None:
        self.counts.note(f"{self.claim} {status} {state} {backend} {path}{TIMES}")

    def claims(self) -> Claim:
        return claim_of(self.registry)

    def asked(self) -> Any:
        return RECENT.of(HERE, self.incarnation)

    def slot(self) -> Any:
        return self.registry.slots(HERE)[self.slot_number]

    def set(self, table: str, **row: int) -> None:
        key = self.port if table == OF_PORT else self.claim
        self.runtime.tables[table] = {key: row}

    def read(self) -> None:
        self.counts.read(self.runtime)


@pytest.fixture
def world() -> World:
    return World()


class Grown:
    def __init__(self, metric: Any, *labels: str) -> None:
        self._value = metric.labels(*labels)._value
        self._before = self._value.get()

    def __call__(self) -> float:
        return float(self._value.get() - self._before)


FAILURES = [
    (404, "--", [0, 0, 1, 0, 0], (404, "ec2", "document")),
    (403, "--", [0, 0, 1, 0, 0], (403, "ec2", "")),
    (500, "--", [0, 0, 0, 1, 0], (500, "ec2", "")),
    (503, "SC", [0, 0, 0, 0, 1], (0, "ec2", "timeout")),
    (504, "sH", [0, 0, 0, 0, 1], (0, "ec2", "timeout")),
    (502, "SH", [0, 0, 0, 0, 1], (0, "ec2", "timeout")),
    (503, "--", [0, 0, 0, 1, 0], (503, "ec2", "")),
]


def test_failed_request_is_its_guests() -> None:
    for status, state, counts, failure in FAILURES:
        RECENT.take()
        world = World()
        world.line(status, state)
        requests = world.asked()
        assert requests.counts == counts, (status, state)
        faults = [(fault.status, fault.path, fault.code) for fault in requests.failures()]
        assert faults == [failure], (status, state)


def test_instance_that_nova_has_no_more_is_a_failure_of_a_served_guest(world: World) -> None:
    RECENT.take()
    RECENT.answered(world.claims(), 200, "/openstack", "")
    CLOCK.advance(1)
    world.line(404)
    assert not world.asked().failing
    world.line(404, path="/openstack")
    assert (world.asked().failing, world.asked().failures()[0].code) == (True, "absent")


def test_request_that_nova_does_not_answer_is_counted_as_it_was_ended(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.line(503, "----")
    assert "gave no answer" not in caplog.text, "it is Nova's own"
    RECENT.take()
    answered = Grown(metrics.REQUESTS, "5xx", "dfmeta")
    closed = Grown(metrics.CLOSED, "timeout")
    world.line(504, "sH", backend=NOVA)
    assert "gave no answer" in caplog.text
    assert (answered(), closed()) == (1, 0)
    assert [fault.status for fault in world.asked().failures()] == [503]
    world.line(504, "sH", backend=NOVA_CLOSES)
    assert (answered(), closed()) == (1, 1)
    world.line(503, "PH", backend=NOVA)
    assert answered() == 2, "an answer that is too large"


def test_request_that_haproxy_cannot_read_is_refused(world: World) -> None:
    for status, reason in ((400, "malformed"), (422, "malformed"), (408, "header_timeout")):
        refused, answered = Grown(metrics.REFUSED, reason), Grown(metrics.REQUESTS, "4xx", "dfmeta")
        world.line(status, "PR--", "<BADREQ>", backend="guests")
        assert (refused(), answered()) == (1, 1)
        assert world.asked().failures()[-1].code == reason
    refused = Grown(metrics.REFUSED, "malformed")
    world.counts.note(f"- 400 PR-- guests <BADREQ>{TIMES}")
    assert refused() == 1, "the guest is not known"


SILENT = (
    *("", "nonsense", "- 404 -- nova /a", "{claim} 404 --", "{claim} 404 -- nova /a b"),
    *("{claim}.1 404 -- nova /a", "13.0.99.0.1 404 -- nova /a", "14.0.1.0.1 404 -- nova /a"),
    *("{claim} 200 -- nova /a", "{claim} -1 CR nova /a", "{claim}0 404 -- nova /a"),
)


def test_line_that_says_nothing_of_a_present_guest_is_dropped(world: World) -> None:
    before = world.claim
    for line in SILENT:
        world.counts.note(line.format(claim=before) + TIMES)
        assert len(RECENT) == 0, line
    world.come(OTHER_INSTANCE)
    world.counts.note(f"{before} 404 -- nova /a{TIMES}")
    assert len(RECENT) == 0, "it is about the guest before"


def test_only_the_difference_to_the_last_reading_counts(world: World) -> None:
    world.set(OF_ADDRESS, gpc0=3)
    world.read()
    world.read()
    assert world.asked().counts[0] == 3
    world.set(OF_ADDRESS, gpc0=5)
    world.read()
    assert world.asked().counts[0] == 5
    assert world.runtime.asked[:2] == [OF_ADDRESS, f"{OF_PORT} data.conn_cnt gt 0"]
    for count, total in ((1, 6), (2, 7)):
        world.set(OF_ADDRESS, gpc0=count)
        world.read()
        assert world.asked().counts[0] == total, "a counter that starts again"


def test_each_process_has_counters_of_its_own(world: World) -> None:
    world.set(OF_ADDRESS, gpc0=3)
    for total in (3, 6):
        world.read()
        world.read()
        assert world.asked().counts[0] == total
        world.counts = Counts(world.registry)


def test_counts_of_the_guest_before_are_not_the_next_guests(world: World) -> None:
    world.set(OF_ADDRESS, gpc0=3)
    world.set(OF_PORT, conn_cnt=2)
    world.come(OTHER_INSTANCE)
    world.read()
    assert len(RECENT) == 0
    assert ACCEPTED.of(HERE, world.incarnation) == 0


def test_accepted_connections_are_counted_once_and_also_read_alone(world: World) -> None:
    world.set(OF_PORT, conn_cnt=2)
    world.counts.read_accepted(world.runtime)
    assert world.runtime.asked == [f"{OF_PORT} data.conn_rate gt 0"]
    for count in (2, 5):
        world.set(OF_PORT, conn_cnt=count)
        world.read()
        world.counts.read_accepted(world.runtime)
        assert ACCEPTED.of(HERE, world.incarnation) == count


def test_row_that_haproxy_has_forgotten_leaves_nothing(world: World) -> None:
    world.set(OF_ADDRESS, conn_cur=1, gpc0=3, exp=600_000)
    world.set(OF_PORT, conn_cnt=2)
    world.read()
    assert world.slot().connections == 1
    world.runtime.tables = {}
    world.read()
    assert world.slot().connections == 0
    world.set(OF_ADDRESS, gpc0=3)
    world.read()
    assert world.asked().counts[0] == 6, "it counts from nothing"


def test_totals_are_under_dfmetas_names(world: World) -> None:
    well = Grown(metrics.REQUESTS, "2xx", "nova")
    failed = Grown(metrics.BACKEND_CONNECTIONS, "failed")
    opened = Grown(metrics.BACKEND_CONNECTIONS, "opened")
    too_many = Grown(metrics.CLOSED, "too_many")
    waiting = Grown(metrics.LIMITS, "waiting_per_port")
    world.runtime.rows = [
        {"pxname": "guests", "svname": "FRONTEND", "scur": "4", "dcon": "6"},
        {"pxname": "nova", "svname": "BACKEND", "hrsp_2xx": "14", "hrsp_4xx": ""},
        {"pxname": "nova_closes", "svname": "nova1", "hrsp_2xx": "2", "hrsp_4xx": ""},
        {"pxname": "nova", "svname": "nova0", "connect": "3", "econ": "1", "hrsp_2xx": "5"},
        {"pxname": "nova", "svname": "daemon", "connect": "7", "econ": "7", "hrsp_2xx": "9"},
        {"pxname": "daemon", "svname": "BACKEND", "hrsp_2xx": "50"},
        {},
    ]
    world.read()
    world.read()
    assert (well(), failed(), opened(), too_many(), waiting()) == (7, 1, 3, 6, 6)
    assert metrics.CONNECTIONS._value.get() == 4
    assert load(world.runtime) == (4, 0)
    world.counts.ended()
    assert metrics.CONNECTIONS._value.get() == 0


def test_haproxy_that_does_not_answer_is_no_failure(world: World) -> None:
    world.runtime.fails = True
    for read in (world.counts.read, world.counts.read_accepted):
        with pytest.raises(HaproxyError):
            read(world.runtime)
    world.counts.look(world.runtime, HERE)
    assert world.slot().connections == 0


def test_answer_that_indicates_a_fault_is_remarked_upon(world: World) -> None:
    remarks = []

    def remark(claim: Claim, status: int) -> str:
        remarks.append((claim.caller, status))
        return "nova answered 403. Its secret differs" if status == 403 else ""

    world.counts = Counts(world.registry, remark)
    world.line(403, "--", path="/openstack/latest/meta_data.json")
    world.line(500, "--")
    assert remarks == [(HERE, 403), (HERE, 500)]
    reasons = [failure.reason for failure in world.asked().failures()]
    assert sorted(reasons) == ["nova answered 403. Its secret differs", "nova answered 500"]


def test_debug_logs_as_the_other_engine(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dfmeta.proxy.access")
    for line in ("", f"5.0.1.0.2 200 ---- nova /a{TIMES}", f"{world.claim} 200 ---- nova /a GET 1"):
        world.counts.note(line)
    world.counts.note(f"{world.claim} 200 ---- nova /{'a' * 500} GET 2100 12 10 -1")
    (line,) = (message for message in caplog.messages if "ms, including" in message)
    took = "2100 bytes, 12.0 ms, including 10.0 ms in nova and 0.0 ms waiting"
    assert line == f"tap1 {INSTANCE} GET /{'a' * 255}: 200, {took}"
    assert world.asked() is None, "successes are counted by haproxy itself"


def test_slot_with_an_open_connection_is_not_idle(world: World) -> None:
    world.set(OF_ADDRESS, conn_cur=2, exp=FORGET * 1000)
    world.read()
    world.read()
    assert world.slot().connections == 1
    world.set(OF_ADDRESS, conn_cur=0, exp=FORGET * 1000)
    world.read()
    assert world.slot().connections == 0


def test_time_of_the_last_use_is_that_of_the_row(world: World) -> None:
    world.set(OF_ADDRESS, conn_cur=0, exp=(FORGET - 10) * 1000)
    world.read()
    assert clock.now() - world.slot().last_used == pytest.approx(10.0)


def test_row_of_an_earlier_connection_does_not_end_the_wait_for_the_next(world: World) -> None:
    expected = world.slot().expected_until
    assert expected > 0
    world.set(OF_ADDRESS, conn_cur=0, exp=1000)
    world.read()
    assert world.slot().expected_until == expected
    world.set(OF_ADDRESS, conn_cur=1, exp=1000)
    world.read()
    assert world.slot().expected_until == 0


def test_connections_of_two_processes_are_added_and_end_with_theirs(world: World) -> None:
    world.set(OF_ADDRESS, conn_cur=1, exp=FORGET * 1000)
    both = world.counts, Counts(world.registry)
    for counts in both:
        counts.read(world.runtime)
    assert world.slot().connections == 2
    for counts, left in zip((*both, both[1]), (1, 0, 0), strict=True):
        counts.ended()
        assert world.slot().connections == left


def test_registry_looks_before_it_takes_an_address_away_and_keeps_one_with_a_connection() -> None:
    looked: list[Endpoint] = []

    def look(endpoint: Endpoint) -> None:
        looked.append(endpoint)
        oldest = min(registry.slots(endpoint).items(), key=lambda slot: slot[1].last_used)
        registry.count_connections(endpoint, oldest[0], oldest[1].epoch, 1, 0.0)

    registry = Registry(look=look, clock=lambda: 0.0)
    registry.set_port(port(13))
    for number in range(len(registry.keys.slots(4))):
        assert registry.learn(HERE, address(f"10.0.1.{number}"), float(number)) is not None
    assert looked == []
    learned = registry.learn(HERE, address("10.0.2.1"), 100.0)
    assert learned is not None
    assert learned.displaced == address("10.0.1.1")
    assert looked == [HERE]
