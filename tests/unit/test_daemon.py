"""What the daemon waits for at its start, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dfmeta.cmd import daemon as daemon_module
from dfmeta.cmd.daemon import Daemon
from dfmeta.exceptions import StartError


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setattr(daemon_module, "POLL", 0)
    made = Daemon.__new__(Daemon)
    made._ending = False
    return made


def late() -> StartError:
    return StartError(cause="it is late", remedy="wait")


def test_what_does_not_come_in_time_ends_the_start(daemon: Daemon) -> None:
    with pytest.raises(StartError, match="it is late"):
        daemon._await(lambda: False, 0.0, late)


def test_what_comes_at_the_last_moment_does_not(daemon: Daemon) -> None:
    assert daemon._await(lambda: True, 0.0, late)


def test_a_switch_that_takes_flows_is_waited_for_beyond_the_time(daemon: Daemon) -> None:
    answers: Iterator[bool] = iter([False, False, True])
    assert daemon._await(lambda: next(answers), 0.0, late, busy=lambda: True)
    turns: Iterator[bool] = iter([True, True, False])
    with pytest.raises(StartError, match="it is late"):
        daemon._await(lambda: False, 0.0, late, busy=lambda: next(turns))
    assert list(turns) == []


def test_who_is_to_end_waits_for_nothing(daemon: Daemon) -> None:
    daemon._ending = True
    assert not daemon._await(lambda: False, 0.0, late, busy=lambda: True)
