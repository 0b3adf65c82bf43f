"""An idle connection should be its instance's, and its instance should have few of them."""

from typing import Any

import eventlet

from dfmeta.http.pool import IDLE, OF_INSTANCE, POOL_SIZE, ConnectionPool


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        assert not self.closed, "closed once"
        self.closed = True


def put(pool: Any, *instances: str) -> list[Connection]:
    connections = [Connection() for _ in instances]
    for instance, connection in zip(instances, connections, strict=True):
        pool.put(instance, connection)
    return connections


def test_connection_is_taken_once_by_its_own_instance_and_the_last_used_first() -> None:
    pool: Any = ConnectionPool()
    first, second, other = put(pool, "a", "a", "b")
    assert [pool.take(instance) for instance in ("a", "a", "a", "c")] == [second, first, None, None]
    assert [pool.take("b"), pool.take("b"), len(pool)] == [other, None, 0]


def test_instance_has_few_and_takes_no_place_of_another() -> None:
    pool: Any = ConnectionPool()
    (other,) = put(pool, "b")
    connections = put(pool, *"a" * (POOL_SIZE + 1))
    assert [connection.closed for connection in connections] == [True] * (
        POOL_SIZE + 1 - OF_INSTANCE
    ) + [False] * OF_INSTANCE
    assert not other.closed


def test_longest_idle_connection_is_closed_when_full() -> None:
    pool: Any = ConnectionPool()
    first, *others = put(pool, *map(str, range(POOL_SIZE)))
    put(pool, "another")
    assert first.closed
    assert not any(connection.closed for connection in others)
    pool.close()
    assert all(connection.closed for connection in others)


def test_connection_that_is_idle_for_long_is_closed() -> None:
    pool: Any = ConnectionPool()
    (first,) = put(pool, "a")
    eventlet.sleep(IDLE / 2)
    (second,) = put(pool, "b")
    eventlet.sleep(IDLE / 2)
    assert (first.closed, second.closed) == (True, False)
    eventlet.sleep(IDLE / 2)
    assert (second.closed, len(pool)) == (True, 0)
