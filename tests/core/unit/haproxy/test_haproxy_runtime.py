"""The daemon should know the map of haproxy exactly, and believe no answer that it did not ask."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green_socket
from eventlet.hubs import trampoline

from dfmeta.exceptions import HaproxyError
from dfmeta.proxy.haproxy import runtime as runtime_module
from dfmeta.proxy.haproxy.runtime import COMMANDS, PROMPT, REQUEST, Runtime
from tests.core.unit.support import let_hub_run

HERE = "127.0.0.1"


class Foreign:
    """haproxy's end of the pair: answers each connection as a test says."""

    def __init__(self) -> None:
        mine, self._link = socket.socketpair()
        self.runtime = Runtime(mine)
        self.answers: list[bytes] = []
        self.commands: list[bytes] = []
        self.stays = False
        """Whether connections stay open; each line gets an answer."""
        self._link.setblocking(False)
        self._thread = eventlet.spawn(self._run)

    def _run(self) -> None:
        while True:
            trampoline(self._link.fileno(), read=True)
            data, descriptors, _flags, _address = socket.recv_fds(self._link, 1, 1)
            if not data:
                return
            for descriptor in descriptors:
                eventlet.spawn_n(self._serve, eventlet.green.socket.socket(fileno=descriptor))

    def _serve(self, sock: Any) -> None:
        with sock:
            while piece := sock.recv(65536):
                self.commands.append(piece)
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


def test_answer_that_is_cut_short_or_not_text_is_refused(foreign: Foreign) -> None:
    asks: list[Callable[[], object]] = [
        lambda: foreign.runtime.entries("m"),
        lambda: foreign.runtime.table("t"),
        foreign.runtime.statistics,
        lambda: foreign.runtime.change("m", {}, {HERE: "a"}),
    ]
    for ask in asks:
        for answer in (b"", b"# pxname,svname", b"\xff\n"):
            foreign.answers = [answer]
            with pytest.raises(HaproxyError):
                ask()


def test_answer_of_any_length_does_not_fill_the_memory(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "ANSWER_MAX", 100)
    foreign.answers = [bytes(101)]
    with pytest.raises(HaproxyError, match="too long"):
        foreign.runtime.ask("show map m")


REPLACEMENTS: list[tuple[list[bytes], str]] = [
    ([b"New version created: x\n\n"], "did not prepare"),
    ([b"New version created: 1\n\n", b"No such version\n"], "did not add"),
    ([b"New version created: 1\n\n", b"\n", b"\n"], "not all entries"),
    ([b"New version created: 1\n\n", b"\n", b"0x1 10.0.0.1 a\n\n", b"No.\n"], "did not use"),
]


def test_replacement_counts_only_when_each_step_is_confirmed(foreign: Foreign) -> None:
    for answers, fault in REPLACEMENTS:
        foreign.answers = list(answers)
        with pytest.raises(HaproxyError, match=fault):
            foreign.runtime.replace("m", {"10.0.0.1": "a"})
    foreign.commands.clear()
    foreign.answers = [b"New version created: 1\n\n", b"\n", b"0x1 10.0.0.1 a\n\n", b"\n"]
    foreign.runtime.replace("m", {"10.0.0.1": "a"})
    assert foreign.commands == [
        *(b"prepare map m\n", b"add map @1 m <<\n10.0.0.1 a\n\n"),
        *(b"show map @1 m\n", b"commit map @1 m\n"),
    ]


def test_rows_statistics_and_entries_are_read(foreign: Foreign) -> None:
    runtime = foreign.runtime
    foreign.answers = [b"# table: t\n0x1: key=a use=0 gpc0=3\n0x2: key=b conn_cur=1\n\n"]
    assert runtime.table("t", "data.gpc0 gt 0") == {
        "a": {"use": 0, "gpc0": 3},
        "b": {"conn_cur": 1},
    }
    foreign.answers = [b"# pxname,svname,scur,\nguests,FRONTEND,4,\n\n"]
    (row,) = runtime.statistics()
    assert (row["pxname"], row["svname"], row["scur"]) == ("guests", "FRONTEND", "4")
    foreign.answers = [b"0x1 10.0.0.1 a b\n\n"]
    assert runtime.entries("m") == {"10.0.0.1": "a b"}
    assert foreign.commands == [b"show table t data.gpc0 gt 0\n", b"show stat\n", b"show map m\n"]
    for answer, ask in (
        *((f"# table: t\n{line}\n\n", lambda: runtime.table("t")) for line in ODD_ROWS),
        ("Unknown command\n\n", runtime.statistics),
        ("\n", runtime.statistics),
        ("0x1 10.0.0.1\n", lambda: runtime.entries("m")),
    ):
        foreign.answers = [answer.encode()]
        with pytest.raises(HaproxyError, match="not readable"):
            ask()


ODD_ROWS = ("0x1: use=0", "0x1: key=a use=x", "0x1:")


def test_changes_are_sent_in_batches_and_each_is_confirmed(foreign: Foreign) -> None:
    runtime = foreign.runtime
    foreign.answers = [b"\n\n\n"]
    runtime.change("m", {"a": "1", "b": "2"}, {"a": "3", "b": None, "c": "4", "d": None})
    assert foreign.commands == [b"set map m a 3;del map m b;add map m c 4\n"]
    foreign.answers = [b"\n" * COMMANDS, b"\n"]
    runtime.change("m", {}, {f"k{number}": "1" for number in range(COMMANDS + 1)})
    assert [command.count(b";") + 1 for command in foreign.commands[1:]] == [COMMANDS, 1]
    foreign.answers = [b"\n", b"\n"]
    runtime.change("m", {}, {"a": "x" * REQUEST, "b": "1"})
    assert len(foreign.commands) == 5
    foreign.answers = [b"entry not found.\n\n"]
    with pytest.raises(HaproxyError, match="did not change its map: 'entry not found"):
        runtime.change("m", {"a": "1"}, {"a": "2"})
    foreign.answers = [b"\n", b"No such server.\n"]
    runtime.take_for_down(["nova/a", "nova/b"])
    assert foreign.commands[-1] == b"set server nova/a health down;set server nova/b health down\n"
    with pytest.raises(HaproxyError, match="the state of a server"):
        runtime.take_for_down(["nova/a"])


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_late_answer_of_a_command_is_not_that_of_the_next(foreign: Foreign, timeout: float) -> None:
    foreign.stays = True
    foreign.answers = [PROMPT]
    foreign.runtime.hold()
    with pytest.raises(HaproxyError, match="in time"):
        foreign.runtime.ask("show table t;show stat", timeout=timeout)
    foreign.answers = [b"late\n\n> " * 2 + b"right\n\n> "]
    assert foreign.runtime.ask("show map m") == "right\n\n"
    foreign.answers = [b"next\n\n> " * 2]
    assert foreign.runtime.ask("show map m;show map m") == "next\n\n" * 2


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


def test_held_connection_is_closed_while_a_command_waits(foreign: Foreign) -> None:
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
