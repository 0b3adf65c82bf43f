"""The daemon and the guest that most tests begin with."""

import pytest

from tests.harness.agent import Agent
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
    guest = make_guest("one", route="gateway")
    put(agent, guest)
    asks_own(guest)
    return guest
