"""The daemon should know the map of haproxy exactly, and believe no answer that it did not ask."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
import pytest
from eventlet.event import Event
from eventlet.green import socket as green_socket

from dfmeta.exceptions import HaproxyError
from dfmeta.proxy.haproxy import runtime as runtime_module
from dfmeta.proxy.haproxy.config import OF_ADDRESS, OF_PORT
from dfmeta.proxy.haproxy.runtime import COMMANDS, PROMPT, Runtime
from dfmeta.proxy.http1 import HeadLimits
from dfmeta.proxy.limits import Limits
from tests.core.unit.haproxy.support import HERE, Loopback, server, value, wait_ended
from tests.core.unit.support import let_hub_run, until
from tests.core.unit.upstream import OK, Upstream


def many(count: int) -> dict[str, str]:
    return {f"240.0.{number >> 8}.{number & 255}": value() for number in range(count)}


def test_entries_are_added_set_and_deleted(one: Loopback) -> None:
    one.put("a|b")
    one.put("c|d", "fd00::1")
    assert one.runtime.entries(one.map) == {HERE: "a|b", "fd00::1": "c|d"}
    one.put("e")
    assert one.runtime.entries(one.map) == {HERE: "e", "fd00::1": "c|d"}
    one.put(None)
    assert one.runtime.entries(one.map) == {"fd00::1": "c|d"}


def test_more_changes_than_a_connection_takes_are_all_made(one: Loopback) -> None:
    entries = many(2 * COMMANDS + 1)
    one.runtime.change(one.map, {}, dict(entries))
    assert one.runtime.entries(one.map) == entries
    one.runtime.change(one.map, entries, dict.fromkeys(entries))
    assert one.runtime.entries(one.map) == {}


def test_all_entries_fit_into_the_buffers_of_the_smallest_limits(
    loopback: Callable[..., Loopback],
) -> None:
    one = loopback(limits=Limits(head=HeadLimits(request_line=256, header=512)))
    entries = dict.fromkeys(many(2 * COMMANDS), value(instance="a" * 120))
    one.runtime.replace(one.map, entries)
    assert one.runtime.entries(one.map) == entries
    others = dict.fromkeys(entries, value(instance="b" * 120))
    one.runtime.change(one.map, entries, dict(others))
    assert one.runtime.entries(one.map) == others


def test_an_entry_that_is_not_there_cannot_be_deleted_and_costs_no_command(one: Loopback) -> None:
    one.runtime.change(one.map, {}, {HERE: None})
    assert one.runtime.entries(one.map) == {}


def test_a_mirror_that_is_wrong_is_noticed(one: Loopback) -> None:
    with pytest.raises(HaproxyError, match="did not change its map: 'entry not found"):
        one.runtime.change(one.map, {HERE: "a"}, {HERE: "b"})


def test_all_entries_are_replaced_at_once_in_several_payloads(one: Loopback) -> None:
    one.put("old", "10.9.9.9")
    entries = many(500)
    assert sum(map(len, entries.values())) > 2 * runtime_module.REQUEST
    one.runtime.replace(one.map, entries)
    assert one.runtime.entries(one.map) == entries
    one.runtime.replace(one.map, {})
    assert one.runtime.entries(one.map) == {}


def test_a_command_that_haproxy_refuses_is_no_list_and_no_table(one: Loopback) -> None:
    with pytest.raises(HaproxyError, match="map"):
        one.runtime.entries("/none")
    with pytest.raises(HaproxyError, match="did not prepare"):
        one.runtime.replace("/none", {})
    with pytest.raises(HaproxyError, match="table"):
        one.runtime.table("none")


def test_tables_and_statistics_have_what_a_guest_did(
    loopback: Callable[..., Loopback], upstream: Upstream
) -> None:
    one = loopback(server(upstream))
    one.put(value())
    guest = one.connect()
    assert one.ask(guest=guest).startswith(b"HTTP/1.1 200 OK")
    assert one.ask(guest=guest).startswith(b"HTTP/1.1 200 OK")
    row = one.runtime.table(OF_ADDRESS, "data.gpc0 gt 0")["13.0.1.0.1"]
    assert (row["conn_cur"], row["gpc0"]) == (1, 2)
    assert one.runtime.table(OF_PORT)["13.0.1"]["conn_cnt"] == 1
    assert one.runtime.table(OF_PORT, "data.conn_cnt gt 1") == {}
    keys = ["13.0.1.0.1", "13.0.1.0.2"]
    assert [*one.runtime.rows_at_once(OF_ADDRESS, keys, timeout=30)] == keys[:1]
    assert one.runtime.rows_at_once(OF_ADDRESS, [], timeout=1.0) == {}
    rows = {(row["pxname"], row["svname"]): row for row in one.runtime.statistics()}
    assert rows["guests", "FRONTEND"]["scur"] == "1"
    assert rows["nova", "BACKEND"]["hrsp_2xx"] == "2"


def test_the_map_of_a_haproxy_that_leaves_still_changes(
    loopback: Callable[..., Loopback], upstream: Upstream
) -> None:
    gate = Event()
    upstream.script = lambda _asked: gate.wait() or OK
    one = loopback(server(upstream))
    one.put(value())
    guest = one.connect()
    answer = eventlet.spawn(one.ask, guest=guest)
    until(lambda: upstream.asked, "the request")
    one.process.leave()
    one.put(value(incarnation=2))
    one.put("a|b", "fd00::1")
    assert one.runtime.entries(one.map) == {HERE: value(incarnation=2), "fd00::1": "a|b"}
    with pytest.raises(HaproxyError, match="about to end"):
        one.runtime.replace(one.map, {})
    with pytest.raises(HaproxyError, match="about to end"):
        one.runtime.rows_at_once(OF_PORT, ["13.0.1"], timeout=1.0)
    gate.send()
    assert answer.wait() == b"", "the answer was for the guest before"
    one.runtime.close()
    assert wait_ended(one.process) == 0


def test_a_haproxy_that_is_gone_or_stopped_is_an_error(one: Loopback) -> None:
    os.kill(one.process.pid, signal.SIGSTOP)
    for ask in (one.runtime.ask, one.runtime.ask_at_once):
        with pytest.raises(HaproxyError, match="runtime interface failed"):
            ask("show version", timeout=0.05)
    one.process.kill()
    wait_ended(one.process)
    for ask in (one.runtime.ask, one.runtime.ask_at_once):
        with pytest.raises(HaproxyError, match="runtime interface failed"):
            ask("show version", timeout=0.5)
    with pytest.raises(HaproxyError, match="runtime interface failed"):
        one.runtime.hold()
    one.process.leave()


class Foreign:
    """haproxy's end of the pair: answers each connection as a test says."""

    def __init__(self) -> None:
        mine, self._link = socket.socketpair()
        self.runtime = Runtime(mine)
        self.answers: list[bytes] = []
        self.stays = False
        """Whether connections stay open; each line gets an answer."""
        self._link.setblocking(False)
        self._thread = eventlet.spawn(self._run)

    def _run(self) -> None:
        while True:
            try:
                data, descriptors, _flags, _address = socket.recv_fds(self._link, 1, 1)
            except BlockingIOError:
                eventlet.sleep(0.001)
                continue
            if not data:
                return
            for descriptor in descriptors:
                eventlet.spawn_n(self._serve, eventlet.green.socket.socket(fileno=descriptor))

    def _serve(self, sock: Any) -> None:
        with sock:
            while piece := sock.recv(65536):
                # A connection that stays may bring a line beside the line before.
                for _line in range(piece.count(b"\n") if self.stays else 1):
                    sock.sendall(self.answers.pop(0) if self.answers else b"")
                if not self.stays:
                    return

    def end(self) -> None:
        self._thread.kill()
        self._link.close()
        self.runtime.close()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    one = Foreign()
    yield one
    one.end()


@pytest.mark.parametrize("answer", [b"", b"# pxname,svname", b"\xff\n"])
def test_an_answer_that_is_cut_short_or_not_text_is_refused(
    foreign: Foreign, answer: bytes
) -> None:
    asks: list[Callable[[], object]] = [
        lambda: foreign.runtime.entries("m"),
        lambda: foreign.runtime.table("t"),
        foreign.runtime.statistics,
        lambda: foreign.runtime.change("m", {}, {HERE: "a"}),
    ]
    for ask in asks:
        foreign.answers = [answer]
        with pytest.raises(HaproxyError):
            ask()


def test_an_answer_of_any_length_does_not_fill_the_memory(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "ANSWER_MAX", 100)
    foreign.answers = [bytes(101)]
    with pytest.raises(HaproxyError, match="too long"):
        foreign.runtime.ask("show map m")


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([b"New version created: x\n\n"], "did not prepare"),
        ([b"New version created: 1\n\n", b"No such version\n"], "did not add"),
        ([b"New version created: 1\n\n", b"\n", b"\n"], "not all entries"),
        ([b"New version created: 1\n\n", b"\n", b"0x1 10.0.0.1 a\n\n", b"No.\n"], "did not use"),
    ],
)
def test_a_replacement_counts_only_when_each_step_is_confirmed(
    foreign: Foreign, answers: list[bytes], fault: str
) -> None:
    foreign.answers = answers
    with pytest.raises(HaproxyError, match=fault):
        foreign.runtime.replace("m", {"10.0.0.1": "a"})


@pytest.mark.parametrize("line", ["0x1: use=0", "0x1: key=a use=x", "0x1:"])
def test_a_row_that_is_none_is_refused(foreign: Foreign, line: str) -> None:
    foreign.answers = [f"# table: t\n{line}\n\n".encode()]
    with pytest.raises(HaproxyError, match="table is not readable"):
        foreign.runtime.table("t")


def test_statistics_without_a_heading_are_refused(foreign: Foreign) -> None:
    foreign.answers = [b"Unknown command\n\n"]
    with pytest.raises(HaproxyError, match="statistics"):
        foreign.runtime.statistics()
    foreign.answers = [b"\n"]
    with pytest.raises(HaproxyError, match="statistics"):
        foreign.runtime.statistics()


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_the_late_answer_of_a_command_is_not_that_of_the_next(
    foreign: Foreign, timeout: float
) -> None:
    foreign.stays = True
    foreign.answers = [PROMPT]
    foreign.runtime.hold()
    with pytest.raises(HaproxyError, match="in time"):
        foreign.runtime.ask("show table t;show stat", timeout=timeout)
    foreign.answers = [b"late\n\n> " * 2 + b"right\n\n> "]
    assert foreign.runtime.ask("show map m") == "right\n\n"
    foreign.answers = [b"next\n\n> " * 2]
    assert foreign.runtime.ask("show map m;show map m") == "next\n\n" * 2


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_part_of_a_late_answer_is_not_that_of_the_next(foreign: Foreign, timeout: float) -> None:
    foreign.stays = True
    foreign.answers = [PROMPT, b"late\n\n>", b" right\n\n> "]
    foreign.runtime.hold()
    with pytest.raises(HaproxyError, match="in time"):
        foreign.runtime.ask("show table t", timeout=timeout)
    assert foreign.runtime.ask("show map m") == "right\n\n"


def test_no_command_follows_a_part_of_one(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.stays = True
    foreign.answers = [PROMPT]
    foreign.runtime.hold()
    with pytest.raises(HaproxyError, match="in time"):
        foreign.runtime.ask(f"add map m {'a' * (4 << 20)}", timeout=0)
    with pytest.raises(HaproxyError, match="failed"):
        foreign.runtime.ask("show map m", timeout=0.05)


def test_a_held_connection_is_closed_while_a_command_waits(foreign: Foreign) -> None:
    """The sockets that get its number next have nothing to do with that command."""
    foreign.stays = True
    foreign.answers = [PROMPT]
    foreign.runtime.hold()
    waiting = [eventlet.spawn(foreign.runtime.ask, "show info", timeout=30) for _ in "ab"]
    let_hub_run()
    foreign.runtime.close()
    pairs = [green_socket.socketpair() for _ in range(4)]
    readers = [eventlet.spawn(one.recv, 1) for one, _other in pairs]
    for one in waiting:
        with pytest.raises(HaproxyError, match=r"ended early|Broken pipe|Bad file"):
            one.wait()
    later = green_socket.socketpair()
    pairs.append(later)
    readers.append(eventlet.spawn(later[0].recv, 1))
    let_hub_run()
    for _one, other in pairs:
        other.sendall(b"x")
    assert [one.wait() for one in readers] == [b"x"] * len(pairs)
    for pair in pairs:
        for sock in pair:
            sock.close()
    foreign.runtime.close()


def test_a_held_connection_that_ends_is_an_error(foreign: Foreign) -> None:
    foreign.answers = [b""]
    with pytest.raises(HaproxyError, match="ended early"):
        foreign.runtime.hold()


def test_an_entry_that_is_none_is_refused(foreign: Foreign) -> None:
    foreign.answers = [b"0x1 10.0.0.1\n"]
    with pytest.raises(HaproxyError, match="map is not readable"):
        foreign.runtime.entries("m")
