"""The engine should give each container one attachment, keep its values single, and free them."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import eventlet
import pytest
from eventlet.green import threading
from hypothesis import given
from hypothesis import strategies as st

from dfmeta import metrics
from dfmeta.attach import limits, trunk_loop
from dfmeta.attach.choice import may_have, next_address, next_vid
from dfmeta.attach.limits import Rate
from dfmeta.attach.model import AttachmentState, Found, Network
from dfmeta.errors import (
    AttachConflictError,
    AttachDriverError,
    AttachFullError,
    AttachNetworkError,
    AttachQuotaError,
    StoreAwayError,
)
from dfmeta.model import is_unicast
from tests.core.unit.attach.support import (
    OTHER,
    VM,
    Breaking,
    Plane,
    World,
    settle,
    together,
    wanted,
)
from tests.harness.tier import CLOCK


def test_an_attachment_stands_when_it_is_returned(world: World) -> None:
    attachment, created = world.engine.attach(
        VM, wanted(owner="o", boot_id="b", labels={"pod": "p"})
    )
    assert created
    assert (attachment.state, attachment.vid, attachment.host, attachment.parent) == (
        AttachmentState.ACTIVE,
        2,
        "host-1",
        "port-1",
    )
    assert attachment.ip == IPv4Address("10.1.0.2")  # the first is the gateway
    assert is_unicast(attachment.mac)
    assert int(attachment.mac[:2], 16) & 2
    assert (attachment.owner, attachment.boot_id, dict(attachment.labels)) == (
        "o",
        "b",
        {"pod": "p"},
    )
    assert world.plane.ports == {attachment.id: Found(id=attachment.id, parent="port-1", vid=2)}
    assert world.engine.get(VM, "c1", "eth0") == attachment
    assert world.engine.listed(VM) == [attachment]
    assert world.engine.listed(OTHER) == []
    other = world.attach(parent=OTHER)
    assert (other.vid, other.ip) == (attachment.vid, IPv4Address("10.1.0.3")), (
        "trunks share no VLAN ids"
    )
    chosen = world.attach("c2", ip=IPv4Address("10.1.0.77"), mac="02:AB:00:00:00:01")
    assert (str(chosen.ip), chosen.mac) == ("10.1.0.77", "02:ab:00:00:00:01")
    world.check()


REFUSED_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"network": "none"}, "there is no network 'none'"),
    ({"ip": IPv4Address("10.1.0.1")}, "10.1.0.1 is not an address for a container"),
    ({"ip": IPv4Address("10.1.0.0")}, "not an address"),
    ({"ip": IPv4Address("10.9.0.1")}, "not an address"),
    ({"ip": IPv4Address("10.1.0.9")}, "10.1.0.9 is in use on 'blue'"),
    ({"mac": "02:00:00:00:00:09"}, "the MAC 02:00:00:00:00:09 is in use"),
    ({"mac": "03:00:00:00:00:09"}, "'03:00:00:00:00:09' is not the MAC of a device"),
    ({"mac": "00:00:00:00:00:00"}, "not the MAC"),
    ({"mac": "02:00:00:00:00:xx"}, "not the MAC"),
]


def test_values_that_a_network_does_not_have_are_refused(world: World) -> None:
    world.attach("c9", ip=IPv4Address("10.1.0.9"), mac="02:00:00:00:00:09")
    for fields, message in REFUSED_VALUES:
        with pytest.raises(AttachNetworkError, match=message) as raised:
            world.attach("c1", **fields)
        assert (raised.value.status, bool(raised.value.remedy)) == (422, True), fields
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


def test_a_vid_rests(database: Breaking) -> None:
    for gone, seconds in ((True, 10), (False, 120)):
        world = World(database, vids=range(2, 3))
        world.attach()
        world.detach(gone=gone)
        world.now += seconds - 1
        with pytest.raises(AttachFullError, match="all VLAN ids of the VM are in use or rest") as e:
            world.attach("c2")
        assert (e.value.status, world.engine.status(VM).free) == (507, 0)
        world.now += 1
        assert world.engine.status(VM).free == 1
        assert world.attach("c2").vid == 2


def test_an_address_is_free_at_once_and_a_full_network_says_so(world: World) -> None:
    vms = [replace(VM, port_id=f"vm-{n}") for n in range(7)]
    world.there |= {vm.port_id for vm in vms}
    all_of_them = [world.attach(network="tiny", parent=vm) for vm in vms[:6]]
    assert {str(attachment.ip) for attachment in all_of_them} == {
        f"10.2.0.{n}" for n in range(1, 7)
    }
    with pytest.raises(AttachFullError, match="all addresses of 'tiny' are in use"):
        world.attach(network="tiny", parent=vms[6])
    world.detach(parent=vms[3])
    assert world.attach(network="tiny", parent=vms[6]).ip == all_of_them[3].ip


def test_last_eighth_of_a_network_is_for_vms_without_an_attachment_there(world: World) -> None:
    for n in range(14 - 1):
        world.attach(f"c{n}", network="small")
    kept = "the last addresses of 'small' are kept for other VMs"
    with pytest.raises(AttachFullError, match=kept) as caught:
        world.attach("c13", network="small")
    assert caught.value.status == 507
    world.attach("c13", network="blue")
    world.attach(network="small", parent=OTHER)
    with pytest.raises(AttachFullError, match="all addresses"):
        world.attach(network="small", parent=replace(OTHER, port_id="vm-3"))


def test_quota_of_a_network_counts_its_own_attachments(world: World) -> None:
    world.attach("c1", network="few")
    world.attach("c2", network="few")
    with pytest.raises(AttachQuotaError, match="2 of 2 attachments on 'few'") as caught:
        world.attach("c3", network="few")
    assert caught.value.status == 429
    world.attach("c3", network="blue")
    world.attach(network="few", parent=OTHER)


def test_mac_of_another_device_is_refused(world: World) -> None:
    gateway = "fa:16:3e:00:00:99"
    world.plane.macs = frozenset({gateway})
    for mac, cause in (
        (gateway, "is in use on 'blue'"),
        ("00:00:5e:00:01:07", "is reserved for routers"),
        ("ff:ff:ff:ff:ff:ff", "is not the MAC of a device"),
    ):
        with pytest.raises(AttachNetworkError, match=cause) as caught:
            world.attach(mac=mac)
        assert caught.value.status == 422, mac
    assert world.engine.everything() == []


def test_an_avoided_vid_rests_and_another_is_given(world: World) -> None:
    first = world.attach()
    second = world.attach(avoid=frozenset({first.vid, 3, 9999}))
    assert (second.vid, second.id == first.id) == (4, False)
    assert world.attach(avoid=frozenset({first.vid, 3})) == second
    assert world.engine.status(VM).free == 255
    world.check()
    world.detach()
    world.check_nothing_leaked()


def test_vids_of_others_are_neither_given_nor_free(database: Breaking) -> None:
    world = World(database, vids=range(2, 8))
    world.plane.others = [Found(id="", parent=VM.port_id, vid=vid) for vid in (2, 3, 9)]
    world.engine.tidy()
    assert world.engine.status(VM).free == 4
    assert world.attach().vid == 4
    assert world.engine.status(VM).free == 3
    assert (world.attach(parent=OTHER).vid, world.engine.status(OTHER).free) == (2, 5)
    world.engine.tidy()
    assert metrics.REGISTRY.get_sample_value("dfmeta_vids_free") == 3
    assert [name for name, _count in world.plane.calls] == ["make", "make"]


def test_quota_and_rate(database: Breaking) -> None:
    world = World(database, quota=2)
    for error, fields in (
        ("the VM has 2 of 2 attachments", {"quota": 2}),
        ("more than 2 new attachments in a second", {"rate": 2}),
    ):
        world = World(database, **fields)
        world.attach("c1")
        world.attach("c2")
        with pytest.raises(AttachQuotaError, match=error) as raised:
            world.attach("c3")
        assert raised.value.status == 429
        world.attach("c1")
        world.attach("c3", parent=OTHER)
    world.now += 0.5
    world.attach("c3")
    world.plane.unready = "no trunk bridge"
    world.detach("c3")
    status = world.engine.status(VM)
    assert (status.used, status.free, status.quota) == (2, 254, 256)
    assert (status.ready, status.cause) == (False, "no trunk bridge")
    assert [network.name for network in status.networks] == ["blue", "few", "small", "tiny"]


def test_a_vm_without_a_trunk_gets_no_attachment(world: World) -> None:
    world.plane.unready = "no trunk bridge"
    with pytest.raises(AttachDriverError, match="no trunk bridge"):
        world.attach()
    assert world.engine.everything() == []


def test_another_boot_frees_what_the_one_before_had(database: Breaking) -> None:
    world = World(database, vids=range(2, 5))
    old = [world.attach(f"c{n}", boot_id="first") for n in range(2)]
    kept = world.attach("kept")
    new = world.attach("c0", boot_id="second")
    assert new.id not in {attachment.id for attachment in old}
    assert {attachment.id for attachment in world.engine.everything()} == {kept.id, new.id}
    # Without a rest.
    assert world.attach("c5", boot_id="second").vid in {attachment.vid for attachment in old}
    world.check()


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
    assert {attachment.container for attachment in world.engine.listed(VM)} == {
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
    assert (world.engine.listed(VM), len(world.engine.everything())) == ([], 2)
    with pytest.raises(AttachDriverError, match="cannot be removed yet") as raised:
        world.attach("c1")
    assert raised.value.status == 503
    assert world.engine.tidy_now() == {"removed": 0, "waiting": 2}
    assert len(world.plane.ports) == 2
    world.plane.away = False
    assert world.engine.tidy_now() == {"removed": 2, "waiting": 0}
    world.check_nothing_leaked()


def test_a_database_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: object, **_named: object) -> None:
        raise StoreAwayError(cause="postgresql://secret.example: away")

    monkeypatch.setattr(world.database, "run", away)
    engine = world.engine
    calls: list[Callable[[], object]] = [
        *(world.attach, world.detach, engine.tidy, engine.resume, engine.everything),
        *(lambda: engine.get(VM, "c1", "eth0"), lambda: engine.listed(VM)),
        lambda: engine.collect(VM, "blue", "", set()),
    ]
    for call in calls:
        with pytest.raises(AttachDriverError) as raised:
            call()
        assert "secret" not in raised.value.line
    status = engine.status(VM)
    assert (status.ready, "does not answer" in status.cause) == (False, True)


def test_concurrent_requests_for_one_attachment_give_one(world: World) -> None:
    results = together(*[lambda: world.engine.attach(VM, wanted())] * 8)
    assert len({attachment.id for attachment, _created in results}) == 1
    assert sum(created for _one, created in results) == 1
    world.check()


def test_requests_during_work_on_a_trunk_are_one_call(world: World) -> None:
    """The first of each twenty is at work when the others come."""
    for name, call in (("make", world.attach), ("remove", world.detach)):
        world.plane.calls.clear()
        world.plane.gate = threading.Event()
        first = eventlet.spawn(call, "c0")
        settle()
        others = [eventlet.spawn(call, f"c{number}") for number in range(1, 20)]
        settle()
        world.plane.gate.set()
        for thread in (first, *others):
            thread.wait()
        assert world.plane.calls == [(name, 1), (name, 19)]
        world.check()
    assert world.engine.everything() == []


def attached(world: World, count: int) -> list[Any]:
    return together(*[lambda n=n: world.attach(f"c{n}") for n in range(count)])


def makes(world: World) -> list[int]:
    return [count for name, count in world.plane.calls if name == "make"]


def test_a_failure_of_one_attachment_does_not_stop_the_others(world: World) -> None:
    world.plane.refused = lambda attachment: attachment.container == "c3"
    results = attached(world, 6)
    assert [isinstance(result, AttachDriverError) for result in results] == [
        n == 3 for n in range(6)
    ]
    assert makes(world)[0] == 6
    world.check()
    assert len(world.engine.everything()) == 5


def test_a_data_plane_that_is_away_is_not_asked_for_each_of_a_batch(world: World) -> None:
    world.plane.away = True
    assert {type(result) for result in attached(world, 8)} == {AttachDriverError}
    assert makes(world) == [8, 1, 1, 1]
    world.plane.away = False
    world.engine.tidy()
    world.check_nothing_leaked()


def test_a_failure_of_the_whole_is_not_tried_for_each(world: World) -> None:
    world.plane.refused, world.plane.refusal = lambda _one: True, {"whole": True}
    assert {type(result) for result in attached(world, 8)} == {AttachDriverError}
    assert makes(world) == [8]
    world.check()


def test_vids_that_others_have_taken_meanwhile_are_left_out(database: Breaking) -> None:
    world = World(database, rate=1)
    world.plane.refused, world.plane.refusal = (
        lambda attachment: attachment.vid < 5,
        {"taken": True},
    )
    assert world.attach().vid == 5, "they cost no rate"
    world.check()
    world.now += 1
    # As many tries as a request has.
    world.plane.refused = lambda _one: True
    world.plane.calls.clear()
    with pytest.raises(AttachDriverError, match="refused"):
        world.attach("c2")
    assert len(makes(world)) == 8
    world.check()


def test_a_port_that_another_host_needs_stays(world: World) -> None:
    """The data plane is the same for all hosts, and the VM moves."""
    attachment = world.attach()
    other = world.start("host-2")
    for result, stays in (({"shared": True}, True), ({"removable": False}, True), ({}, False)):
        world.plane.ports[attachment.id] = replace(
            Found(id=attachment.id, parent=attachment.parent, vid=attachment.vid), **result
        )
        other.tidy()
        assert (attachment.id in world.plane.ports) is stays


def test_a_port_that_is_not_whole_is_made_again(world: World) -> None:
    attachment = world.attach()
    whole = world.plane.ports[attachment.id]
    for half in (replace(whole, whole=False), Found(id=attachment.id, parent="", vid=0)):
        world.plane.ports[attachment.id] = half
        world.engine.tidy()
        assert world.plane.ports == {attachment.id: whole}
    world.check()


def test_the_next_requests_of_a_burst_are_awaited(world: World) -> None:
    world.start(burst=0.5)

    def seconds(*names: str) -> float:
        began = CLOCK.now()
        together(*[lambda name=name: world.attach(name) for name in names])
        return CLOCK.now() - began

    assert [seconds("a"), seconds("b", "c")] == [0, 0]
    assert seconds("d") == pytest.approx(0.5)
    CLOCK.advance(trunk_loop.RECENT)
    assert seconds("e") == 0


def test_an_attachment_that_is_deleted_while_it_is_created(world: World) -> None:
    world.plane.gate = threading.Event()
    making = eventlet.spawn(world.attach)
    settle()
    deleting = eventlet.spawn(world.detach)
    settle()
    assert world.engine.listed(VM) == []
    world.plane.gate.set()
    with pytest.raises(AttachDriverError, match="it was deleted while it was created"):
        making.wait()
    deleting.wait()
    world.check_nothing_leaked()


def test_a_data_plane_that_hangs_delays_others_for_a_bounded_time(world: World) -> None:
    world.plane.gate = threading.Event()
    hanging = eventlet.spawn(world.attach)
    settle()
    began = CLOCK.now()
    with pytest.raises(AttachDriverError, match="takes longer than 30 s"):
        world.attach("c2")
    assert CLOCK.now() - began == pytest.approx(trunk_loop.PATIENCE)
    world.detach("c2")
    assert [attachment.container for attachment in world.engine.listed(VM)] == ["c1"]
    assert world.engine.status(VM).used == 2
    world.plane.gate.set()
    hanging.wait()
    world.engine.tidy()
    world.check()
    world.detach()
    world.check_nothing_leaked()


def failure(call: Callable[[], object]) -> type[Exception]:
    with pytest.raises((KeyError, AttachDriverError)) as raised:
        call()
    return raised.type


def test_drivers_defect_releases_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.plane, "make", lambda *_arguments: {}["defect"])
        results = together(*[lambda n=n: failure(lambda: world.attach(f"c{n}")) for n in range(3)])
    assert sorted(error.__name__ for error in results) == ["AttachDriverError"] * 2 + ["KeyError"]
    world.engine.tidy()
    world.check()


def test_an_operator_sees_all_and_deletes_one(world: World) -> None:
    first, second = world.attach("c1"), world.attach("c2", parent=OTHER)
    assert [(row["id"], row["port"], row["ip"], row["state"]) for row in world.engine.report()] == [
        (attached.id, parent.port_name, str(attached.ip), "active")
        for attached, parent in ((first, VM), (second, OTHER))
    ]
    assert [world.engine.dismiss(first.id) for _again in range(2)] == [True, False]
    assert world.engine.everything() == [second]
    world.check()
    # One of another host leaves there.
    here = world.engine
    assert world.start("host-2", Plane()).dismiss(second.id)
    assert [row.state for row in here.everything()] == [AttachmentState.LEAVING]
    here.tidy()
    assert here.everything() == []


def test_metrics_have_states_outcomes_and_the_smallest_rest(database: Breaking) -> None:
    world = World(database, quota=3)
    value = metrics.REGISTRY.get_sample_value

    def counts() -> list[float]:
        name = "dfmeta_attach_seconds_count"
        return [value(name, {"outcome": outcome}) or 0 for outcome in ("made", "found", "failed")]

    before = counts()
    for name in ("c1", "c2", "c3", "c3"):
        world.attach(name)
    world.attach("c1", parent=OTHER)
    with pytest.raises(AttachQuotaError):
        world.attach("c4")
    assert [new - old for new, old in zip(counts(), before, strict=True)] == [4, 1, 1]
    world.detach("c3")
    world.engine.tidy()
    states = [value("dfmeta_attachments", {"state": state}) for state in ("active", "leaving")]
    assert (states, value("dfmeta_vids_free")) == ([3, 0], 1)


@given(st.integers(0, 30), st.sets(st.integers(0, 30)))
def test_the_next_vid_is_the_first_free_one_after_the_last(last: int, taken: set[int]) -> None:
    vids = range(5, 15)
    start = last + 1 if last in vids else 5
    order = [5 + (start - 5 + step) % 10 for step in range(10)]
    free = [vid for vid in order if vid not in taken]
    assert next_vid(vids, last, taken) == (free[0] if free else None)


@given(
    st.integers(16, 32),
    st.integers(0, 255),
    st.none() | st.integers(-5, 300),
    st.sets(st.integers(0, 300)),
)
def test_next_address_is_free(prefix: int, gateway: int, last: int | None, used: set[int]) -> None:
    subnet = IPv4Network((int(IPv4Address("10.0.0.0")), prefix))
    base = int(subnet.network_address)
    network = Network(name="n", subnet=subnet, gateway=IPv4Address(base + gateway))
    request: set[int] = set()

    def ask(low: int, high: int) -> set[int]:
        assert low <= high
        assert not request & set(range(low, high + 1))
        request.update(range(low, high + 1))
        return {base + address for address in used if low <= base + address <= high}

    result = next_address(network, None if last is None else base + last, ask)
    if result is not None:
        assert may_have(network, IPv4Address(result))
        assert IPv4Address(result) in subnet
        assert result - base not in used
    else:
        hosts = {int(host) - base for host in subnet.hosts()} - {gateway}
        assert hosts <= used


def test_a_bucket_fills_with_time() -> None:
    now = [0.0]
    bucket, seldom = Rate(2, lambda: now[0]), Rate(0.1, lambda: now[0])
    for time, taken in (
        (0.0, [True, True, False]),
        (0.5, [True, False]),
        (0.0, [False]),  # a clock that was set back
        (100.0, [True, True, False]),
    ):
        now[0] = time
        assert [bucket.take("a") for _ in taken] == taken, time
    assert bucket.take("b")
    # A rate below one lets one pass.
    assert [seldom.take("a") for _ in range(2)] == [True, False]
    now[0] += 10.0
    assert seldom.take("a")


def test_buckets_are_bounded() -> None:
    bucket = Rate(1, lambda: 0.0)
    assert all(bucket.take(str(number)) for number in range(limits.PORTS + 1))
    # That of the first was dropped for the last.
    assert [bucket.take("0"), bucket.take(str(limits.PORTS))] == [True, False]
