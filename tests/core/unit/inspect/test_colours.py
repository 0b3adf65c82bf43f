"""Listings on a terminal should have their states in colours, unless the user wants none."""

from __future__ import annotations

import io
import sys

import pytest

from dfmeta.cli import common, doctor_command, flows_command, ports_command
from dfmeta.inspect.finding import Status
from dfmeta.inspect.ledger import State
from dfmeta.model import PortState

GREEN, RED, YELLOW = "\x1b[32m", "\x1b[1;31m", "\x1b[33m"


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """A row of each status on a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        rows = [{"status": str(one), "text": "ok [red]wrong[/red]"} for one in Status]
        columns = {"status": "STATUS", "text": "FOUND"}
        common.print_rows(rows, columns, common.TABLE, styles=doctor_command.STYLES)
    return terminal.getvalue()


def test_terminal_shows_each_state_in_its_colour_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(monkeypatch)
    colours = {"ok": GREEN, "warning": YELLOW, "wrong": RED, "unknown": YELLOW}
    assert colours.keys() == set(Status)
    for state, colour in colours.items():
        assert f"{colour}{state}" in text
    assert text.count(GREEN) == 1
    assert "[red]wrong[/red]" in text
    text = shown(monkeypatch, NO_COLOR="1")
    assert not any(colour in text for colour in (GREEN, "31m", YELLOW))
    assert "unknown" in text
    row = {"status": "wrong"}
    common.print_rows([row], {"status": "STATUS"}, common.TABLE, styles=doctor_command.STYLES)
    assert capsys.readouterr().out == "STATUS\nwrong\n", "a pipe gets text alone"


def test_every_state_has_a_colour() -> None:
    assert set(doctor_command.STYLES["status"]) == set(Status)
    assert set(flows_command.STYLES["state"]) == set(State)
    assert set(ports_command.STYLES["state"]) == set(PortState)
