"""The daemon and the guest that most tests begin with, and the logs of daemons in a failure."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.harness.agent import Agent, Daemon
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.host.e2e.support import asks_own, put


@pytest.fixture
def agent(make_agent: MakeAgent) -> Agent:
    """Provide the daemon, with the store."""
    return make_agent()


@pytest.fixture
def guest(agent: Agent, make_guest: MakeGuest) -> Guest:
    """Provide a guest that the daemon has answered."""
    one = make_guest("one", route="gateway")
    put(agent, one)
    asks_own(one)
    return one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of the logs of daemons that a module's tests share."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Daemon):
                report.sections.append((f"the end of the log of {name}", value.tail(60)))
    return report
