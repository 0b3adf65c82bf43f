"""What the daemon waits for at its start, and for how long; what it shows on the admin side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.admin.listener import AdminApplication
from dfmeta.cmd import daemon as daemon_module
from dfmeta.cmd.daemon import Daemon
from dfmeta.exceptions import StartError
from dfmeta.health import Health
from tests.unit.support import Load


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


# The store's API, with a backend that changes


@pytest.fixture
def mounting(daemon: Daemon) -> Daemon:
    daemon._api = None
    daemon._admin = AdminApplication(Health(), list, {})
    return daemon


def test_the_stores_api_comes_with_the_store_and_goes_with_it(
    mounting: Daemon, load: Load, tmp_path: Path
) -> None:
    store = load(state_path=tmp_path)
    nova = load(
        state_path=tmp_path, backend="nova", DEFAULT__metadata_proxy_shared_secret="a secret"
    )
    for conf, there in ((nova, False), (store, True), (nova, False), (store, True)):
        mounting._prepare_api(conf)()
        assert (mounting._admin.api is not None) == there


def test_what_is_prepared_and_not_used_changes_nothing(
    mounting: Daemon, load: Load, tmp_path: Path
) -> None:
    mounting._prepare_api(load(state_path=tmp_path))
    assert mounting._admin.api is None
