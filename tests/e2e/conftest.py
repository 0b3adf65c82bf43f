"""What a failed test of this tier shows besides the harness' own: the logs of daemons."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.harness.agent import Agent
from tests.harness.neutron_agent import NeutronAgent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of the logs of daemons that a module's tests share, and of Neutron's agent."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Agent | NeutronAgent):
                report.sections.append((f"the end of the log of {name}", value.tail(60)))
    return report
