"""Fixtures of all tiers; they start nothing until a test asks for it."""

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.examples import USUAL, examples

pytest_plugins = ["tests.harness.fixtures"]

# How long an example takes says how busy the machine is.
settings.register_profile(
    "usual",
    max_examples=examples(USUAL),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usual")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--soak N``: tests of endurance run N times as long (tools/soak)."""
    parser.addoption("--soak", type=int, default=1, help="run tests of endurance N times as long")


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual a test of endurance is to run."""
    return int(request.config.getoption("--soak"))
