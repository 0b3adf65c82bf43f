"""Messages between daemon and worker should arrive whole, in order, and questions be answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket

from dfmeta.proxy.pipe import BYTES, Message, Pipe


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
        with eventlet.Timeout(5):
            while len(self.came) < count:
                eventlet.sleep(0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.near.close()
    both.far.close()


def test_messages_come_in_their_order(ends: Ends) -> None:
    sent: list[Any] = [{"n": n, "text": "\n\0ü" * n} for n in range(50)]
    for message in sent:
        ends.near.send(message)
    ends.wait(50)
    assert ends.came == sent


@pytest.mark.parametrize("size", [0, 1, 300_000, 5_000_000])
def test_bytes_come_along_as_they_are(ends: Ends, size: int) -> None:
    along = (bytes(range(256)) + b"\n{}\n") * (size // 260 + 1)
    ends.near.send({"n": 1}, along[:size])
    ends.near.send({"n": 2})
    ends.near.send({"n": 3}, b"\n")
    ends.wait(3)
    assert ends.came == [
        {"n": 1, BYTES: along[:size]},
        {"n": 2},
        {"n": 3, BYTES: b"\n"},
    ]


def test_what_is_larger_than_the_sockets_buffer_comes_whole(ends: Ends) -> None:
    large = {"text": "x" * 3_000_000}
    ends.near.send(large)
    ends.near.send({"n": 1})
    ends.wait(2)
    assert ends.came == [large, {"n": 1}]


def test_a_question_is_answered(ends: Ends) -> None:
    asking = [eventlet.spawn(ends.near.ask, {"again": n}) for n in range(1, 5)]
    assert [one.wait()["same"] for one in asking] == [1, 2, 3, 4]


def test_a_question_without_an_answer_has_an_end(ends: Ends) -> None:
    assert ends.near.ask({"what": "?"}, 0.01) is None


def test_an_answer_that_nobody_waits_for_is_no_matter(ends: Ends) -> None:
    ends.far.send({"answers": 99})
    ends.far.send({"n": 1})
    ends.wait(1)
    assert ends.came == [{"n": 1}]


def test_a_question_ends_with_the_pipe(ends: Ends) -> None:
    asking = eventlet.spawn(ends.near.ask, {"what": "?"}, 30.0)
    eventlet.sleep(0)
    ends.far.close()
    assert asking.wait() is None
    ends.threads[1].wait()
    assert ends.near.closed


def test_sending_to_nobody_is_no_error(ends: Ends) -> None:
    ends.far.close()
    ends.near.send({"text": "x" * 3_000_000})
    ends.near.send({"n": 1})
    ends.threads[1].wait()
    ends.near.send({"n": 2})
    eventlet.sleep(0.01)


def test_sending_stops_when_the_other_end_closes_amid_a_message(ends: Ends) -> None:
    ends.threads[0].kill()
    ends.near.send({"text": "x" * 3_000_000})
    eventlet.sleep(0)
    ends.far.close()
    ends.threads[1].wait()
    with eventlet.Timeout(5):
        while ends.near._writing:
            eventlet.sleep(0)
