"""The engine should give each container one attachment, keep its values single, and free them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.attach import batches
from dfmeta.attach.addresses import is_unicast
from dfmeta.attach.model import Found, State
from dfmeta.exceptions import (
    AttachConflictError,
    AttachDriverError,
    AttachError,
    AttachFullError,
    AttachNetworkError,
    AttachQuotaError,
    StoreAwayError,
)
from tests.core.unit.attach.support import OTHER, VM, Breaking, Plane, World, wanted
from tests.harness.poll import wait_for

OUTCOMES = ("made", "found", "failed")


def test_an_attachment_stands_when_it_is_returned(world: World) -> None:
    one, created = world.engine.attach(VM, wanted(owner="o", boot_id="b", labels={"pod": "p"}))
    assert created
    assert (one.state, one.vid, one.host, one.parent) == (State.ACTIVE, 2, "host-1", "port-1")
    assert one.ip == IPv4Address("10.1.0.2")  # the first is the gateway
    assert is_unicast(one.mac)
    assert int(one.mac[:2], 16) & 2
    assert (one.owner, one.boot_id, dict(one.labels)) == ("o", "b", {"pod": "p"})
    assert world.plane.ports == {one.id: Found(id=one.id, parent="port-1", vid=2)}
    assert world.engine.get(VM, "c1", "eth0") == one
    assert world.engine.listed(VM) == [one]
    assert world.engine.listed(OTHER) == []
    world.check()


def test_a_repeated_request_gives_the_same(world: World) -> None:
    first = world.attach()
    calls = list(world.plane.calls)
    again, created = world.engine.attach(VM, wanted(mac="02:00:00:00:00:01", ip=None))
    assert (again, created) == (first, False)
    assert world.plane.calls == calls


def test_the_same_vid_on_two_trunks_and_no_address_twice(world: World) -> None:
    one, two = world.attach(), world.attach(parent=OTHER)
    assert one.vid == two.vid
    assert one.ip != two.ip


def test_the_requested_address_and_mac(world: World) -> None:
    one = world.attach(ip=IPv4Address("10.1.0.77"), mac="02:AB:00:00:00:01")
    assert (str(one.ip), one.mac) == ("10.1.0.77", "02:ab:00:00:00:01")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"network": "none"}, "there is no network 'none'"),
        ({"ip": IPv4Address("10.1.0.1")}, "10.1.0.1 is not an address for a container"),
        ({"ip": IPv4Address("10.1.0.0")}, "not an address"),
        ({"ip": IPv4Address("10.1.0.255")}, "not an address"),
        ({"ip": IPv4Address("10.9.0.1")}, "not an address"),
        ({"ip": IPv4Address("10.1.0.9")}, "10.1.0.9 is in use on 'blue'"),
        ({"mac": "02:00:00:00:00:09"}, "the MAC 02:00:00:00:00:09 is in use"),
        ({"mac": "03:00:00:00:00:09"}, "'03:00:00:00:00:09' is not the MAC of a device"),
        ({"mac": "00:00:00:00:00:00"}, "not the MAC"),
        ({"mac": "02:00"}, "not the MAC"),
        ({"mac": "02:00:00:00:00:xx"}, "not the MAC"),
    ],
)
def test_what_a_network_does_not_have(world: World, fields: dict[str, Any], said: str) -> None:
    world.attach("c9", ip=IPv4Address("10.1.0.9"), mac="02:00:00:00:00:09")
    with pytest.raises(AttachNetworkError, match=said) as raised:
        world.attach("c1", **fields)
    assert raised.value.status == 422
    assert raised.value.remedy
    assert len(world.engine.everything()) == 1


def test_another_network_is_a_conflict(world: World) -> None:
    world.attach()
    with pytest.raises(AttachConflictError, match="is on the network 'blue'") as raised:
        world.attach(network="tiny")
    assert raised.value.status == 409
    world.detach()
    assert world.attach(network="tiny").network == "tiny"


def test_vids_and_addresses_go_round(world: World) -> None:
    first = world.attach()
    world.detach()
    second = world.attach()
    assert (first.vid, second.vid) == (2, 3)
    assert (str(first.ip), str(second.ip)) == ("10.1.0.2", "10.1.0.3")
    world.start()
    assert world.attach("c2").vid == 4


@pytest.mark.parametrize(("gone", "seconds"), [(True, 10), (False, 120)])
def test_a_vid_rests(database: Breaking, gone: bool, seconds: float) -> None:
    world = World(database, vids=range(2, 3))
    world.attach()
    world.detach(gone=gone)
    world.now += seconds - 1
    with pytest.raises(AttachFullError, match="all VLAN ids of the VM are in use or rest") as e:
        world.attach("c2")
    assert e.value.status == 507
    assert world.engine.status(VM).free == 0
    world.now += 1
    assert world.engine.status(VM).free == 1
    assert world.attach("c2").vid == 2


def test_an_address_is_free_at_once_and_a_full_network_says_so(world: World) -> None:
    all_of_them = [world.attach(f"c{n}", network="tiny") for n in range(6)]
    assert {str(one.ip) for one in all_of_them} == {f"10.2.0.{n}" for n in range(1, 7)}
    with pytest.raises(AttachFullError, match="all addresses of 'tiny' are in use"):
        world.attach("c7", network="tiny")
    world.detach("c3")
    assert world.attach("c7", network="tiny").ip == all_of_them[3].ip


def test_an_avoided_vid_rests_and_another_is_given(world: World) -> None:
    first = world.attach()
    second = world.attach(avoid=frozenset({first.vid, 3, 9999}))
    assert second.vid == 4
    assert second.id != first.id
    assert world.attach(avoid=frozenset({first.vid, 3})) == second
    assert world.engine.status(VM).free == 255
    world.check()
    for number in range(2):
        assert world.attach(f"other{number}").vid > 4
    world.detach()
    for number in range(2):
        world.detach(f"other{number}")
    world.check_nothing_leaked()


def test_the_vids_of_others_are_not_given(world: World) -> None:
    world.plane.others = [Found(id="", parent=VM.port_id, vid=vid) for vid in (2, 3)]
    world.engine.tidy()
    assert world.attach().vid == 4
    assert world.attach(parent=OTHER).vid == 2
    world.engine.tidy()
    assert [name for name, _count in world.plane.calls] == ["make", "make"]


def test_quota(database: Breaking) -> None:
    world = World(database, quota=2)
    world.attach("c1")
    world.attach("c2")
    with pytest.raises(AttachQuotaError, match="the VM has 2 of 2 attachments") as raised:
        world.attach("c3")
    assert raised.value.status == 429
    world.attach("c1")
    world.attach("c3", parent=OTHER)
    status = world.engine.status(VM)
    assert (status.used, status.free, status.quota) == (2, 0, 2)
    assert [one.name for one in status.networks] == ["blue", "tiny"]


def test_the_rate_of_new_attachments(database: Breaking) -> None:
    world = World(database, rate=2)
    world.attach("c1")
    world.attach("c2")
    with pytest.raises(AttachQuotaError, match="more than 2 new attachments in a second"):
        world.attach("c3")
    world.attach("c1")
    world.attach("c3", parent=OTHER)
    world.now += 0.5
    world.attach("c3")


def test_another_boot_frees_what_the_one_before_had(database: Breaking) -> None:
    world = World(database, vids=range(2, 5))
    old = [world.attach(f"c{n}", boot_id="first") for n in range(2)]
    kept = world.attach("kept")
    new = world.attach("c0", boot_id="second")
    assert new.id not in {one.id for one in old}
    assert {one.id for one in world.engine.everything()} == {kept.id, new.id}
    # Without a rest.
    assert world.attach("c5", boot_id="second").vid in {one.vid for one in old}
    world.check()


def test_detaching_twice_or_what_was_not_there(world: World) -> None:
    world.detach()
    world.attach()
    world.detach()
    world.detach()
    assert world.engine.get(VM, "c1", "eth0") is None
    world.check_nothing_leaked()


def test_collecting(world: World) -> None:
    for name, fields in {
        "stays": {"owner": "a"},
        "goes": {"owner": "a"},
        "other": {"owner": "b"},
        "elsewhere": {"owner": "a", "network": "tiny"},
    }.items():
        world.attach(name, **fields)
    world.attach("foreign", parent=OTHER, owner="a")
    world.now += 61
    world.attach("young", owner="a")
    assert world.engine.collect(VM, "blue", "a", {("stays", "eth0")}) == 1
    assert {one.container for one in world.engine.listed(VM)} == {
        *("stays", "other", "elsewhere", "young")
    }
    assert world.engine.collect(VM, "blue", "a", {("stays", "eth0")}) == 0
    world.check()


def test_collecting_and_detaching_while_the_data_plane_is_away(world: World) -> None:
    world.attach("c1")
    world.attach("c2")
    world.now += 61
    world.plane.away = True
    world.detach("c1")
    assert world.engine.collect(VM, "blue", "", set()) == 1
    assert world.engine.listed(VM) == []
    assert len(world.engine.everything()) == 2
    with pytest.raises(AttachDriverError, match="cannot be removed yet") as raised:
        world.attach("c1")
    assert raised.value.status == 503
    world.engine.tidy()
    assert len(world.plane.ports) == 2
    world.plane.away = False
    world.engine.tidy()
    world.check_nothing_leaked()


def test_a_failed_attachment_is_undone(world: World) -> None:
    world.plane.refused = lambda one: one.container == "bad"
    with pytest.raises(AttachDriverError, match="refused"):
        world.attach("bad")
    assert world.engine.everything() == []
    assert world.attach("good").vid == 3
    world.check()


def test_an_answer_that_is_lost_leaves_nothing_behind(world: World) -> None:
    world.plane.lost_answer = True
    with pytest.raises(AttachDriverError, match="the answer is lost"):
        world.attach()
    world.check()
    one = world.attach()
    world.plane.lost_answer = True
    world.detach()
    assert [row.id for row in world.engine.everything()] == [one.id]
    world.engine.tidy()
    world.check_nothing_leaked()


def test_a_vm_without_a_trunk(world: World) -> None:
    world.plane.unready = "no trunk bridge"
    with pytest.raises(AttachDriverError, match="no trunk bridge"):
        world.attach()
    status = world.engine.status(VM)
    assert (status.ready, status.cause) == (False, "no trunk bridge")
    assert world.engine.everything() == []


def test_a_database_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: object, **_named: object) -> None:
        raise StoreAwayError(cause="postgresql://secret.example: away")

    monkeypatch.setattr(world.database, "run", away)
    calls: list[Callable[[], object]] = [
        world.attach,
        world.detach,
        world.engine.tidy,
        world.engine.resume,
        world.engine.everything,
        lambda: world.engine.get(VM, "c1", "eth0"),
        lambda: world.engine.listed(VM),
        lambda: world.engine.collect(VM, "blue", "", set()),
    ]
    for call in calls:
        with pytest.raises(AttachDriverError) as raised:
            call()
        assert "secret" not in raised.value.line
    status = world.engine.status(VM)
    assert not status.ready
    assert "does not answer" in status.cause


def together(*calls: Callable[[], object]) -> list[object]:
    """Results of calls that run at once; an error of ours is a result."""

    def run(call: Callable[[], object]) -> object:
        try:
            return call()
        except AttachError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def behind_one(world: World, ask: Callable[[str], object], gathered: batches._Open) -> None:
    """Ask for c0, and while the data plane has it, for 19 more, which gather."""
    world.plane.calls.clear()
    world.plane.gate.clear()
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask, "c0")]
        try:
            wait_for(lambda: world.plane.calls, "the first call of the data plane")
            asked += [pool.submit(ask, f"c{n}") for n in range(1, 20)]
            wait_for(lambda: sum(one.requests for one in [*gathered.values()]) == 19, "the others")
        finally:
            world.plane.gate.set()
        for one in asked:
            one.result()


def test_concurrent_requests_for_one_attachment_give_one(world: World) -> None:
    results: Any = together(*[lambda: world.engine.attach(VM, wanted())] * 8)
    assert len({one.id for one, _created in results}) == 1
    assert sum(created for _one, created in results) == 1
    world.check()


def test_requests_at_once_go_to_the_driver_together(world: World) -> None:
    behind_one(world, world.attach, world.engine._batches._open)
    makes = [count for name, count in world.plane.calls if name == "make"]
    assert makes == [1, 19]
    world.check()


def test_one_of_a_batch_that_fails_does_not_stop_the_others(world: World) -> None:
    world.await_batch_of(6)
    world.plane.refused = lambda one: one.container == "c3"
    results = together(*[lambda n=n: world.attach(f"c{n}") for n in range(6)])
    assert [isinstance(one, AttachDriverError) for one in results] == [
        *(n == 3 for n in range(6)),
    ]
    assert world.plane.calls[0] == ("make", 6)
    world.check()
    assert len(world.engine.everything()) == 5


def test_a_data_plane_that_is_away_is_not_asked_for_each_of_a_batch(world: World) -> None:
    world.await_batch_of(8)
    world.plane.away = True
    results = together(*[lambda n=n: world.attach(f"c{n}") for n in range(8)])
    assert all(isinstance(one, AttachDriverError) for one in results)
    assert [count for name, count in world.plane.calls if name == "make"] == [8, 1, 1, 1]
    world.plane.away = False
    world.engine.tidy()
    world.check_nothing_leaked()


def test_vids_that_others_have_taken_meanwhile_are_left_out(world: World) -> None:
    world.plane.refused = lambda one: one.vid < 5
    world.plane.refusal = {"taken": True}
    assert world.attach().vid == 5
    world.check()
    # As many tries as a request has.
    world.plane.refused = lambda _one: True
    world.plane.calls.clear()
    with pytest.raises(AttachDriverError, match="refused"):
        world.attach("c2")
    assert [name for name, _count in world.plane.calls].count("make") == 8
    world.check()


def test_taken_vids_cost_no_rate(database: Breaking) -> None:
    world = World(database, rate=1)
    world.plane.refused = lambda one: one.vid < 5
    world.plane.refusal = {"taken": True}
    assert world.attach().vid == 5


def test_taken_vids_of_a_batch_do_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "WINDOW", 0.3)
    world.plane.refused = lambda one: one.vid < 7
    world.plane.refusal = {"taken": True}
    results: Any = together(*[lambda n=n: world.attach(f"c{n}") for n in range(8)])
    assert sorted(one.vid for one in results) == list(range(7, 15))
    world.check()


def test_a_failure_of_the_whole_is_not_tried_for_each(world: World) -> None:
    world.await_batch_of(8)
    world.plane.refused = lambda _one: True
    world.plane.refusal = {"whole": True}
    results = together(*[lambda n=n: world.attach(f"c{n}") for n in range(8)])
    assert all(isinstance(one, AttachDriverError) for one in results)
    assert [count for name, count in world.plane.calls if name == "make"] == [8]
    world.check()


def test_a_data_plane_can_name_the_ports(world: World) -> None:
    world.plane.names = {}
    world.start(name=str)
    one = world.attach()
    assert one.port_id == f"port of {one.id}"
    assert world.engine.everything() == [one]
    assert world.attach() == one


def test_a_port_that_another_host_needs_stays(world: World) -> None:
    """The data plane is the same for all hosts, and the VM moves."""
    one = world.attach()
    other = world.start("host-2")
    for found, stays in (
        ({"shared": True}, True),
        ({"removable": False}, True),
        ({}, False),
    ):
        world.plane.ports[one.id] = replace(
            Found(id=one.id, parent=one.parent, vid=one.vid), **found
        )
        other.tidy()
        assert (one.id in world.plane.ports) is stays


def test_half_of_a_port_is_made_again(world: World) -> None:
    one = world.attach()
    world.plane.ports[one.id] = replace(world.plane.ports[one.id], whole=False)
    world.engine.tidy()
    assert world.plane.ports[one.id].whole
    world.check()


def test_removals_at_once_go_to_the_driver_together(world: World) -> None:
    for number in range(20):
        world.attach(f"c{number}")
    behind_one(world, world.detach, world.engine._batches._leaving)
    counts = [count for name, count in world.plane.calls if name == "remove"]
    assert counts == [1, 19]
    assert world.engine.everything() == []


def test_the_next_requests_of_a_burst_are_awaited(world: World) -> None:
    now, slept = [100.0], list[float]()
    burst = batches.Batches(
        world.engine._plane, burst=0.5, clock=lambda: now[0], sleep=slept.append
    )
    burst._note(VM.port_id, 1)
    burst.remove(VM.port_id)
    assert slept == [0.0]
    burst._note(VM.port_id, 2)
    now[0] += batches.RECENT
    burst.remove(VM.port_id)
    assert slept == [0.0, 0.0]
    burst._note(VM.port_id, 2)
    burst.remove(VM.port_id)
    assert slept == [0.0, 0.0, 0.5]
    burst._note(OTHER.port_id, 2)
    burst.remove(VM.port_id)
    burst.remove(OTHER.port_id)
    assert slept == [0.0, 0.0, 0.5, 0.5, 0.5]


def test_an_attachment_that_is_deleted_while_it_is_created(world: World) -> None:
    world.plane.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(world.attach)
        while not world.plane.calls:
            threading.Event().wait(0.001)
        deleting = pool.submit(world.detach)
        while world.engine.listed(VM):
            threading.Event().wait(0.001)
        world.plane.gate.set()
        with pytest.raises(AttachDriverError, match="it was deleted while it was created"):
            making.result()
        deleting.result()
    world.check_nothing_leaked()


def test_a_data_plane_that_hangs_stops_nobody_for_ever(world: World) -> None:
    world.engine._plane.patience = 0.05
    world.plane.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(world.attach)
        while not world.plane.calls:
            threading.Event().wait(0.001)
        with pytest.raises(AttachDriverError, match=r"takes longer than 0\.05 s"):
            world.attach("c2")
        world.detach("c2")
        assert [one.container for one in world.engine.listed(VM)] == ["c1"]
        assert world.engine.status(VM).used == 2
        world.plane.gate.set()
        hanging.result()
    world.engine.tidy()
    world.check()
    world.detach()
    world.check_nothing_leaked()


def test_a_program_error_of_the_driver_releases_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.await_batch_of(3)
    make = world.plane.make
    monkeypatch.setattr(world.plane, "make", lambda *_arguments: {}["defect"])

    def run(container: str) -> str:
        with pytest.raises((KeyError, AttachDriverError)) as found:
            world.attach(container)
        return found.typename

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, ["c1", "c2", "c3"]))
    assert sorted(found) == ["AttachDriverError"] * 2 + ["KeyError"]
    monkeypatch.setattr(world.plane, "make", make)
    world.engine.tidy()
    world.check()


def test_add_and_delete_many_times_leaks_nothing(world: World) -> None:
    vids = set()
    for number in range(60):
        vids.add(world.attach(f"c{number}").vid)
        world.detach(f"c{number}", gone=number % 2 == 0)
        world.now += 0.1
    assert len(vids) == 60
    world.check_nothing_leaked()


def test_an_operator_sees_all_and_deletes_one(world: World) -> None:
    one, two = world.attach("c1"), world.attach("c2", parent=OTHER)
    assert [(row["id"], row["port"], row["ip"], row["state"]) for row in world.engine.report()] == [
        (one.id, VM.port_name, str(one.ip), "active"),
        (two.id, OTHER.port_name, str(two.ip), "active"),
    ]
    assert world.engine.dismiss(one.id)
    assert not world.engine.dismiss(one.id)
    assert world.engine.everything() == [two]
    world.check()


def test_an_attachment_of_another_host_leaves_there(world: World) -> None:
    one = world.attach()
    here = world.engine
    there = world.start("host-2", Plane())
    assert there.dismiss(one.id)
    assert [row.state for row in there.everything()] == [State.LEAVING]
    here.tidy()
    assert there.everything() == []


def test_a_comparison_on_request_tells_its_result(world: World) -> None:
    one = world.attach("c1")
    world.attach("c2")
    world.plane.ports.clear()
    assert world.engine.tidy_now() == {"removed": 0, "waiting": 0}
    assert one.id in world.plane.ports
    world.plane.away = True
    world.detach("c2")
    assert world.engine.tidy_now() == {"removed": 0, "waiting": 1}
    world.plane.away = False
    assert world.engine.tidy_now() == {"removed": 1, "waiting": 0}


def test_metrics_tell_states_and_what_is_left(database: Breaking) -> None:
    world = World(database, quota=3)
    world.attach("c1")
    world.attach("c2")
    world.attach("c1", parent=OTHER)
    world.engine.tidy()
    value = metrics.REGISTRY.get_sample_value
    assert value("dfmeta_attachments", {"state": "active"}) == 3
    assert value("dfmeta_attachments", {"state": "leaving"}) == 0
    assert value("dfmeta_vids_free") == 1
    before = [value("dfmeta_attach_seconds_count", {"outcome": one}) or 0 for one in OUTCOMES]
    world.attach("c3")
    world.attach("c3")
    with pytest.raises(AttachQuotaError):
        world.attach("c4")
    after = [value("dfmeta_attach_seconds_count", {"outcome": one}) or 0 for one in OUTCOMES]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 1]
