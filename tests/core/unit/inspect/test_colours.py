"""Listings on a terminal should have their states in colours, unless somebody wants none."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from dfmeta.cli import common, doctor_command, flows_command, ports_command
from dfmeta.inspect.finding import Status
from dfmeta.inspect.ledger import State
from dfmeta.model import PortState

GREEN, RED, YELLOW = "\x1b[32m", "\x1b[1;31m", "\x1b[33m"


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def shown(monkeypatch: pytest.MonkeyPatch, states: list[str]) -> str:
    """What a terminal gets of rows with those states."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        rows = [{"status": one, "text": "ok [red]wrong[/red]"} for one in states]
        columns = {"status": "STATUS", "text": "FOUND"}
        common.print_rows(rows, columns, common.TABLE, styles=doctor_command.STYLES)
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        terminal.flush()
        text = os.read(master, 65536).decode()
    os.close(master)
    return text


def test_a_terminal_shows_each_state_in_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [*Status])
    colours = {"ok": GREEN, "warning": YELLOW, "wrong": RED, "unknown": YELLOW}
    assert colours.keys() == set(Status)
    for state, colour in colours.items():
        assert f"{colour}{state}" in text
    assert text.count(GREEN) == 1
    assert "[red]wrong[/red]" in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(monkeypatch, ["ok", "wrong", "unknown"])
    assert not any(colour in text for colour in (GREEN, "31m", YELLOW))
    assert "unknown" in text


def test_a_pipe_gets_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"status": "wrong"}
    common.print_rows([row], {"status": "STATUS"}, common.TABLE, styles=doctor_command.STYLES)
    assert capsys.readouterr().out == "STATUS\nwrong\n"


def test_every_state_has_a_colour() -> None:
    assert set(doctor_command.STYLES["status"]) == set(Status)
    assert set(flows_command.STYLES["state"]) == set(State)
    assert set(ports_command.STYLES["state"]) == set(PortState)
