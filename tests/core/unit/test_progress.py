"""Progress should say how far something is, in words that a person can act on."""

from __future__ import annotations

import io
import logging
import socket
from pathlib import Path

import pytest

from dfmeta.cli import progress
from dfmeta.cli.progress import Work
from dfmeta.cmd.waiting import BEGIN, EXTENSION, LINES, Waiting
from tests.harness.poll import wait_for


@pytest.mark.parametrize(
    ("work", "seconds", "line"),
    [
        (Work("writing a", begun=0), 7, "writing a: 7 s"),
        (Work("reading", unit="records", done=5000, begun=0), 5, "1,000 a second"),
        (
            Work("importing r", 4000, "bytes", done=1000, begun=0),
            10,
            "importing r: 1,000 of 4,000 bytes (25%), 100 a second, 30 s left",
        ),
        (Work("importing r", 10, done=20, begun=0), 1, "(200%), 20 a second, 0 s left"),
    ],
    ids=["time", "rate", "rest", "grown"],
)
def test_a_line_says_what_is_known(work: Work, seconds: float, line: str) -> None:
    assert line in work.line(seconds)


def test_something_else_begins_anew() -> None:
    work = Work("reading", begun=0)
    work.advance(7)
    work.begin("importing", 3)
    assert (work.what, work.total, work.done) == ("importing", 3, 0)
    assert work.begun > 0


def test_lines_come_while_it_lasts_and_count_what_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "BEGIN", 0)
    monkeypatch.setattr(progress, "LINES", 0.001)
    stream, looked = io.StringIO(), iter(range(1, 1_000_000))
    with progress.shown("copying\n\x1b[2J", look=lambda: next(looked), stream=stream):
        wait_for(lambda: "copying \\x1b[2J: 3, " in stream.getvalue(), "a third line")
    assert all(line.startswith("dfmeta: copying ") for line in stream.getvalue().splitlines())


def test_what_is_counted_comes_as_it_is() -> None:
    assert list(progress.counted(iter("abc"), "reading")) == ["a", "b", "c"]


def test_a_daemon_says_what_it_waits_for_every_few_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    waiting = Waiting(103.0, clock=lambda: now[0])
    with caplog.at_level(logging.INFO):
        for now[0] in (100.0, 100.5, 100.0 + BEGIN, 102.0, 101.0 + LINES):
            waiting.say(lambda: "OVSDB has not answered")
    assert caplog.messages == [
        "Waiting for 1 s so far: OVSDB has not answered; giving up in 2 s",
        "Waiting for 6 s so far: OVSDB has not answered; still making progress",
    ]


def test_systemd_waits_for_as_long_as_the_daemon_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    now = [0.0]
    waiting = Waiting(600.0, clock=lambda: now[0])
    heard = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(5)
        for now[0] in (BEGIN, BEGIN + LINES, 599.0):
            waiting.say(lambda: "OVSDB has not answered")
            heard[now[0]] = systemd.recv(4096).decode()
    assert set(heard.values()) == {f"EXTEND_TIMEOUT_USEC={int(EXTENSION)}000000"}
    assert EXTENSION > 2 * LINES
