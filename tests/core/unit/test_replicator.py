"""What a registry's replicas are told, and when a guest may go on."""

from collections.abc import Sequence

import eventlet

from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, PortId
from dfmeta.proxy.replicator import BATCH, Replicator
from tests.core.unit.support import let_hub_run, port

Batch = tuple[bool, list[Endpoint]]
ONE, TWO = Endpoint(13), Endpoint(14)


class Replica:
    def __init__(self, *, takes: bool = True, serving: bool = True) -> None:
        self.batches: list[Batch] = []
        self.takes = takes
        self.serving = serving

    @property
    def position(self) -> int:
        return len(self.batches)

    def apply(self, batch: Batch) -> None:
        self.batches.append(batch)

    def acked(self, position: int) -> bool:
        return self.takes and position <= len(self.batches)


class World:
    def __init__(self, *replicas: Replica) -> None:
        self.registry = Registry()
        self.replicas = list(replicas)
        self.replicator: Replicator[Replica] = Replicator(
            self.registry, self._batch_of, lambda: self.replicas
        )
        self.registry.set_port(port(13))

    def _batch_of(self, endpoints: Sequence[Endpoint], new: bool) -> Batch:
        return new, list(endpoints)


def test_settling_tells_every_replica_once_of_each_endpoint_in_its_order() -> None:
    world = World(Replica(), Replica())
    world.registry.set_port(port(14))
    world.registry.set_port(port(13, project="another"))
    assert world.replicator.flush() == []
    assert [replica.batches for replica in world.replicas] == [[(False, [ONE, TWO])]] * 2
    assert world.replicator.flush() == []
    assert [len(replica.batches) for replica in world.replicas] == [1, 1]


def test_a_replica_that_does_not_take_its_news_is_named() -> None:
    good, late = Replica(), Replica(takes=False)
    world = World(good, late)
    assert world.replicator.flush() == [late]
    assert good.batches == late.batches


def test_a_replica_that_serves_no_guest_yet_is_not_waited_for() -> None:
    world = World(Replica(takes=False, serving=False))
    assert world.replicator.flush() == []
    assert world.replicas[0].batches == [(False, [ONE])]


def test_news_goes_out_by_itself_until_the_end() -> None:
    world, ended = World(Replica()), [False]
    thread = eventlet.spawn(world.replicator.run, lambda: ended[0])
    let_hub_run()
    assert world.replicas[0].batches == [(False, [ONE])]
    world.registry.remove_port(PortId("row-of-tap1"))
    ended[0] = True
    thread.wait()
    assert world.replicas[0].batches == [(False, [ONE])] * 2


def test_a_new_replica_is_told_of_all_in_batches() -> None:
    world = World()
    for number in range(14, 13 + BATCH + 5):
        world.registry.set_port(port(number, name=f"tap-{number}"))
    new = Replica()
    world.replicator.add_replica(new)
    assert [(fresh, len(batch)) for fresh, batch in new.batches] == [(True, BATCH), (True, 5)]
    assert {endpoint for _fresh, batch in new.batches for endpoint in batch} == {
        *world.registry.endpoints()
    }
