"""What doctor says of the probe, in each case."""

from __future__ import annotations

import pytest

from dfmeta.inspect.checks_path import PathFacts, path
from dfmeta.inspect.finding import Status
from tests.unit.inspect.values import SETTINGS


@pytest.mark.parametrize(
    ("facts", "status", "word"),
    [
        (None, Status.UNKNOWN, "does not run"),
        (PathFacts(asked=False, cause="not connected"), Status.UNKNOWN, "not connected"),
        (PathFacts(answered=True, seconds=0.0012), Status.OK, "in 1.2 ms"),
        (PathFacts(answered=True, whole=False), Status.WRONG, "incomplete TCP checksum"),
        (PathFacts(cause="the host is silent"), Status.WRONG, "the host is silent"),
    ],
)
def test_a_probe_is_judged(facts: PathFacts | None, status: Status, word: str) -> None:
    found = path(facts, SETTINGS)
    assert (found.check, found.status) == ("path", status)
    assert word in found.text
    assert bool(found.remedy) == (status is Status.WRONG)
