"""Messages between daemon and worker should arrive whole, in order, and questions be answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket

from dfmeta.proxy.worker.pipe import BYTES, Message, Pipe


class Ends:
    """A pipe; one end keeps what comes, and answers questions with the same again."""

    def __init__(self) -> None:
        one, other = socket.socketpair()
        self.near, self.far = Pipe(one), Pipe(other)
        self.came: list[Message] = []
        self.threads = [
            eventlet.spawn(self.far.run, self._keep),
            eventlet.spawn(self.near.run, self.came.append),
        ]

    def _keep(self, message: Message) -> None:
        self.came.append(message)
        if message.get("again"):
            self.far.answer(message, {"same": message["again"]})

    def wait(self, count: int) -> None:
        while len(self.came) < count:
            eventlet.sleep(0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.near.close()
    both.far.close()


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_bytes_come_along_as_they_are(ends: Ends, size: int) -> None:
    along = (bytes(range(256)) + b"\n{}\n") * (size // 260 + 1)
    ends.near.send({"n": 1}, along[:size])
    ends.near.send({"n": 2}, b"\n")
    ends.near.send({"n": 3})
    ends.wait(3)
    assert ends.came == [{"n": 1, BYTES: along[:size]}, {"n": 2, BYTES: b"\n"}, {"n": 3}]


def test_a_question_is_answered(ends: Ends) -> None:
    asking = [eventlet.spawn(ends.near.ask, {"again": n}) for n in range(1, 5)]
    assert [one.wait()["same"] for one in asking] == [1, 2, 3, 4]


def test_a_question_without_an_answer_has_an_end(ends: Ends) -> None:
    assert ends.near.ask({"what": "?"}, 0.01) is None


def test_a_question_ends_with_the_pipe(ends: Ends) -> None:
    asking = eventlet.spawn(ends.near.ask, {"what": "?"}, 30.0)
    eventlet.sleep(0)
    ends.far.close()
    assert asking.wait() is None
    ends.threads[1].wait()
    assert ends.near.closed


def test_sending_stops_when_the_other_end_closes_amid_a_message(ends: Ends) -> None:
    ends.threads[0].kill()
    ends.near.send({"text": "x" * 3_000_000})
    eventlet.sleep(0)
    ends.far.close()
    ends.threads[1].wait()
    while ends.near._writing:
        eventlet.sleep(0)


# Without waiting


def test_catching_up_handles_received_messages(ends: Ends) -> None:
    eventlet.sleep(0)
    ends.near.send({"n": 1})
    ends.near.send({"n": 2}, b"along")
    ends.far.catch_up()
    assert ends.came == [{"n": 1}, {"n": 2, BYTES: b"along"}]
    ends.far.catch_up()
    ends.near.send({"n": 3})
    ends.wait(3)
    assert [one["n"] for one in ends.came] == [1, 2, 3]


def test_a_part_of_a_message_waits_for_the_rest(ends: Ends) -> None:
    eventlet.sleep(0)
    sock = ends.near._sock.fd
    sock.send(b'{"n": 1}\n{"n')
    ends.far.catch_up()
    assert ends.came == [{"n": 1}]
    sock.send(b'": 2, "bytes": 3}\nab')
    ends.far.catch_up()
    assert ends.came == [{"n": 1}]
    sock.send(b'c{"n": 3}\n')
    ends.far.catch_up()
    assert ends.came == [{"n": 1}, {"n": 2, BYTES: b"abc"}, {"n": 3}]


def test_a_handler_that_catches_up_changes_no_order() -> None:
    one, other = socket.socketpair()
    near, far = Pipe(one), Pipe(other)
    came: list[Any] = []

    def handle(message: Message) -> None:
        far.catch_up()
        came.append(message["n"])

    reading = eventlet.spawn(far.run, handle)
    eventlet.sleep(0)
    for number in range(20):
        near.send({"n": number})
    far.catch_up()
    assert came == list(range(20))
    near.close()
    reading.wait()
    far.catch_up()


def test_bytes_in_the_sockets_buffer_count_as_gone(ends: Ends) -> None:
    ends.threads[0].kill()
    near = ends.near
    near.send({"n": 1})
    small = near.queued
    assert near.gone(small)
    near.send({"text": "x" * 3_000_000})
    assert near.gone(small)
    assert not near.gone(near.queued)
    eventlet.sleep(0)
    received = 0
    while received < near.queued:
        received += len(ends.far._sock.recv(65536))
    assert near.gone(near.queued)
    near.send({"text": "x" * 3_000_000})
    near.close()
    assert near.gone(near.queued), "there is no other end"
