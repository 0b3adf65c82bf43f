"""Conditions that a start waits for, and for how long; the store's API on the admin listener."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.admin.listener import AdminApplication
from dfmeta.cmd import start as start_module
from dfmeta.cmd.agent_admin import AgentAdmin
from dfmeta.cmd.start import Start
from dfmeta.exceptions import StartError
from dfmeta.health import Health
from tests.core.unit.support import Load


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(start_module, "POLL", 0)
    made = Start.__new__(Start)
    made._deadline = 0.0
    made._ending = lambda: False
    return made


def late() -> StartError:
    return StartError(cause="it is late", remedy="wait")


def test_a_condition_is_waited_for_until_the_time_is_over(start: Start) -> None:
    assert start.wait_for(lambda: True, late), "at the last moment"
    with pytest.raises(StartError, match="it is late"):
        start.wait_for(lambda: False, late)
    start._ending = lambda: True
    assert not start.wait_for(lambda: False, late, busy=lambda: True)


def test_a_switch_that_takes_flows_is_waited_for_beyond_the_time(start: Start) -> None:
    answers: Iterator[bool] = iter([False, False, True])
    assert start.wait_for(lambda: next(answers), late, busy=lambda: True)
    turns: Iterator[bool] = iter([True, True, False])
    with pytest.raises(StartError, match="it is late"):
        start.wait_for(lambda: False, late, busy=lambda: next(turns))
    assert list(turns) == []


# The store's API, with a backend that changes


@pytest.fixture
def mounting() -> AgentAdmin:
    made = AgentAdmin.__new__(AgentAdmin)
    made._api = None
    made.application = AdminApplication(Health(), list, {})
    return made


def test_the_stores_api_comes_with_the_store_and_goes_with_it(
    mounting: AgentAdmin, load: Load, tmp_path: Path
) -> None:
    secret = {"backend": "nova", "DEFAULT__metadata_proxy_shared_secret": "a secret"}
    store, nova = load(state_path=tmp_path), load(state_path=tmp_path, **secret)
    mounting.prepare(store)
    assert mounting.application.api is None, "prepared and not used"
    for conf, mounted in ((nova, False), (store, True), (nova, False), (store, True)):
        mounting.prepare(conf)()
        assert (mounting.application.api is not None) == mounted
