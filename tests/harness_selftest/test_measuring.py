"""A test should be measured until that is of no more use, and Hypothesis' examples never."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import conftest
from tests.harness.netns import MEASURING


@pytest.fixture(autouse=True)
def measuring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is measured, with a trace function that takes no part."""
    before = sys.gettrace()
    monkeypatch.setenv(MEASURING, "settings")
    monkeypatch.setattr(conftest, "_measured", dict.fromkeys("ab", 0.0))
    sys.settrace(lambda *_: None)
    yield
    sys.settrace(before)


def is_measured(name: str, function: object = None) -> bool:
    """Run a test for 0 s; return whether coverage and the programs it starts measured it."""
    item: Any = SimpleNamespace(nodeid=name, obj=function)
    run: Any = conftest.pytest_runtest_protocol(item)
    next(run)
    measured = {MEASURING in os.environ, sys.gettrace() is not None}
    with pytest.raises(StopIteration):
        run.send(None)
    assert (MEASURING in os.environ, sys.gettrace() is not None) == (True, True), "as before"
    assert len(measured) == 1, "the process and its programs alike"
    return measured.pop()


def test_a_test_is_measured_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.1, 1.0, 1.0 + conftest.MEASURED])
    monkeypatch.setattr(time, "process_time", lambda: next(now))
    assert [is_measured(f"a[{number}]") for number in range(4)] == [True, True, False, False]


def test_another_test_has_a_time_of_its_own() -> None:
    conftest._measured["a"] = conftest.MEASURED
    assert not is_measured("a[1]")
    assert is_measured("b[1]")


def test_examples_of_hypothesis_are_not_measured() -> None:
    @given(st.integers())
    def test(_number: int) -> None:
        """Nothing."""

    assert not is_measured("a", test)


def test_without_coverage_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEASURING)
    item: Any = SimpleNamespace(nodeid="a", obj=None)
    run: Any = conftest.pytest_runtest_protocol(item)
    next(run)
    assert MEASURING not in os.environ
    assert sys.gettrace() is not None
