"""Counts for the present guest of each endpoint."""

from dfmeta.identity.slots import GuestCounts
from dfmeta.model import Endpoint

HERE = Endpoint(1)


def test_connections_are_counted_for_the_guest_of_today_alone() -> None:
    daemon, worker = GuestCounts(ports=2), GuestCounts()
    daemon.add(HERE, 1)
    worker.add(HERE, 1, 2)
    worker.add(Endpoint(2), 7)
    counts = worker.take()
    assert worker.take() == []
    daemon.merge(counts, {HERE: 1, Endpoint(2): 8}.get)
    assert (daemon.of(HERE, 1), daemon.of(HERE, 2), daemon.of(Endpoint(2), 7)) == (3, 0, 0)
    daemon.add(HERE, 2)
    assert (daemon.of(HERE, 1), daemon.of(HERE, 2)) == (0, 1)
    daemon.add(Endpoint(3), 1)
    daemon.add(Endpoint(4), 1)
    assert daemon.of(HERE, 2) == 0, "the oldest has fallen out"
