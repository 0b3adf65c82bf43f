"""What a guest was answered should be remembered, little of it, and nothing that it has sent."""

import json
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.identity.registry import Claim
from dfmeta.model import Endpoint, Identity
from dfmeta.proxy.recent import (
    CLOSED,
    OWN,
    REASONS,
    GuestRequests,
    Recent,
    is_of_every_instance,
    kind_of,
)
from tests.core.unit.support import INSTANCE, PROJECT, address

HERE, THERE = Endpoint(13), Endpoint(14)


def claim(endpoint: Endpoint = HERE, incarnation: int = 1) -> Claim:
    identity = Identity(INSTANCE, PROJECT, "port", "tap1", incarnation)
    return Claim(identity, endpoint, 0, 1, address())


class World:
    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.recent = Recent(clock=lambda: self.now, **options)

    def note(
        self, status: int, path: str = "/openstack", reason: str = "it is away", **of: Any
    ) -> None:
        self.now += 1
        self.recent.answered(claim(**of), status, path, reason)

    def of(self, endpoint: Endpoint = HERE, incarnation: int = 1) -> GuestRequests:
        requests = self.recent.of(endpoint, incarnation)
        assert requests is not None
        return requests


@pytest.fixture
def world() -> World:
    return World()


def test_requests_are_counted_by_class_with_the_last(world: World) -> None:
    for status in (200, 204, 301, 404, 503, CLOSED, 999):
        world.note(status)
    requests = world.of()
    assert requests.counts == [2, 1, 1, 2, 1]
    assert (requests.last_status, requests.last_at) == (999, 1007)


def test_guest_whose_record_is_gone_fails_after_its_successes(world: World) -> None:
    for status, reason in ((200, ""), (404, "store answered 404"), (404, REASONS["absent"])):
        world.note(status, reason=reason)
    assert (world.of().failing, world.of().failing_since) == (True, 1003)
    (failure,) = world.of().failures()
    assert (failure.code, failure.times) == ("absent", 1)
    world.note(200)
    assert not world.of().failing


def test_worker_tells_a_missing_record_from_a_missing_document(world: World) -> None:
    for reason in (REASONS["absent"], "store answered 404"):
        world.note(404, reason=reason)
    daemon = Recent()
    daemon.add(json.loads(json.dumps(world.recent.take())), lambda _endpoint: 1)
    requests = daemon.of(HERE, 1)
    assert requests is not None
    assert {failure.code for failure in requests.failures()} == {"absent", "document"}


def test_nova_has_some_paths_for_every_instance() -> None:
    for path, expected in (
        ("/openstack", True),
        ("//openstack/latest/", True),
        ("/openstack/latest/meta_data.json", True),
        ("/openstack/latest/user_data", False),
        ("/openstack/2099-01-01", False),
        ("/latest/meta-data/", True),
        ("/2009-04-04/meta-data/instance-id", True),
        ("/latest/user-data", False),
        ("/latest/meta-data/kernel-id", False),
        ("/%zz", False),
        ("-", False),
    ):
        assert is_of_every_instance(path) == expected, path


@pytest.mark.parametrize("status", [404, 405, 409])
def test_optional_request_of_cloud_init_is_no_failure(world: World, status: int) -> None:
    world.note(200)
    world.note(status)
    assert world.of().failures() == []


def test_guest_without_any_success_fails(world: World) -> None:
    world.note(404, "/latest/meta-data", "store answered 404")
    world.note(404, "/openstack")
    (failure,) = world.of().failures()
    assert (failure.status, failure.path, failure.times) == (404, "openstack", 2)
    assert failure.reason == REASONS["document"]
    assert world.of().failing
    world.note(200)
    assert world.of().failures() == []


def test_served_guest_does_not_fail_by_an_odd_request() -> None:
    for why in OWN | {"token", "rate", "forwarded"}:
        world = World()
        world.note(200)
        world.note(403, reason=REASONS[why])
        assert not world.of().failing, why
        assert (world.of().failing_since, world.of().counts[2]) == (0, 1), why


def test_unserved_guest_fails_by_a_rule_and_not_by_its_own_malformed_request() -> None:
    for why in OWN | {"token", "rate", "forwarded"}:
        world = World()
        world.note(403, reason=REASONS[why])
        assert world.of().failing == (why not in OWN), why
        assert [failure.is_guests for failure in world.of().failures()] == [why in OWN]


def test_token_or_list_of_versions_ends_no_failure() -> None:
    for path in ("/latest/api/token", "/latest//api/%74oken", "/", ""):
        world = World()
        world.note(404)
        world.note(200, path)
        assert (world.of().failing, world.of().counts[0]) == (True, 1), path


def test_failing_since_the_first_failure_after_a_success(world: World) -> None:
    for status in (503, 200, 403, 503, 401):
        world.note(status, reason=REASONS["token"] if status == 401 else "it is away")
    assert world.of().failing_since == 1003
    world.note(200)
    world.note(503)
    assert world.of().failing_since == world.now
    (last, *_) = world.of().failures()
    assert (last.status, last.times) == (503, 3)


def test_repeated_failures_are_merged(world: World) -> None:
    world.note(503)
    world.note(CLOSED)
    world.note(503)
    assert [(failure.status, failure.times, failure.at) for failure in world.of().failures()] == [
        (503, 2, 1003),
        (CLOSED, 1, 1002),
    ]


def test_another_guest_of_the_port_begins_anew(world: World) -> None:
    world.note(503)
    world.note(200, incarnation=2)
    assert world.recent.of(HERE, 1) is None
    assert world.of(incarnation=2).counts == [1, 0, 0, 0, 0]
    world.recent.forget(HERE)
    assert len(world.recent) == 0


def test_number_of_remembered_guests_is_bounded() -> None:
    world = World(ports=3)
    for number in range(1, 10):
        world.note(200, endpoint=Endpoint(number))
        world.note(200, endpoint=Endpoint(1))
    assert [endpoint.ofport for endpoint, _request in world.recent] == [8, 9, 1]


def test_only_the_kind_of_a_path_is_kept() -> None:
    for path, kind in (
        ("/openstack/latest/meta_data.json", "openstack"),
        ("/latest/meta-data/", "ec2"),
        ("/1.0/", "ec2"),
        ("/nocloud/meta-data", "nocloud"),
        ("/metadata", "plain"),
        ("/", "other"),
        ("/openstack<b>", "other"),
        ("", "none"),
    ):
        assert kind_of(path) == kind, path


def test_records_of_workers_add_up(world: World) -> None:
    alone, first, second = world, World(), World()
    for number, status in enumerate((200, 404, 503, 403, 200, CLOSED, 503, 404)):
        for worker in (alone, (first, second)[number % 2]):
            worker.now = 1000.0 + number
            worker.note(status, endpoint=HERE if number < 7 else THERE)
    together = Recent()
    for worker in (second, first):
        rows = json.loads(json.dumps(worker.recent.take()))
        assert len(worker.recent) == 0
        together.add(rows, lambda _endpoint: 1)
    assert dict(together) == dict(alone.recent)


def test_first_answers_and_failures_of_all_processes_are_counted_once(world: World) -> None:
    names = ("dfmeta_first_answers_total", "dfmeta_failed_requests_total")
    before = [metrics.REGISTRY.get_sample_value(name) or 0.0 for name in names]
    workers = (World(), World())
    for worker in workers:
        worker.recent.complete = False
        worker.note(404, reason=REASONS["absent"])
        worker.note(404, "/openstack/latest/user_data", REASONS["document"])
        worker.note(400, reason=REASONS["malformed"])
        for endpoint in (HERE, HERE, THERE):
            worker.note(200, endpoint=endpoint)
        world.recent.add(worker.recent.take(), {HERE: 1, THERE: 1}.get)
    world.note(CLOSED)
    world.recent.succeeded(claim(incarnation=2), 3, 1002.0)
    after = [metrics.REGISTRY.get_sample_value(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, 3]


def test_workers_record_of_a_former_guest_is_dropped(world: World) -> None:
    world.note(503, incarnation=1)
    world.note(503, endpoint=THERE, incarnation=2)
    together = Recent()
    together.add(world.recent.take(), {THERE: 3}.get)
    assert len(together) == 0


def test_requests_that_haproxy_answered_are_added(world: World) -> None:
    world.note(503)
    world.recent.succeeded(claim(), 3, 1002.0)
    requests = world.of()
    assert requests.counts == [3, 0, 0, 1, 0]
    assert (requests.last_at, requests.last_status, requests.well_at) == (1002.0, 200, 1002.0)
    assert not requests.failing
